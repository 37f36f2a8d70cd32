"""Low-rank adapters, one for all rows or one for each row: in a layer, and added to another op's result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.gemm import lora_reference
from kernels.tolerance import assert_close
from tests.ops.gemm.checking import FLOOR, check, matrix
from tests.support.dtypes import BF16, FP16
from tests.support.poison import poisoned

pytestmark = pytest.mark.sampled(1)

SHAPES = ((37, 19, 33, 5), (1, 64, 64, 8), (130, 144, 48, 40), (16, 48, 80, 16))


@pytest.mark.parametrize("adapters", (5, 1, None))
@pytest.mark.parametrize("m, n, k, rank", SHAPES, ids=str)
def test_layer(gemm: Bundle, m: int, n: int, k: int, rank: int, adapters: int | None):
    """Rows share one adapter, have their own, or none; each adapter has a scale, or all have one."""
    rng = np.random.default_rng(m)
    x, w = matrix(rng, (m, k), FP16), matrix(rng, (n, k), FP16)
    down, up = matrix(rng, (adapters or 1, rank, k), FP16), matrix(rng, (adapters or 1, n, rank), FP16)
    index = rng.integers(-1, adapters + 1, m).astype(np.int32) if adapters else None
    scales = {5: [0.5, 2, -1, 8, 0], 1: None, None: [3]}[adapters]
    more = {"adapter_of": index, "adapter_scales": None if scales is None else np.array(scales, np.float32)}
    check(gemm, "lora_linear", FP16, x=x, w=w, down=down, up=up, **more, scale=0.25)


def given(
    m: int, n: int, k: int, rank: int, adapters: int = 5, dtype: np.dtype = FP16, prompts: bool = False
) -> dict[str, Any]:
    """Make a call with an adapter for each row, or, for prompts, for a run of rows. Ranks differ; NaN lies behind
    them."""
    rng = np.random.default_rng(m + rank)
    index = rng.integers(-1, adapters + 1, m)
    ranks = rng.integers(0, rank + 1, adapters).astype(np.int32)
    ranks[-1] = rank
    down, up = matrix(rng, (adapters, rank, k), dtype), matrix(rng, (adapters, n, rank), dtype)
    for adapter, own in enumerate(ranks):
        down[adapter, own:], up[adapter, :, own:] = np.nan, np.nan
    return {
        "x": matrix(rng, (m, k), dtype), "down": down, "up": up, "e": matrix(rng, (m, n), dtype),
        "adapter_of": (np.sort(index)[::-1] if prompts else index).astype(np.int32),
        "adapter_scales": rng.uniform(-2, 2, adapters).astype(np.float32), "ranks": ranks, "scale": 0.25,
    }  # fmt: skip


def check_added(gemm: Bundle, call: dict[str, Any]) -> np.ndarray:
    """Check with poison around each tensor that rows without an adapter keep their bits."""
    m, n = call["e"].shape
    before = np.full((m + 4, n + 16), np.nan, call["e"].dtype)
    before[2:-2, :n] = call["e"]
    around = gemm.device.array(before)
    placed = {name: poisoned(gemm, x) if isinstance(x, np.ndarray) else x for name, x in call.items()}
    gemm.lora_add(**placed | {"e": around[2:-2, :n]})
    after = around.numpy()
    result = after[2:-2, :n].copy()
    after[2:-2, :n] = call["e"]
    assert np.array_equal(after.view(np.uint16), before.view(np.uint16)), "written outside"
    exact, same = lora_reference.lora_add(**call), lora_reference.lora_add_same_dtype(**call)
    assert_close(result, exact, same, FLOOR * call["x"].shape[1] ** 0.5)
    without = ~np.isin(call.get("adapter_of", np.zeros(len(result))), np.arange(len(call["down"])))
    assert np.array_equal(result[without].view(np.uint16), call["e"][without].view(np.uint16))
    return result


@pytest.mark.slow
@pytest.mark.parametrize("prompts", (False, True))
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
@pytest.mark.parametrize("adapters", (5, 1, 33))
@pytest.mark.parametrize("m, n, k, rank", ((4, 80, 2080, 16), *SHAPES, (200, 96, 32, 64), (4, 80, 2080, 24)), ids=str)
def test_added(gemm: Bundle, m: int, n: int, k: int, rank: int, adapters: int, dtype: np.dtype, prompts: bool):
    """Rows are those of prompts in sequence, or of a decoding batch in any order; k has parts."""
    check_added(gemm, given(m, n, k, rank, adapters, dtype, prompts))


@pytest.mark.slow
@pytest.mark.parametrize("left_out", (("ranks",), ("ranks", "adapter_scales"), ("adapter_of",)), ids="-".join)
def test_what_may_be_left_out(gemm: Bundle, left_out: tuple[str, ...]):
    """Without adapter indices all rows have the first; without ranks, padding is zeros."""
    call = given(20, 48, 64, 8)
    call = {name: np.nan_to_num(x) if name in ("down", "up") else x for name, x in call.items() if name not in left_out}
    check_added(gemm, call)


@pytest.mark.slow
def test_part_of_a_joined_product(gemm: Bundle):
    """Add to a view of columns, as of the values among queries, keys and values."""
    call = given(6, 32, 64, 8)
    joined = gemm.device.array(np.tile(call["e"], 3))
    gemm.lora_add(**call | {"e": joined[:, 32:64]})
    after = joined.numpy()
    assert np.array_equal(after[:, 32:64], check_added(gemm, call))
    assert np.array_equal(after[:, :32], call["e"]) and np.array_equal(after[:, 64:], call["e"])
