"""Matrix products of floats: single, batched, and with every schedule."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.gemm.reference import ACTIVATIONS, matmul, matmul_same_dtype
from kernels.tolerance import assert_close
from tests.ops.gemm.checking import FLOOR, LAYOUTS, check, matrix
from tests.support.dtypes import BF16, FP16, FP32

pytestmark = pytest.mark.sampled(1)

SHAPES = ((17, 127, 129), (1, 1, 1), (3, 17, 5), (129, 65, 17), (127, 3, 257), (1, 257, 127), (4099, 3, 17),
          (16, 64, 80), (3, 4099, 1), (1, 17, 4099), (100, 48, 32), (64, 128, 256), (128, 256, 96), (257, 128, 16),
          (112, 48, 32), (24, 136, 72), (65, 72, 264))  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("a_columns, b_columns", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
def test_every_layout(gemm: Bundle, dtype: np.dtype, shape: tuple[int, int, int], a_columns: bool, b_columns: bool):
    (m, n, k), rng = shape, np.random.default_rng(sum(shape))
    a, b = matrix(rng, (m, k), dtype, a_columns), matrix(rng, (k, n), dtype, b_columns)
    check(gemm, "matmul", dtype, {"splits": 1}, a=a, b=b)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("added", (True, False))
@pytest.mark.parametrize("shape, splits", (((17, 128, 512), 4), ((1, 65, 257), 3), ((3, 64, 4099), 0),
    ((16, 128, 4096), 0), ((64, 64, 128), 8), ((5, 7, 40), 256)), ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", (FP16, FP32), ids=str)
def test_split_k(gemm: Bundle, dtype: np.dtype, shape: tuple[int, int, int], splits: int, added: bool):
    (m, n, k), rng = shape, np.random.default_rng(splits)
    a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, True)
    more = {"bias": matrix(rng, (n,), dtype), "d": matrix(rng, (m, n), dtype), "alpha": 0.5, "activation": "silu"}
    check(gemm, "matmul", dtype, {"splits": splits}, a=a, b=b, **(more if added else {}))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("splits", (1, 3, 0))
@pytest.mark.parametrize("shape", ((17, 33, 70), (3, 64, 4096), (130, 144, 256), (5, 17, 1999)), ids=str)
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_results_of_float32(gemm: Bundle, dtype: np.dtype, shape: tuple[int, int, int], splits: int):
    (m, n, k), rng = shape, np.random.default_rng(splits)
    a, b, bias = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, True), matrix(rng, (n,), FP32)
    result = check(gemm, "matmul_float32", FP32, {"splits": splits}, a=a, b=b, bias=bias)
    assert not np.array_equal(result, result.astype(dtype).astype(FP32))


ADDENDS = ("full", "row", "column", "one", "columns first", "none")


@pytest.mark.sampled(6)  # the first with the first, the second with the second, and so on
@pytest.mark.parametrize("shape", ((33, 49, 20), (64, 128, 64)), ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("addend", ADDENDS)
def test_epilogue(gemm: Bundle, addend: str, activation: str, shape: tuple[int, int, int]):
    (m, n, k), rng = shape, np.random.default_rng(1)
    extents = {"full": (m, n), "row": (1, n), "column": (m, 1), "one": (1, 1), "columns first": (m, n)}
    d = None if addend == "none" else matrix(rng, extents[addend], FP16, addend == "columns first")
    bias = matrix(rng, (n,), FP16) if addend in ("full", "none") else None
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16)
    check(gemm, "matmul", FP16, a=a, b=b, bias=bias, d=d, alpha=0.5, beta=1.5, activation=activation)


def test_activations_of_what_is_not_finite(gemm: Bundle):
    """Products are -inf, inf and NaN, and values at which exponentials overflow."""
    b = np.array([[-np.inf, np.inf, np.nan, -3e4, 3e4, -100, 100, 0]], FP16)
    for activation in ACTIVATIONS:
        out = gemm.matmul(np.ones((1, 1), FP16), b, activation=activation)[0].astype(np.float64)
        assert np.isnan(out[2]) and out[1] == np.inf and out[7] == 0, activation
        if activation in ("relu", "none", "leaky_relu"):
            assert np.array_equal(out, ACTIVATIONS[activation](b.astype(np.float32))[0].astype(FP16), equal_nan=True)
        else:
            assert (np.abs(out[[3, 5]]) == 0).all() and (out[[4, 6]] == b[0, [4, 6]]).all(), activation


@pytest.mark.sampled(1)
@pytest.mark.parametrize("added", (True, False))
@pytest.mark.parametrize("shape, splits", (((17, 128, 256), 1), ((17, 128, 256), 3), ((1, 64, 96), 1)), ids=str)
def test_tf32(gemm: Bundle, shape: tuple[int, int, int], splits: int, added: bool):
    """Errors are within what operands of 10 bits allow, but larger than fp32's: the mode is in use."""
    (m, n, k), rng = shape, np.random.default_rng(9)
    a, b = matrix(rng, (m, k), FP32), matrix(rng, (k, n), FP32, True)
    given = {"a": a, "b": b} | ({"bias": matrix(rng, (n,), FP32), "d": matrix(rng, (1, n), FP32)} if added else {})
    result = check(gemm, "matmul", FP32, {"splits": splits}, "tf32", **given)
    assert np.abs(result - matmul(**given)).max() > 20 * np.abs(matmul_same_dtype(**given) - matmul(**given)).max()


@pytest.mark.parametrize("splits", (0, 1, 3))
def test_no_products(gemm: Bundle, splits: int):
    """k = 0 leaves act(bias + beta * d); m or n of 0 is an empty result."""
    rng = np.random.default_rng(3)
    a, b, bias, d = (matrix(rng, shape, FP16) for shape in ((5, 0), (0, 20), (20,), (5, 20)))
    check(gemm, "matmul", FP16, {"splits": splits}, a=a, b=b, bias=bias, d=d, beta=2.0, activation="relu")
    assert (gemm.matmul(a, b, splits=splits) == 0).all()
    assert gemm.matmul(np.zeros((0, 8), FP16), np.zeros((8, 20), FP16), splits=splits).shape == (0, 20)


def test_strides(gemm: Bundle):
    """Rows are every other one, or run from the last to the first."""
    rng = np.random.default_rng(4)
    a, b = matrix(rng, (40, 24), FP16), matrix(rng, (24, 40), FP16)
    wide = gemm.device.array(a)
    for left, host in ((wide[::2], a[::2]), (wide[::-1], a[::-1])):
        result = gemm.matmul(left, gemm.device.array(b)).numpy()
        assert_close(result, matmul(host, b), matmul_same_dtype(host, b), FLOOR)


@pytest.mark.parametrize("addend", (None, "row", "of each batch", "full"))
@pytest.mark.parametrize("dtype, a_columns", ((FP16, False), (FP16, True), (FP32, False)), ids=str)
@pytest.mark.parametrize("shape", ((3, 17, 33, 20), (2, 3, 5, 0), (2, 64, 128, 64), (4, 1, 48, 80)), ids=str)
def test_batched_matmul(
    gemm: Bundle, shape: tuple[int, int, int, int], dtype: np.dtype, a_columns: bool, addend: str | None
):
    """With an addend there is one b for the whole batch. k = 0 leaves the addend."""
    (batch, m, n, k), rng = shape, np.random.default_rng(1)
    a, b = matrix(rng, (batch, m, k), dtype, a_columns), matrix(rng, (1 if addend else batch, k, n), dtype)
    extents = {"full": (batch, m, n), "row": (1, 1, n), "of each batch": (batch, 1, 1)}
    more = {"d": matrix(rng, extents[addend], dtype), "alpha": 2.0, "activation": "gelu"} if addend else {}
    check(gemm, "batched_matmul", dtype, a=a, b=b, **more)


# Schedules


@pytest.mark.sampled(2)
@pytest.mark.parametrize("biased, added", ((False, False), (True, False), (False, True), (True, True)))
@pytest.mark.parametrize("schedule", ("multiply_reduce", "persistent", "stream_k", "tiles", "splits"))
@pytest.mark.parametrize("shape", ((8, 64, 96), (5, 33, 40)), ids=str)
def test_what_each_schedule_adds(gemm: Bundle, shape: tuple[int, int, int], schedule: str, biased: bool, added: bool):
    """They add a bias, an addend, both or neither, whether the code asks at run time or not; results repeat."""
    (m, n, k), rng = shape, np.random.default_rng(11)
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, True)
    bias, d = matrix(rng, (n,), FP16) if biased else None, matrix(rng, (m, n), FP16) if added else None
    how = {"splits": 2} if schedule == "splits" else {"schedule": schedule}
    one, other = (check(gemm, "matmul", FP16, how, a=a, b=b, bias=bias, d=d, alpha=0.5, beta=-2.0) for _ in range(2))
    assert np.array_equal(one.view(np.uint16), other.view(np.uint16))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cus", (7, 1, 40, 3))
@pytest.mark.parametrize("schedule", ("stream_k", "persistent"))
def test_few_compute_units(gemm: Bundle, schedule: str, cus: int, monkeypatch: pytest.MonkeyPatch):
    """Programs have several tiles, or a part of a tile, whole tiles, and a part of another."""
    few = msgspec.structs.replace(gemm.device.properties, num_cus=cus)
    monkeypatch.setattr(type(gemm.device), "properties", property(lambda device: few))
    (m, n, k), rng = (256, 128, 192 + 16 * cus), np.random.default_rng(8)  # another shape, as plans are cached
    a, b, bias = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, True), matrix(rng, (n,), FP16)
    check(gemm, "matmul", FP16, {"schedule": schedule}, a=a, b=b, bias=bias, activation="relu")
    placed = gemm.device.array(a), gemm.device.array(b)
    assert ("PERSISTENT=True" in gemm.explain("matmul", *placed, schedule=schedule)) == (schedule == "persistent")


@pytest.mark.parametrize("n, k", ((64, 256), (48, 80), (256, 16), (32, 1040)), ids=str)
@pytest.mark.parametrize("m", (1, 2, 3, 7, 8))
def test_multiply_reduce(gemm: Bundle, m: int, n: int, k: int):
    rng = np.random.default_rng(m)
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, True)
    check(gemm, "matmul", FP16, {"schedule": "multiply_reduce"}, a=a, b=b, alpha=0.5, activation="gelu")
