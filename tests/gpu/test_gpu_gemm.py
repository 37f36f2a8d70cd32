"""Matrix products on a real GPU."""

from __future__ import annotations

import numpy as np
import pytest
from gemm8_suite import *  # noqa: F403 -- its tests
from gemm_packed_suite import *  # noqa: F403 -- its tests
from gemm_suite import *  # noqa: F403 -- its tests
from gemm_suite import BF16, FP16, FP32, BundleFor, matrix

from aot_runtime import Bundle
from kernels.gemm.reference import matmul

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gemm_for(gemm: Bundle) -> BundleFor:
    return lambda dtype: gemm


@pytest.fixture(scope="module")
def gemm8(gemm: Bundle) -> Bundle:
    return gemm


@pytest.fixture(scope="module")
def packed(gemm: Bundle) -> Bundle:
    return gemm


@pytest.mark.parametrize("schedule", ("auto", "persistent", "stream_k"))
@pytest.mark.parametrize("b_columns", (False, True))
@pytest.mark.parametrize("shape", ((1024, 1024, 1024), (4099, 257, 1000), (129, 8192, 512), (16, 4096, 4096)), ids=str)
@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
def test_large(gemm: Bundle, dtype: np.dtype, shape: tuple[int, int, int], b_columns: bool, schedule: str):
    """Every row and column of the result, through sums that fp32 holds exactly."""
    (m, n, k), rng = shape, np.random.default_rng(12)
    a, b = (rng.integers(-2, 3, size).astype(np.float32) for size in ((m, k), (k, n)))
    exact = matmul(a, b)
    assert np.abs(exact).max() < 2048 or dtype == FP32
    b = np.ascontiguousarray(b.T).T if b_columns else b
    given = (gemm.device.array(x.astype(dtype)) for x in (a, b))
    result = gemm.matmul(*given, schedule=schedule).numpy()
    assert np.array_equal(result.astype(np.float64), exact.astype(dtype).astype(np.float64))


@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_more_than_2_gib(gemm: Bundle, dtype: np.dtype):
    """Rows past 2 GiB, and past 2**31 elements, of an operand and of the result."""
    device, rng = gemm.device, np.random.default_rng(13)
    rows, k, n = (1 << 31) // 64 + 64, 64, 16
    a = device.empty((rows, k), dtype)
    a.fill(0)
    last = matrix(rng, (64, k), dtype)
    a[rows - 64 :].copy_from(last)
    b = matrix(rng, (k, n), dtype)
    result = gemm.matmul(a, device.array(b))
    assert np.array_equal(result[rows - 64 :].numpy(), gemm.matmul(last, b))
    assert (result[:64].numpy() == 0).all()
