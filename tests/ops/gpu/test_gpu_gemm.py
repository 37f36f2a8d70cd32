"""Matrix products on a real GPU."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.gemm.reference import matmul
from tests.ops.gemm import gemm8_suite
from tests.ops.gemm.gemm8_suite import *  # noqa: F403 -- its tests
from tests.ops.gemm.gemm_packed_suite import *  # noqa: F403 -- its tests
from tests.ops.gemm.gemm_suite import *  # noqa: F403 -- its tests
from tests.ops.gemm.gemm_suite import BF16, FP16, FP32, BundleFor, matrix

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


EXTENTS = (1, 3, 17, 127, 129, 257, 4099)


@pytest.mark.parametrize("m", EXTENTS)
@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
def test_every_ragged_shape(gemm: Bundle, dtype: np.dtype, m: int):
    """In every layout; integers, of which every dtype on the way holds the sums."""
    rng = np.random.default_rng(m)
    for n, k in product(EXTENTS, EXTENTS):
        a, b = (rng.integers(-2, 3, size).astype(np.float32) for size in ((m, k), (k, n)))
        wanted = (a @ b).astype(dtype)
        assert k < 4099 or np.abs(wanted.astype(np.float32)).max() < 2048
        left, right = ([gemm.device.array(x), gemm.device.array(np.ascontiguousarray(x.T)).T] for x in
                       (a.astype(dtype), b.astype(dtype)))  # fmt: skip
        for given in product(left, right):
            assert np.array_equal(gemm.matmul(*given).numpy(), wanted), (m, n, k, *(x.strides for x in given))


@pytest.mark.parametrize("shape", ((5, 33), (2, 2500)), ids=str)
def test_layer_norm_int8_of_bfloat16(gemm8: Bundle, shape: tuple[int, int]):
    gemm8_suite.test_layer_norm_int8(gemm8, shape, BF16)


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


def test_more_than_2_gib_of_columns_and_batches(gemm: Bundle):
    """Columns of b past 2**31 elements; a batch whose last matrices lie there."""
    device, rng = gemm.device, np.random.default_rng(14)
    columns, k, m = (1 << 31) // 64 + 64, 64, 16
    w = device.empty((columns, k), FP16)
    w.fill(0)
    last = matrix(rng, (64, k), FP16)
    w[columns - 64 :].copy_from(last)
    a = device.array(matrix(rng, (m, k), FP16))
    result, wanted = gemm.matmul(a, w.T), gemm.matmul(a, device.array(last).T).numpy()
    assert all(np.array_equal(result[row, columns - 64 :].numpy(), wanted[row]) for row in range(m))
    assert all((result[row, :64].numpy() == 0).all() for row in range(m))

    batch, size = (1 << 31) // 65536 + 2, 256
    w = device.empty((batch, size, size), FP16)
    w.fill(0)
    last, one = (rng.integers(-2, 3, shape).astype(FP16) for shape in ((size, size), (1, size, size)))
    w[batch - 1 :].copy_from(last[None])
    one = device.array(one)
    result = gemm.batched_matmul(w, one)
    assert np.array_equal(result[batch - 1].numpy(), gemm.matmul(device.array(last), one[0]).numpy())
    assert (result[0].numpy() == 0).all()


def test_more_than_2_gib_of_codes(packed: Bundle):
    """Weights of 4 bits past 2**31 bytes."""
    device, rng = packed.device, np.random.default_rng(15)
    n, k = (1 << 31) // 32 + 64, 64
    w, scales = device.empty((n, k // 2), np.uint8), device.array(np.ones((1, n), FP16))
    w.fill(0x88)  # of zeros
    last = rng.integers(0, 256, (64, k // 2)).astype(np.uint8)
    w[n - 64 :].copy_from(last)
    for m in (1, 20):
        x = device.array(matrix(rng, (m, k), FP16))
        result = packed.linear_int4(x, w, scales)
        wanted = packed.linear_int4(x, device.array(last), scales[:, :64]).numpy()
        assert all(np.array_equal(result[row, n - 64 :].numpy(), wanted[row]) for row in range(m))
        assert all((result[row, :64].numpy() == 0).all() for row in range(m))
