"""Matrix products of 8-bit numbers, SmoothQuant's layers, quantisers: tests for any device; fixture `gemm8`."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import Bundle
from aot_runtime.errors import AotError
from kernels.gemm import reference
from kernels.gemm.reference import SCALED, largest
from kernels.tolerance import assert_close
from tests.ops.gemm.gemm_suite import FLOOR, FP16, FP32, INT8, INT32, into_poison, matrix, on_device

SHAPES = ((1, 17, 129), (127, 65, 257), (33, 3, 70), (16, 64, 256), (128, 128, 128))


def float8(gemm8: Bundle, name: str) -> np.dtype:
    """The float8 that the arch has: FNUZ on gfx942."""
    fnuz = gemm8.device.arch == "gfx942"
    return np.dtype(getattr(ml_dtypes, {"e4m3": "float8_e4m3fnuz" if fnuz else "float8_e4m3fn",
                                        "e5m2": "float8_e5m2fnuz" if fnuz else "float8_e5m2"}[name]))  # fmt: skip


def operand_dtype(gemm8: Bundle, name: str) -> np.dtype:
    return INT8 if name == "int8" else float8(gemm8, name)


def check_int8(result: np.ndarray, exact: np.ndarray) -> None:
    """Rounded half to even, saturating; at what fp32 cannot tell from a tie, either way."""
    inside = np.clip(exact, -128, 127)
    near_tie = np.abs(np.abs(inside - np.floor(inside)) - 0.5) < 1e-4
    wrong = np.abs(result - np.rint(inside)) > near_tie
    assert not wrong.any(), f"{np.count_nonzero(wrong)} of {wrong.size}: {result[wrong][:5]}, exact {exact[wrong][:5]}"
    assert (np.abs(result - np.trunc(inside)) <= 1).all()  # what truncates, as composable_kernel does, is near


# int8 to int32


@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("a_columns, b_columns", ((False, False), (False, True), (True, False), (True, True)), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_integer_matmul(gemm8: Bundle, shape: tuple[int, int, int], a_columns: bool, b_columns: bool, splits: int):
    (m, n, k), rng = shape, np.random.default_rng(1)
    a, b = matrix(rng, (m, k), INT8, a_columns), matrix(rng, (k, n), INT8, b_columns)
    given = on_device(gemm8, a), on_device(gemm8, b)
    result = into_poison(gemm8, (m, n), INT32, lambda e: gemm8.integer_matmul(*given, e=e, splits=splits))
    assert np.array_equal(result, reference.integer_matmul(a, b))


@pytest.mark.parametrize("a_columns, b_columns", ((False, False), (False, True), (True, False), (True, True)), ids=str)
@pytest.mark.parametrize("shape", ((1, 17, 129), (33, 65, 70), (16, 64, 64)), ids=str)
def test_int32_matmul(gemm8: Bundle, shape: tuple[int, int, int], a_columns: bool, b_columns: bool):
    """Sums that fp32 does not hold, some of which wrap."""
    (m, n, k), rng = shape, np.random.default_rng(11)
    a, b = matrix(rng, (m, k), INT32, a_columns) * 997, matrix(rng, (k, n), INT32, b_columns) * 991
    d = matrix(rng, (1, n), INT32)
    given = on_device(gemm8, a), on_device(gemm8, b), gemm8.device.array(d)
    result = into_poison(gemm8, (m, n), INT32, lambda e: gemm8.integer_matmul(*given, e=e))
    exact = a.astype(np.int64) @ b.astype(np.int64) + d
    assert np.array_equal(result, exact.astype(np.int32)) and (abs(exact) > 2**31).any()


@pytest.mark.parametrize("addend", ("full", "row", "column"))
@pytest.mark.parametrize("splits", (1, 2))
def test_integer_epilogue(gemm8: Bundle, addend: str, splits: int):
    """Sums that fp32 does not hold."""
    rng = np.random.default_rng(2)
    shape = {"full": (40, 24), "row": (1, 24), "column": (40, 1)}[addend]
    a, b = np.full((40, 300), -128, np.int8), matrix(rng, (300, 24), INT8)
    d = rng.integers(-(2**27), 2**27, shape).astype(np.int32)
    result = gemm8.integer_matmul(a, b, d, alpha=3, beta=-5, splits=splits)
    assert np.array_equal(result, reference.integer_matmul_same_dtype(a, b, d, 3, -5))


def test_the_largest_sum_fits_and_a_larger_one_is_refused(gemm8: Bundle):
    a = np.full((1, 131071), -128, np.int8)
    assert (gemm8.integer_matmul(a, np.ascontiguousarray(a.T)) == 131071 * 2**14).all()
    a = np.zeros((1, 131072), np.int8)
    b = np.zeros((131072, 1), np.int8)
    with pytest.raises(AotError, match="131071"):
        gemm8.integer_matmul(a, b)
    with pytest.raises(AotError, match="131071"):
        gemm8.int8_linear(a, a, np.zeros(1, np.int8), alpha=1.0)


# Scaled


@pytest.mark.parametrize("b_columns", (False, True), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype, out", (("int8", FP16), ("e4m3", FP16), ("e5m2", FP16)), ids=str)
def test_scaled_matmul(gemm8: Bundle, dtype: str, out: np.dtype, shape: tuple[int, int, int], b_columns: bool):
    (m, n, k), rng = shape, np.random.default_rng(3)
    dtype = operand_dtype(gemm8, dtype)
    a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, b_columns)
    for per_row in (False, True) if b_columns else (True,):
        scale_a = rng.uniform(1e-3, 1e-2, m if per_row else 1).astype(np.float32)
        scale_b = rng.uniform(0.5, 2, n if per_row else 1).astype(np.float32)
        bias = matrix(rng, (n,), out)
        given = on_device(gemm8, a), on_device(gemm8, b)
        result = into_poison(
            gemm8, (m, n), out, lambda e, given=given, scales=(scale_a, scale_b), bias=bias:
            gemm8.scaled_matmul(*given, *(gemm8.device.array(x) for x in scales), e, gemm8.device.array(bias)),
        )  # fmt: skip
        exact = reference.scaled_matmul(a, b, scale_a, scale_b, bias=bias)
        assert_close(result, exact, reference.scaled_matmul_same_dtype(a, b, scale_a, scale_b, result, bias), FLOOR)


@pytest.mark.parametrize(
    "addend, activation", (("full", "none"), ("row", "relu"), ("column", "silu"), (None, "gelu")), ids=str
)
@pytest.mark.parametrize("shape", ((33, 49, 70), (64, 64, 128)), ids=str)
def test_epilogue_of_8_bits(gemm8: Bundle, shape: tuple[int, int, int], addend: str | None, activation: str):
    (m, n, k), rng, dtype = shape, np.random.default_rng(13), operand_dtype(gemm8, "e4m3")
    a, b, bias = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, True), matrix(rng, (n,), FP16)
    scales = rng.uniform(0.02, 0.1, m).astype(np.float32), rng.uniform(0.5, 2, n).astype(np.float32)
    d = None if addend is None else matrix(rng, {"full": (m, n), "row": (1, n), "column": (m, 1)}[addend], FP16)
    options = {"beta": -1.5, "activation": activation}
    given = [None if x is None else on_device(gemm8, x) for x in (a, b, *scales)]
    after = [None if x is None else on_device(gemm8, x) for x in (bias, d)]
    result = into_poison(gemm8, (m, n), FP16, lambda e: gemm8.scaled_matmul(*given, e, *after, **options))
    exact = reference.scaled_matmul(a, b, *scales, None, bias, d, **options)
    assert_close(result, exact, reference.scaled_matmul_same_dtype(a, b, *scales, result, bias, d, **options), FLOOR)


def test_no_products_of_8_bits(gemm8: Bundle):
    """k = 0 leaves what is added."""
    rng, none = np.random.default_rng(14), (np.zeros((3, 0), np.int8), np.zeros((0, 20), np.int8))
    d = rng.integers(-99, 99, (3, 20)).astype(np.int32)
    for splits in (0, 1, 3):
        assert np.array_equal(gemm8.integer_matmul(*none, d, beta=-7, splits=splits), -7 * d)
    one, bias = np.ones(1, np.float32), matrix(rng, (20,), FP16)
    e = np.full((3, 20), np.nan, FP16)
    gemm8.scaled_matmul(*none, one, one, e, bias, d.astype(FP16), beta=2.0)
    assert np.array_equal(e, (bias.astype(np.float32) + 2 * d).astype(FP16))
    addend = rng.integers(-99, 99, 20).astype(np.int8)
    w = np.zeros((20, 0), np.int8)
    assert np.array_equal(gemm8.int8_linear(none[0], w, addend, alpha=1.0), np.tile(addend, (3, 1)))


@pytest.mark.parametrize("rows_per_scale", (1, 128))
@pytest.mark.parametrize("shape", ((1, 200, 300), (130, 136, 384), (129, 17, 127), (256, 128, 128)), ids=str)
@pytest.mark.parametrize("dtype", ("int8", "e4m3"), ids=str)
def test_block_scaled_matmul(gemm8: Bundle, dtype: str, shape: tuple[int, int, int], rows_per_scale: int):
    (m, n, k), rng = shape, np.random.default_rng(4)
    dtype = operand_dtype(gemm8, dtype)
    a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, True)
    blocks = -(-k // SCALED)
    scale_a = rng.uniform(1e-3, 1e-2, (-(-m // rows_per_scale), blocks)).astype(np.float32)
    scale_b = rng.uniform(0.5, 2, (blocks, -(-n // SCALED))).astype(np.float32)
    given = [on_device(gemm8, x) for x in (a, b)] + [gemm8.device.array(x) for x in (scale_a, scale_b)]
    result = into_poison(
        gemm8, (m, n), FP16, lambda e: gemm8.block_scaled_matmul(*given, e, rows_per_scale=rows_per_scale)
    )
    options = {"rows_per_scale": rows_per_scale}
    exact = reference.block_scaled_matmul(a, b, scale_a, scale_b, **options)
    assert_close(
        result, exact, reference.block_scaled_matmul_same_dtype(a, b, scale_a, scale_b, result, **options), FLOOR
    )


@pytest.mark.parametrize("dtype", ("int8", "e4m3"), ids=str)
def test_integers_of_8_bits_are_exact(gemm8: Bundle, dtype: str):
    dtype, rng = operand_dtype(gemm8, dtype), np.random.default_rng(5)
    a, b = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((65, 400), (400, 48)))
    one, e = np.ones(1, np.float32), np.zeros((65, 48), FP16)
    bias = np.zeros(48, FP16)
    gemm8.scaled_matmul(a, b, one, one, e, bias)
    assert np.array_equal(e, a.astype(np.float64) @ b.astype(np.float64))


# SmoothQuant


@pytest.mark.parametrize("shape", (*SHAPES, (100, 70, 500)), ids=str)
def test_int8_linear(gemm8: Bundle, shape: tuple[int, int, int]):
    (m, n, k), rng = shape, np.random.default_rng(6)
    a, w, d = matrix(rng, (m, k), INT8), matrix(rng, (n, k), INT8), matrix(rng, (n,), INT8)
    alpha, beta = 0.02 / k**0.5, 0.3  # some results saturate
    given = on_device(gemm8, a), on_device(gemm8, w), gemm8.device.array(d)
    scales = {"alpha": alpha, "beta": beta}
    for op in ("int8_linear", "int8_linear_relu"):
        result = into_poison(gemm8, (m, n), INT8, lambda e, op=op: getattr(gemm8, op)(*given, e=e, **scales))
        check_int8(result, getattr(reference, op)(a, w, d, **scales))
        assert op == "int8_linear" or (result >= 0).all()
    d = rng.standard_normal(n).astype(np.float32)
    options = {**scales, "d": gemm8.device.array(d)}
    result = into_poison(gemm8, (m, n), FP32, lambda e: gemm8.int8_linear_float32(*given[:2], e=e, **options))
    exact = reference.int8_linear_float32(a, w, d, **scales)
    assert_close(result, exact, reference.int8_linear_float32_same_dtype(a, w, d, **scales), FLOOR)


@pytest.mark.parametrize("shape", ((1, 17, 129), (65, 33, 70), (64, 64, 64)), ids=str)
def test_int8_bmm(gemm8: Bundle, shape: tuple[int, int, int]):
    (m, n, k), rng = shape, np.random.default_rng(7)
    a, w = matrix(rng, (3, m, k), INT8), matrix(rng, (3, n, k), INT8)
    given, alpha = (on_device(gemm8, a), on_device(gemm8, w)), 0.02 / k**0.5
    result = into_poison(gemm8, (3, m, n), INT8, lambda e: gemm8.int8_bmm(*given, e=e, alpha=alpha))
    check_int8(result, reference.int8_bmm(a, w, alpha))
    result = into_poison(gemm8, (3, m, n), FP32, lambda e: gemm8.int8_bmm_float32(*given, e=e, alpha=alpha))
    assert np.array_equal(result, reference.int8_bmm_float32_same_dtype(a, w, np.float32(alpha)))


def test_ties_round_to_even_and_what_is_large_saturates(gemm8: Bundle):
    """Results of n + 1/2 for all n, exactly; a bias that brings some over the ends."""
    a = np.arange(-128, 128, dtype=np.int8)[:, None]
    w, d = np.full((2, 1), 1, np.int8), np.array([0, 127], np.int8)
    result = gemm8.int8_linear(a, w, d, alpha=1.5, beta=1.0)
    exact = reference.int8_linear(a, w, d, 1.5, 1.0)
    assert np.array_equal(result, np.rint(np.clip(exact, -128, 127)).astype(np.int8))
    assert (np.abs(exact % 1) == 0.5).sum() > 200 and result.max() == 127 and result.min() == -128


@pytest.mark.parametrize("shape", ((5, 33), (3, 1024), (2, 2500), (1, 1)), ids=str)
def test_layer_norm_int8(gemm8: Bundle, shape: tuple[int, int], dtype: np.dtype = FP16):
    rng = np.random.default_rng(8)
    x = (matrix(rng, shape, dtype) * 3 + 5).astype(dtype)
    weight, bias = (rng.uniform(20, 60, shape[1]).astype(np.float32) for _ in range(2))
    given = on_device(gemm8, x), gemm8.device.array(weight), gemm8.device.array(bias)
    result = into_poison(gemm8, shape, INT8, lambda e: gemm8.layer_norm_int8(*given, e=e))
    check_int8(result, reference.layer_norm_int8(x, weight, bias))


# Quantisers


@pytest.mark.parametrize("to", ("int8", "e4m3"))
@pytest.mark.parametrize(
    "shape, block, rows",
    (((5, 33), None, 1), ((40, 300), 128, 1), ((130, 260), 128, 128), ((3, 2500), None, 1), ((7, 64), 32, 3),
     ((6, 1040), None, 6)), ids=str,
)  # fmt: skip
def test_quantise(gemm8: Bundle, shape: tuple[int, int], block: int | None, rows: int, to: str):
    dtype, rng = operand_dtype(gemm8, to), np.random.default_rng(9)
    x = matrix(rng, shape, FP16)
    x[:rows, :10] = 0
    options: dict[str, Any] = {"rows_per_scale": rows} | ({"block": block} if block else {})
    found: list[Any] = []
    given = on_device(gemm8, x)
    q = into_poison(gemm8, shape, dtype, lambda q: found.append(gemm8.quantise(given, q, **options)))
    check_quantised(
        q, found[0].numpy(), reference.quantise(x, q, **options), reference.quantise_same_dtype(x, q, **options)
    )


@pytest.mark.parametrize("to", ("int8", "e4m3"))
@pytest.mark.parametrize("shape", ((1, 1), (5, 33), (70, 600), (4500, 3)), ids=str)
def test_quantise_all(gemm8: Bundle, shape: tuple[int, int], to: str):
    dtype, rng = operand_dtype(gemm8, to), np.random.default_rng(10)
    x = matrix(rng, shape, FP16)
    found: list[Any] = []
    given = on_device(gemm8, x)
    q = into_poison(gemm8, shape, dtype, lambda q: found.append(gemm8.quantise_all(given, q)))
    check_quantised(q, found[0].numpy(), reference.quantise_all(x, q), reference.quantise_all_same_dtype(x, q))


def check_quantised(q: np.ndarray, scale: np.ndarray, exact: tuple, same: tuple) -> None:
    assert_close(scale, exact[1], same[1], 1e-7 * float(exact[1].max()), "scale")
    if q.dtype == INT8:
        check_int8(q, exact[0])
        assert np.abs(q.astype(np.int32)).max() <= 127
    else:
        assert_close(q.astype(np.float32), exact[0], same[0], 0, "q")
    assert np.abs(q.astype(np.float32)).max() == largest(q.dtype)


def test_zeros_are_quantised_to_zeros(gemm8: Bundle):
    q = np.full((3, 40), 5, np.int8)
    scale = gemm8.quantise(np.zeros((3, 40), FP16), q)
    assert (q == 0).all() and (scale > 0).all()


@pytest.mark.parametrize(
    "op, arguments, message",
    (
        ("scaled_matmul", {"scale_a": np.ones(2, np.float32)}, "scale_a"),
        ("scaled_matmul", {"scale_b": np.ones(4, FP16)}, "scale_b"),
        ("block_scaled_matmul", {"scale_a": np.ones((3, 2), np.float32)}, "scale_a"),
        ("block_scaled_matmul", {"scale_b": np.ones((2, 4), np.float32)}, "scale_b"),
    ),
)
def test_scales_that_do_not_fit_are_refused(gemm8: Bundle, op: str, arguments: dict, message: str):
    scales = (np.ones(3, np.float32), np.ones(4, np.float32))
    if op == "block_scaled_matmul":
        scales = (np.ones((3, 1), np.float32), np.ones((1, 1), np.float32))
    given = {"a": np.ones((3, 8), np.int8), "b": np.ones((8, 4), np.int8), "scale_a": scales[0], "scale_b": scales[1],
             "e": np.zeros((3, 4), FP16), **arguments}  # fmt: skip
    with pytest.raises(AotError, match=message):
        getattr(gemm8, op)(**given)
