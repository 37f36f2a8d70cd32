"""Linear layers with weights of float8: scales of rows, of blocks and of all, and batches of layers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle, NoVariantError
from kernels.gemm.reference import SCALED
from tests.ops.gemm.checking import check, matrix
from tests.support.dtypes import BF16, FP16, FP32, eight_bits

pytestmark = pytest.mark.sampled(2)

SHAPES = ((5, 33, 70), (33, 48, 272), (16, 64, 256), (130, 136, 384), (1, 17, 129))


def given(gemm: Bundle, shape: tuple[int, ...], dtype: np.dtype, parts: str, batch: int = 0) -> dict[str, object]:
    """Return the arguments of linear_fp8, with scales of `rows`, of `blocks` or of `all`; with a batch of its like."""
    (m, n, k), rng = shape, np.random.default_rng(sum(shape))
    rows, block = {"rows": (1, k), "blocks": (SCALED, SCALED), "all": (n, k)}[parts]
    of = (batch,) if batch else ()
    scales = rng.uniform(0.5, 2, (*of, -(-n // rows), -(-k // block))).astype(FP32)
    return {"x": matrix(rng, (*of, m, k), dtype), "w": matrix(rng, (*of, n, k), eight_bits(gemm, "e4m3")),
            "scales": scales, "rows_per_scale": rows, "block": block, "bias": matrix(rng, (*of, n), dtype)}  # fmt: skip


@pytest.mark.parametrize("parts", ("rows", "blocks", "all"))
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_fp8(gemm: Bundle, shape: tuple[int, ...], dtype: np.dtype, parts: str):
    check(gemm, "linear_fp8", dtype, **given(gemm, shape, dtype, parts))


@pytest.mark.parametrize("parts", ("blocks", "all"))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batches(gemm: Bundle, shape: tuple[int, ...], parts: str):
    """x and e may have the batch between tokens and columns; weights of one layer serve all."""
    call = given(gemm, shape, BF16, parts, 3)
    check(gemm, "batched_linear_fp8", BF16, **call)
    shared = {name: x[:1] if name != "x" and isinstance(x, np.ndarray) else x for name, x in call.items()}
    check(gemm, "batched_linear_fp8", BF16, **shared)
    x = np.ascontiguousarray(call["x"].transpose(1, 0, 2))
    e, wanted = np.zeros((shape[0], 3, shape[1]), BF16), gemm.batched_linear_fp8(**call)
    gemm.batched_linear_fp8(**call | {"x": x.transpose(1, 0, 2)}, e=e.transpose(1, 0, 2))
    assert np.array_equal(e.transpose(1, 0, 2), wanted)


@pytest.mark.sampled(0)
def test_refusals(gemm: Bundle):
    call = given(gemm, (5, 48, 256), FP16, "rows") | {"scales": np.ones((48, 4), FP32), "block": 64}
    with pytest.raises(ArgumentError, match="block >= k or block == 128"):
        gemm.linear_fp8(**call)
    call = given(gemm, (5, 48, 256), FP16, "rows") | {"w": np.zeros((48, 256), ml_dtypes.float8_e5m2)}
    with pytest.raises((ArgumentError, NoVariantError)):
        gemm.linear_fp8(**call)
