"""Matrix products against the fp64 references: tests for any device, of which a test module gives the fixture `gemm`.

Operands have NaN, or 127, around them; results lie in arrays of NaN, of which only their own elements may change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray
from aot_runtime.errors import AotError
from kernels.gemm.reference import ACTIVATIONS, matmul, matmul_same_dtype
from kernels.tolerance import assert_close
from tests.support.poison import poisoned

FP16, BF16, FP32 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
INT8, INT32 = np.dtype(np.int8), np.dtype(np.int32)
FLOOR = 1e-6

RAGGED = ((1, 1, 1), (3, 17, 5), (17, 127, 129), (127, 3, 257), (129, 65, 17), (1, 257, 127))
LONG = ((4099, 3, 17), (3, 4099, 1), (1, 17, 4099))
EVEN = ((1, 64, 64), (16, 64, 80), (64, 128, 256), (128, 256, 96), (257, 128, 16), (100, 48, 32))


def matrix(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, column_major: bool = False) -> np.ndarray:
    """Normal random numbers, or integers over all of an integer dtype; int32 ones small."""
    if dtype.kind == "i":
        host = rng.integers(-128, 128, shape).astype(dtype)
    else:
        host = rng.standard_normal(shape).astype(dtype)
    return np.swapaxes(np.ascontiguousarray(np.swapaxes(host, -1, -2)), -1, -2) if column_major else host


def on_device(gemm: Bundle, host: np.ndarray) -> DeviceArray:
    """With poison around it, and stored as `host` is, by rows or by columns."""
    if host.strides[-1] == host.dtype.itemsize or host.ndim < 2:
        return poisoned(gemm, host)
    return poisoned(gemm, np.swapaxes(host, -1, -2)).transpose(*range(host.ndim - 2), host.ndim - 1, host.ndim - 2)


def poison_of(dtype: np.dtype) -> Any:
    return np.array(77 if dtype.kind == "i" else np.nan, dtype)


def into_poison(
    gemm: Bundle, shape: tuple[int, ...], dtype: np.dtype, call: Callable[[DeviceArray], Any]
) -> np.ndarray:
    """What a call writes to an array with poison in and around it. Fails where that changed anything around it."""
    margin = [(2, 3)] * (len(shape) - 1) + [(16, 16)]
    whole = gemm.device.array(np.full([n + low + high for n, (low, high) in zip(shape, margin, strict=True)],
                                      poison_of(dtype)))  # fmt: skip
    inner = tuple(slice(low, low + n) for n, (low, _) in zip(shape, margin, strict=True))
    call(whole[inner])
    host = whole.numpy()
    result = host[inner].copy()
    host[inner] = poison_of(dtype)
    assert (host.view(np.uint8) == np.full_like(host, poison_of(dtype)).view(np.uint8)).all(), "written outside"
    return result


def run_matmul(
    gemm: Bundle, a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None, d: np.ndarray | None = None,
    op: str = "matmul", splits: int | None = None, schedule: str | None = None, **options: Any,
) -> np.ndarray:  # fmt: skip
    """A product on the device, checked."""
    given = [x if x is None else on_device(gemm, x) for x in ((a, b, bias, d) if op == "matmul" else (a, b, d))]
    extra = {name: value for name, value in (("splits", splits), ("schedule", schedule)) if value is not None}
    shape = (*a.shape[:-1], b.shape[-1])
    result = into_poison(gemm, shape, a.dtype, lambda e: getattr(gemm, op)(*given, e=e, **extra, **options))
    exact = {name: value for name, value in options.items() if name != "precision"}
    assert_close(
        result, matmul(a, b, bias, d, **exact), matmul_same_dtype(a, b, bias, d, **options), FLOOR * a.shape[-1] ** 0.5
    )
    return result


BundleFor = Callable[[np.dtype], Bundle]
LAYOUTS = ((False, False), (False, True), (True, False), (True, True))
"""Whether a, and b, are column-major."""


@pytest.mark.parametrize("a_columns, b_columns", LAYOUTS, ids=str)
@pytest.mark.parametrize("shape", RAGGED + LONG + EVEN, ids=str)
def test_matmul(gemm_for: BundleFor, shape: tuple[int, int, int], a_columns: bool, b_columns: bool):
    (m, n, k), rng = shape, np.random.default_rng(sum(shape))
    run_matmul(gemm_for(FP16), matrix(rng, (m, k), FP16, a_columns), matrix(rng, (k, n), FP16, b_columns), splits=1)


@pytest.mark.parametrize("shape", RAGGED[1:] + EVEN, ids=str)
@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
def test_matmul_of_dtypes(gemm_for: BundleFor, dtype: np.dtype, shape: tuple[int, int, int]):
    """As in linear layers: b is column-major."""
    (m, n, k), rng = shape, np.random.default_rng(sum(shape))
    run_matmul(gemm_for(dtype), matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, True), splits=1)


@pytest.mark.parametrize(
    "shape, splits",
    (((1, 65, 257), 3), ((17, 128, 512), 4), ((3, 64, 4099), 0), ((16, 128, 4096), 0), ((64, 64, 128), 8),
     ((5, 7, 40), 256)), ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", (FP16, FP32), ids=str)
def test_split_k(gemm_for: BundleFor, dtype: np.dtype, shape: tuple[int, int, int], splits: int):
    gemm, (m, n, k) = gemm_for(dtype), shape
    rng = np.random.default_rng(splits)
    a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, True)
    run_matmul(gemm, a, b, splits=splits)


@pytest.mark.parametrize("shape, splits", (((1, 65, 257), 3), ((17, 128, 512), 4), ((16, 128, 1536), 0)), ids=str)
def test_epilogue_of_parts(gemm: Bundle, shape: tuple[int, int, int], splits: int):
    (m, n, k), rng = shape, np.random.default_rng(splits)
    a, b, bias, d = (matrix(rng, size, FP16) for size in ((m, k), (k, n), (n,), (m, n)))
    run_matmul(gemm, a, b, bias, d, splits=splits, alpha=0.5, beta=-2.0, activation="silu")


ADDENDS = ("full", "row", "column", "one", "columns first", "none")


def epilogues() -> Iterator[Any]:
    """Every addend with every activation; those where each is not met for the first time are slow."""
    for (i, addend), (j, activation) in product(enumerate(ADDENDS), enumerate(ACTIVATIONS)):
        yield pytest.param(addend, activation, marks=() if i == j else pytest.mark.slow)


@pytest.mark.parametrize("addend, activation", tuple(epilogues()))
@pytest.mark.parametrize("shape", ((33, 49, 20), (64, 128, 64)), ids=str)
def test_epilogue(gemm: Bundle, shape: tuple[int, int, int], addend: str, activation: str):
    (m, n, k), rng = shape, np.random.default_rng(1)
    shapes = {"full": (m, n), "row": (1, n), "column": (m, 1), "one": (1, 1), "columns first": (m, n)}
    d = None if addend == "none" else matrix(rng, shapes[addend], FP16, addend == "columns first")
    bias = matrix(rng, (n,), FP16) if addend in ("full", "none") else None
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16)
    run_matmul(gemm, a, b, bias, d, alpha=0.5, beta=1.5, activation=activation)


@pytest.mark.parametrize("biased, added", ((False, False), (True, False), (False, True), (True, True)))
@pytest.mark.parametrize("schedule", ("tiles", "persistent", "stream_k", "multiply_reduce", "splits"))
@pytest.mark.parametrize("shape", ((8, 64, 96), (5, 33, 40)), ids=str)
def test_what_each_schedule_adds(gemm_for: BundleFor, shape: tuple, schedule: str, biased: bool, added: bool):
    """A bias, an addend, both or neither, where the code asks at run time and where it does not."""
    (m, n, k), rng = shape, np.random.default_rng(11)
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, True)
    bias, d = matrix(rng, (n,), FP16) if biased else None, matrix(rng, (m, n), FP16) if added else None
    how = {"splits": 2} if schedule == "splits" else {"schedule": schedule}
    run_matmul(gemm_for(FP16), a, b, bias, d, alpha=0.5, beta=-2.0, **how)


@pytest.mark.parametrize("biased, added", ((False, False), (True, False), (True, True)))
@pytest.mark.parametrize("precision", ("ieee", "tf32"))
def test_what_is_added_to_float32(gemm_for: BundleFor, precision: str, biased: bool, added: bool):
    rng = np.random.default_rng(12)
    a, b = matrix(rng, (17, 32), FP32), matrix(rng, (32, 48), FP32, True)
    bias, d = matrix(rng, (48,), FP32) if biased else None, matrix(rng, (1, 48), FP32) if added else None
    run_matmul(gemm_for(FP32), a, b, bias, d, splits=1, precision=precision, activation="relu" if added else "none")


def test_activations_of_what_is_not_finite(gemm: Bundle):
    """-inf, inf and NaN of the product, and values at which exponentials overflow."""
    a = np.array([[1.0], [0.0]], FP16)
    b = np.array([[-np.inf, np.inf, np.nan, -3e4, 3e4, -100, 100, 0]], FP16)
    for activation in ACTIVATIONS:
        out = gemm.matmul(a[:1], b, activation=activation)[0].astype(np.float64)
        assert np.isnan(out[2]) and out[1] == np.inf and out[7] == 0, activation
        if activation in ("relu", "none", "leaky_relu"):
            assert np.array_equal(out, ACTIVATIONS[activation](b.astype(np.float32))[0].astype(FP16), equal_nan=True)
        else:
            assert (np.abs(out[[3, 5]]) == 0).all() and (out[[4, 6]] == b[0, [4, 6]]).all(), activation


@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("shape", ((64, 128, 256), (1, 64, 96)), ids=str)
def test_tf32(gemm_for: BundleFor, shape: tuple[int, int, int], splits: int):
    """Within what operands of 10 bits allow, and not as good as fp32: the mode is there."""
    (m, n, k), rng = shape, np.random.default_rng(9)
    a, b = matrix(rng, (m, k), FP32), matrix(rng, (k, n), FP32, True)
    result = run_matmul(gemm_for(FP32), a, b, splits=splits, precision="tf32")
    assert np.abs(result - matmul(a, b)).max() > 20 * np.abs(matmul_same_dtype(a, b) - matmul(a, b)).max()


@pytest.mark.parametrize("dtype, splits", ((FP16, 1), (FP16, 4), (FP32, 1), (FP32, 4), (BF16, 1)), ids=str)
def test_integers_are_exact(gemm_for: BundleFor, dtype: np.dtype, splits: int):
    """Sums that every dtype on the way holds, so that any error shows."""
    gemm, rng = gemm_for(dtype), np.random.default_rng(2)
    for m, n, k in ((129, 67, 255), (128, 128, 256), (5, 80, 96)):
        a, b = (rng.integers(-1, 2, shape).astype(dtype) for shape in ((m, k), (k, n)))
        wanted = a.astype(np.int64) @ b.astype(np.int64)
        given = on_device(gemm, a), on_device(gemm, np.asfortranarray(b))
        result = into_poison(gemm, (m, n), dtype, lambda e, given=given: gemm.matmul(*given, e=e, splits=splits))
        assert abs(wanted).max() <= 256
        assert (result.astype(np.int64) == wanted).all()


@pytest.mark.parametrize("splits", (0, 1, 3))
def test_no_products(gemm: Bundle, splits: int):
    """k = 0 leaves act(bias + beta * d); m or n of 0 is an empty result."""
    rng = np.random.default_rng(3)
    bias, d = matrix(rng, (20,), FP16), matrix(rng, (5, 20), FP16)
    a, b = np.zeros((5, 0), FP16), np.zeros((0, 20), FP16)
    result = gemm.matmul(a, b, bias, d, beta=2.0, activation="relu", splits=splits)
    assert np.array_equal(result, np.maximum(bias.astype(np.float32) + 2 * d.astype(np.float32), 0).astype(FP16))
    assert (gemm.matmul(a, b, splits=splits) == 0).all()
    assert gemm.matmul(np.zeros((0, 8), FP16), np.zeros((8, 20), FP16), splits=splits).shape == (0, 20)


BATCHES = ((3, 17, 33, 20), (2, 64, 128, 64), (4, 1, 48, 80))


@pytest.mark.parametrize("dtype, a_columns", ((FP16, False), (FP16, True), (FP32, False)), ids=str)
@pytest.mark.parametrize("shape", BATCHES, ids=str)
def test_batched_matmul(gemm_for: BundleFor, dtype: np.dtype, shape: tuple[int, int, int, int], a_columns: bool):
    (batch, m, n, k), rng = shape, np.random.default_rng(1)
    a, b = matrix(rng, (batch, m, k), dtype, a_columns), matrix(rng, (batch, k, n), dtype, True)
    run_matmul(gemm_for(dtype), a, b, op="batched_matmul")


def test_no_products_in_batches(gemm: Bundle):
    d = matrix(np.random.default_rng(1), (2, 3, 5), FP16)
    result = gemm.batched_matmul(np.zeros((2, 3, 0), FP16), np.zeros((2, 0, 5), FP16), d, beta=-2.0)
    assert np.array_equal(result, -2 * d)
    assert gemm.batched_matmul(np.zeros((0, 3, 8), FP16), np.zeros((0, 8, 5), FP16)).shape == (0, 3, 5)


@pytest.mark.parametrize("addend", ("full", "row", "of each batch"))
@pytest.mark.parametrize("shape", BATCHES, ids=str)
def test_epilogue_of_batches(gemm: Bundle, shape: tuple[int, int, int, int], addend: str):
    """One b for the whole batch."""
    (batch, m, n, k), rng = shape, np.random.default_rng(2)
    a, b = matrix(rng, (batch, m, k), FP16), matrix(rng, (1, k, n), FP16)
    d = matrix(rng, {"full": (batch, m, n), "row": (1, 1, n), "of each batch": (batch, 1, 1)}[addend], FP16)
    run_matmul(gemm, a, b, None, d, op="batched_matmul", alpha=2.0, activation="gelu")


# Schedules


def test_large_products_have_the_schedule_that_calls_name(gemm: Bundle):
    a, b = gemm.device.empty((8192, 16), FP16), gemm.device.empty((16, 8192), FP16)
    for schedule, persistent in (("persistent", True), ("tiles", False)):
        assert f"PERSISTENT={persistent}" in gemm.explain("matmul", a, b, schedule=schedule)


@pytest.mark.parametrize("activation", ("none", "relu"))
@pytest.mark.parametrize("shape", ((60 * 128, 6 * 128, 32), (2050, 2560, 16)), ids=str)
def test_persistent(gemm: Bundle, shape: tuple[int, int, int], activation: str):
    """Fewer programs than tiles: some compute two."""
    (m, n, k), rng = shape, np.random.default_rng(6)
    assert (m // 128) * (n // 128) > gemm.device.properties.num_cus
    a, b, bias = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16), matrix(rng, (n,), FP16)
    run_matmul(gemm, a, b, bias, schedule="persistent", activation=activation)


@pytest.mark.parametrize("shape", ((256, 384, 2048), (128, 128, 64), (272, 144, 816), (1, 16, 64 * 400)), ids=str)
def test_stream_k(gemm: Bundle, shape: tuple[int, int, int]):
    """Programs with parts of one or two tiles, and tiles of many programs."""
    (m, n, k), rng = shape, np.random.default_rng(7)
    a, b, bias = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16), matrix(rng, (n,), FP16)
    first = run_matmul(gemm, a, b, bias, schedule="stream_k", alpha=0.25, activation="silu")
    second = run_matmul(gemm, a, b, bias, schedule="stream_k", alpha=0.25, activation="silu")
    assert np.array_equal(first.view(np.uint16), second.view(np.uint16))


@pytest.mark.parametrize("cus", (1, 3, 7, 40))
def test_stream_k_on_few_compute_units(gemm: Bundle, cus: int, monkeypatch: pytest.MonkeyPatch):
    """Programs with a part of a tile, whole tiles, and a part of another."""
    few = msgspec.structs.replace(gemm.device.properties, num_cus=cus)
    monkeypatch.setattr(type(gemm.device), "properties", property(lambda device: few))
    (m, n, k), rng = (640, 256, 320 + 16 * cus), np.random.default_rng(8)  # another shape, as plans are cached
    a, b, bias = (matrix(rng, shape, FP16) for shape in ((m, k), (k, n), (n,)))
    run_matmul(gemm, a, b, bias, schedule="stream_k")


@pytest.mark.parametrize("m", (1, 2, 3, 7, 8))
@pytest.mark.parametrize("n, k", ((64, 256), (48, 80), (256, 16), (32, 1040)), ids=str)
def test_multiply_reduce(gemm_for: BundleFor, m: int, n: int, k: int):
    rng = np.random.default_rng(m)
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, True)
    run_matmul(gemm_for(FP16), a, b, schedule="multiply_reduce", alpha=0.5, activation="gelu")


def test_strides(gemm: Bundle):
    """Every other row, rows from the last to the first, and an operand that is broadcast."""
    rng = np.random.default_rng(4)
    a, b = matrix(rng, (40, 24), FP16), matrix(rng, (24, 40), FP16)
    wide = gemm.device.array(a)
    for left, host in ((wide[::2], a[::2]), (wide[::-1], a[::-1])):
        result = gemm.matmul(left, gemm.device.array(b)).numpy()
        assert_close(result, matmul(host, b), matmul_same_dtype(host, b), FLOOR)


def test_the_same_call_gives_the_same_bits(gemm: Bundle):
    rng = np.random.default_rng(5)
    a, b = matrix(rng, (16, 1024), FP16), matrix(rng, (1024, 64), FP16)
    first, second = (gemm.matmul(a, b, splits=5) for _ in range(2))
    assert np.array_equal(first.view(np.uint16), second.view(np.uint16))


@pytest.mark.parametrize(
    "a, b, options, message",
    (
        (np.zeros((3, 4), FP16), np.zeros((5, 3), FP16), {}, "k"),
        (np.zeros((3, 4), FP16), np.zeros((4, 3), FP32), {}, "float32"),
        (np.zeros((3, 4), FP16), np.zeros((4, 3), FP16), {"bias": np.zeros(4, FP16)}, "bias"),
        (np.zeros((3, 4), FP16), np.zeros((4, 3), FP16), {"d": np.zeros((2, 3), FP16)}, "d"),
        (np.zeros((3, 4), FP16), np.zeros((4, 3), FP16), {"activation": "swish"}, "swish"),
        (np.zeros((3, 4), FP16), np.zeros((4, 3), FP16), {"precision": "fp8"}, "fp8"),
        (np.zeros((3, 4), FP16), np.zeros((4, 3), FP16), {"splits": -1}, "splits"),
    ),
)
def test_what_does_not_fit_is_refused(gemm: Bundle, a: np.ndarray, b: np.ndarray, options: dict, message: str):
    with pytest.raises(AotError, match=message):
        gemm.matmul(a, b, **options)
