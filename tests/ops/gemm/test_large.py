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
    """Every layout; with integers, whose sums every dtype on the way holds."""
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


def zeros_and(gemm: Bundle, count: int, last: np.ndarray, zero: int = 0) -> DeviceArray:
    """A large array whose first dim ends with `last`, and has zeros before."""
    array = gemm.device.empty((count, *last.shape[1:]), last.dtype)
    array.fill(zero)
    array[count - len(last) :].copy_from(last)
    return array


MANY = (1 << 31) // 64 + 64
"""Rows of 64 elements past 2**31 elements."""


@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_more_than_2_gib_of_rows(gemm: Bundle, dtype: np.dtype):
    rng = np.random.default_rng(13)
    last, b = matrix(rng, (64, 64), dtype), matrix(rng, (64, 16), dtype)
    result = gemm.matmul(zeros_and(gemm, MANY, last), gemm.device.array(b))
    assert np.array_equal(result[MANY - 64 :].numpy(), gemm.matmul(last, b))
    assert (result[:64].numpy() == 0).all()


@pytest.mark.parametrize("m", (1, 16, 20))
@pytest.mark.parametrize("op", ("matmul", "linear_int4"))
def test_more_than_2_gib_of_columns(gemm: Bundle, op: str, m: int):
    """Outputs of a linear layer; with weights of 4 bits past 2**31 bytes."""
    rng, n = np.random.default_rng(14), MANY if op == "matmul" else 2 * MANY
    a = gemm.device.array(matrix(rng, (m, 64), FP16))
    if op == "matmul":
        last = matrix(rng, (64, 64), FP16)
        result, wanted = gemm.matmul(a, zeros_and(gemm, n, last).T), gemm.matmul(a, gemm.device.array(last).T)
    else:
        last, scales = rng.integers(0, 256, (64, 32)).astype(np.uint8), gemm.device.array(np.ones((1, n), FP16))
        result = gemm.linear_int4(a, zeros_and(gemm, n, last, 0x88), scales)
        wanted = gemm.linear_int4(a, gemm.device.array(last), scales[:, :64])
    for row in range(m):
        assert np.array_equal(result[row, n - 64 :].numpy(), wanted[row].numpy())
        assert (result[row, :64].numpy() == 0).all()


def test_more_than_2_gib_of_batches(gemm: Bundle):
    rng, batch = np.random.default_rng(14), (1 << 31) // 65536 + 2
    last, one = (rng.integers(-2, 3, (256, 256)).astype(FP16) for _ in range(2))
    result = gemm.batched_matmul(zeros_and(gemm, batch, last[None]), gemm.device.array(one[None]))
    assert np.array_equal(result[batch - 1].numpy(), gemm.matmul(last, one))
    assert (result[0].numpy() == 0).all()
