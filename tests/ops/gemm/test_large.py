"""Matrix products that only a GPU does in good time: every ragged shape, large ones, and those past 2 GiB."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray
from kernels.gemm.reference import matmul
from tests.ops.gemm.checking import matrix
from tests.support.dtypes import BF16, FP16, FP32

pytestmark = pytest.mark.on("gpu")

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


def zeros_and(gemm: Bundle, shape: tuple[int, ...], last: np.ndarray, zero: int = 0) -> DeviceArray:
    """A large array whose first dim ends with `last`, and has zeros before."""
    array = gemm.device.empty(shape, last.dtype)
    array.fill(zero)
    array[shape[0] - len(last) :].copy_from(last)
    return array


def check_ends(result: DeviceArray, wanted: np.ndarray) -> None:
    """Of each row of a result, zeros at its beginning and what is wanted at its end."""
    for row, right in enumerate(wanted):
        assert np.array_equal(result[row, result.shape[1] - 64 :].numpy(), right)
        assert (result[row, :64].numpy() == 0).all()


@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_more_than_2_gib_of_rows(gemm: Bundle, dtype: np.dtype):
    """Rows past 2 GiB, and past 2**31 elements, of an operand and of the result."""
    rng = np.random.default_rng(13)
    last, b = matrix(rng, (64, 64), dtype), matrix(rng, (64, 16), dtype)
    result = gemm.matmul(zeros_and(gemm, ((1 << 31) // 64 + 64, 64), last), gemm.device.array(b))
    assert np.array_equal(result[result.shape[0] - 64 :].numpy(), gemm.matmul(last, b))
    assert (result[:64].numpy() == 0).all()


def test_more_than_2_gib_of_columns(gemm: Bundle):
    """Columns of b past 2**31 elements."""
    rng = np.random.default_rng(14)
    last, a = matrix(rng, (64, 64), FP16), gemm.device.array(matrix(rng, (16, 64), FP16))
    w = zeros_and(gemm, ((1 << 31) // 64 + 64, 64), last)
    check_ends(gemm.matmul(a, w.T), gemm.matmul(a, gemm.device.array(last).T).numpy())


def test_more_than_2_gib_of_batches(gemm: Bundle):
    """A batch whose last matrices lie past 2**31 elements."""
    rng, batch, size = np.random.default_rng(14), (1 << 31) // 65536 + 2, 256
    last, one = (rng.integers(-2, 3, (size, size)).astype(FP16) for _ in range(2))
    result = gemm.batched_matmul(zeros_and(gemm, (batch, size, size), last[None]), gemm.device.array(one[None]))
    assert np.array_equal(result[batch - 1].numpy(), gemm.matmul(last, one))
    assert (result[0].numpy() == 0).all()


@pytest.mark.parametrize("m", (1, 20))
def test_more_than_2_gib_of_codes(gemm: Bundle, m: int):
    """Weights of 4 bits past 2**31 bytes."""
    rng, n = np.random.default_rng(15), (1 << 31) // 32 + 64
    last = rng.integers(0, 256, (64, 32)).astype(np.uint8)
    w, scales = zeros_and(gemm, (n, 32), last, 0x88), gemm.device.array(np.ones((1, n), FP16))
    x = gemm.device.array(matrix(rng, (m, 64), FP16))
    check_ends(gemm.linear_int4(x, w, scales), gemm.linear_int4(x, gemm.device.array(last), scales[:, :64]).numpy())
