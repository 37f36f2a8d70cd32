"""Linear layers with weights of 4 bits and activations of 8 (W4A8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_models.quantise import Packed, pack_int4
from aot_runtime import Bundle
from tests.ops.gemm.checking import check, matrix, on_device
from tests.support.choices import configs, with_few_units
from tests.support.dtypes import BF16, FP16, FP32, INT8, eight_bits
from tests.support.poison import into_poison

pytestmark = pytest.mark.sampled(1)

OP = "linear_int4_a8"
SHAPES = ((5, 37, 37), (17, 96, 32), (48, 1056, 32), (33, 128, 64), (64, 640, 64), (128, 384, 384), (5, 129, 129),
          (48, 1024, 1024), (16, 96, 96), (64, 256, 128))  # fmt: skip
"""n, k, group_size."""


def arguments(
    gemm: Bundle, m: int, n: int, k: int, size: int, kind: str, dtype: np.dtype, zeros: bool = False,
    ordered: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Make the arguments of a call, with a bias, and scales that differ by row, output and group."""
    rng, groups = np.random.default_rng(m + k), k // size
    order = rng.permutation(k).astype(np.int32) if ordered else None
    weights = Packed(
        pack_int4(rng.integers(0, 16, (n, k)).astype(np.uint8)), rng.uniform(0.01, 0.1, (groups, n)).astype(dtype),
        rng.integers(0, 17, (groups, n)).astype(np.uint8) if zeros else None, size, order,
    )  # fmt: skip
    return {
        "x": matrix(rng, (m, k), eight_bits(gemm, kind)), **weights.arguments(),
        "row_scales": rng.uniform(1e-3, 1e-1, m).astype(np.float32), "bias": matrix(rng, (n,), dtype),
    }  # fmt: skip


@pytest.mark.parametrize("m, splits", ((5, 0), (1, 0), (16, 1), (130, 0), (33, 5), (17, 2)))
@pytest.mark.parametrize("kind, zeros, dtype", (("int8", True, FP16), ("e4m3", False, FP16), ("int8", False, FP32),
                                                ("e4m3", True, BF16)), ids=str)  # fmt: skip
@pytest.mark.parametrize("n, k, size", SHAPES, ids=str)
def test_groups(gemm: Bundle, n: int, k: int, size: int, kind: str, zeros: bool, dtype: np.dtype, m: int, splits: int):
    """Groups have all sizes; parts of k end within groups and between them."""
    check(gemm, OP, dtype, {"splits": splits}, **arguments(gemm, m, n, k, size, kind, dtype, zeros))


@pytest.mark.on("emulator", "rocm")
@pytest.mark.sampled(0)
@pytest.mark.parametrize("kind, zeros", (("int8", True), ("e4m3", False)))
@pytest.mark.parametrize("m, n", ((130, 144), (300, 128)))
def test_large_tiles(gemm: Bundle, m: int, n: int, kind: str, zeros: bool, monkeypatch: pytest.MonkeyPatch):
    with_few_units(gemm, monkeypatch)
    given = arguments(gemm, m, n, 384, 128, kind, FP16, zeros)
    placed = {name: on_device(gemm, value) if isinstance(value, np.ndarray) else value for name, value in given.items()}
    assert configs(gemm, OP, **placed, e=gemm.device.empty((m, n), FP16)) == ["wide"]
    check(gemm, OP, FP16, **given)


@pytest.mark.parametrize("kind", ("int8", "e4m3"))
@pytest.mark.parametrize("m", (5, 40))
@pytest.mark.parametrize("zeros", (False, True))
def test_act_order(gemm: Bundle, zeros: bool, m: int, kind: str):
    check(gemm, OP, FP16, **arguments(gemm, m, 48, 128, 32, kind, FP16, zeros, True))


def test_one_factor_of_all_rows(gemm: Bundle):
    given = arguments(gemm, 3, 5, 37, 37, "int8", FP16, True)
    check(gemm, OP, FP16, **given | {"row_scales": given["row_scales"][:1]})


def test_every_code_less_every_zero(gemm: Bundle):
    """Codes stand at every place of a word, with a row that has the place alone, and with the largest values."""
    k = 32
    codes, zeros = (part.ravel() for part in np.meshgrid(np.arange(16), np.arange(17)))
    w = np.tile(codes[:, None], k)
    w[:, 1::3] = 15 - w[:, 1::3]
    x = np.diag(np.where(np.arange(k) % 2, 127, -128))
    given = (x.astype(INT8), pack_int4(w.astype(np.uint8)), np.ones((1, len(w)), FP16), np.ones(1, FP32))
    placed, less = [on_device(gemm, array) for array in given], on_device(gemm, zeros[None].astype(np.uint8))
    e = into_poison(gemm, (k, len(w)), FP16, lambda e: gemm.linear_int4_a8(*placed, e, less))
    assert np.array_equal(e, x @ (w - zeros[:, None]).T)
