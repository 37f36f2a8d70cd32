"""Linear layers with weights of 4 bits and activations of 8 (W4A8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle
from aot_runtime.weights import Packed, pack_int4
from tests.ops.gemm.checking import check, matrix, on_device
from tests.support.dtypes import BF16, FP16, FP32, INT8, eight_bits
from tests.support.poison import into_poison

pytestmark = pytest.mark.sampled(1)

OP = "linear_int4_a8"
SHAPES = ((5, 37, 37), (17, 96, 32), (33, 128, 64), (17, 1056, 32), (128, 384, 384), (5, 129, 129), (48, 1024, 1024),
          (64, 256, 128))  # fmt: skip
"""n, k, group_size."""


def arguments(
    gemm: Bundle, m: int, n: int, k: int, size: int, kind: str, dtype: np.dtype, zeros: bool = False,
    ordered: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Those of a call, with a bias, and with scales that differ by row, output and group."""
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
    """Of all sizes, and parts of k that end within them, and between."""
    check(gemm, OP, dtype, {"splits": splits}, **arguments(gemm, m, n, k, size, kind, dtype, zeros))


@pytest.mark.parametrize("kind", ("int8", "e4m3"))
@pytest.mark.parametrize("m", (5, 40))
@pytest.mark.parametrize("zeros", (True, False))
def test_act_order(gemm: Bundle, zeros: bool, m: int, kind: str):
    check(gemm, OP, FP16, **arguments(gemm, m, 48, 128, 32, kind, FP16, zeros, True))


def test_one_factor_of_all_rows(gemm: Bundle):
    given = arguments(gemm, 3, 5, 37, 37, "int8", FP16, True)
    check(gemm, OP, FP16, **given | {"row_scales": given["row_scales"][:1]})


def test_sums_of_int8_are_exact(gemm: Bundle):
    """Those of the largest products too, of codes 0 .. 15 less zeros 0 .. 16, one beside the other in a word."""
    codes, zeros = (part.ravel() for part in np.meshgrid(np.arange(16), np.arange(17)))
    w = np.tile(codes[:, None], 128).astype(np.uint8)
    w[:, 1::3] = 15 - w[:, 1::3]
    x = np.full((1, 128), -128, INT8)
    x[:, 1::3] = 127
    one = np.ones(1, FP32)
    e = into_poison(gemm, (1, len(w)), FP32, lambda e: gemm.linear_int4_a8(
        x, pack_int4(w), np.ones((1, len(w)), FP32), one, e, zeros[None].astype(np.uint8)))  # fmt: skip
    assert np.array_equal(e[0], (w.astype(np.int64) - zeros[:, None]) @ x[0].astype(np.int64))


@pytest.mark.sampled(0)
@pytest.mark.parametrize("kind", ("int8", "e4m3"))
def test_quantised_activations(gemm: Bundle, kind: str):
    """What `quantise` makes of a row goes in as it is."""
    given = arguments(gemm, 6, 32, 128, 128, kind, FP16)
    x = on_device(gemm, matrix(np.random.default_rng(0), given["x"].shape, FP16))
    q = gemm.device.empty(x.shape, given["x"].dtype)
    scale = gemm.quantise(x, q)
    check(gemm, OP, FP16, **given | {"x": q.numpy(), "row_scales": scale.numpy()[:, 0]})
