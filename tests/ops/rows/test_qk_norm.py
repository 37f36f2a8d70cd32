"""Heads of queries and keys, normalised and rotated in one launch."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray
from kernels.rows import reference
from kernels.tolerance import assert_close
from tests.ops.rows.checking import normal
from tests.support.dtypes import BF16, FP16, FP32
from tests.support.poison import into_poison, poisoned

pytestmark = pytest.mark.sampled(1)

DTYPES = (BF16, FP16, FP32)


def given(
    head_dim: int, pairs: int, dtype: np.dtype, heads: tuple[int, int] = (9, 3), tokens: int = 5
) -> dict[str, Any]:
    """Make the arguments of a call; some positions are outside of the table."""
    rng = np.random.default_rng(head_dim + pairs)
    phases = rng.uniform(-np.pi, np.pi, (20, pairs))
    positions = np.array([19, -1, 7, 20, 3, 0, 2**31 - 1], np.int32)[:tokens]
    tensors = {name: normal(rng, (tokens, n, head_dim), dtype, 3) for name, n in zip("qk", heads, strict=True)}
    tensors |= {name: normal(rng, (head_dim,), dtype) for name in ("q_weight", "k_weight")}
    return tensors | {"cos": np.cos(phases).astype(np.float32), "sin": np.sin(phases).astype(np.float32),
                      "positions": positions, "eps": 0.25}  # fmt: skip


def assert_right(results: tuple[np.ndarray, ...], call: dict[str, Any]) -> None:
    """Compare q and k with the reference."""
    exact, same = reference.qk_norm_rotary(**call), reference.qk_norm_rotary_same_dtype(**call)
    for found, wanted, rounded in zip(results, exact, same, strict=True):
        assert_close(found, wanted, rounded, 2e-6)


def check(rows: Bundle, call: dict[str, Any]) -> None:
    """Check with poison around each tensor; no two have the same strides."""
    arrays = [name for name, value in call.items() if isinstance(value, np.ndarray)]
    placed = call | {name: poisoned(rows, call[name], 16 * at) for at, name in enumerate(arrays, 1)}
    found: dict[str, np.ndarray] = {}

    def into_both(k_out: DeviceArray) -> None:
        run = partial(rows.qk_norm_rotary, **placed, k_out=k_out)
        found["q"] = into_poison(rows, call["q"].shape, call["q"].dtype, lambda q_out: run(q_out=q_out))

    found["k"] = into_poison(rows, call["k"].shape, call["k"].dtype, into_both)
    assert_right((found["q"], found["k"]), call)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("zero_centred", (False, True))
@pytest.mark.parametrize("head_dim, pairs", ((128, 64), (256, 48), (40, 12), (64, 32), (256, 128), (128, 16), (3, 1)))
def test_norm_and_rotation(
    rows: Bundle, head_dim: int, pairs: int, zero_centred: bool, interleaved: bool, dtype: np.dtype
):
    check(rows, given(head_dim, pairs, dtype) | {"zero_centred": zero_centred, "interleaved": interleaved})


@pytest.mark.parametrize("heads", ((1, 1), (8, 8), (32, 8), (7, 17)), ids=str)
def test_counts_of_heads(rows: Bundle, heads: tuple[int, int]):
    check(rows, given(128, 64, BF16, heads, tokens=2))
