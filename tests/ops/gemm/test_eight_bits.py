"""Products of 8-bit matrices, SmoothQuant's layers, and quantisation to 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.gemm import reference
from kernels.gemm.reference import SCALED, largest
from kernels.tolerance import assert_close
from tests.ops.gemm.checking import LAYOUTS, check, check_int8, matrix, on_device
from tests.support.choices import configs, with_few_units
from tests.support.dtypes import BF16, FP16, FP32, INT8, INT32, eight_bits
from tests.support.poison import into_poison

pytestmark = pytest.mark.sampled(2)

SHAPES = ((33, 65, 70), (1, 17, 129), (127, 65, 257), (33, 3, 70), (100, 70, 500), (128, 128, 128), (16, 64, 256))


# Integers


@pytest.mark.sampled(2)
@pytest.mark.parametrize("addend", (None, "full", "row", "column"))
@pytest.mark.parametrize("a_columns, b_columns", LAYOUTS[::-1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype, splits", ((INT8, 1), (INT32, 1), (INT8, 3)), ids=str)
def test_integer_matmul(
    gemm: Bundle, dtype: np.dtype, splits: int, shape: tuple[int, int, int], a_columns: bool, b_columns: bool,
    addend: str | None,
):  # fmt: skip
    """Sums exceed what fp32 holds; with int32 some wrap."""
    (m, n, k), rng, scale = shape, np.random.default_rng(1), 1 if dtype == INT8 else 997
    a, b = matrix(rng, (m, k), dtype, a_columns) * scale, matrix(rng, (k, n), dtype, b_columns) * scale
    more = {}
    if addend:
        extents = {"full": (m, n), "row": (1, n), "column": (m, 1)}[addend]
        more = {"d": rng.integers(-(2**27), 2**27, extents).astype(np.int32), "alpha": 3, "beta": -5}
    check(gemm, "integer_matmul", INT32, {"splits": splits}, a=a, b=b, **more)


@pytest.mark.sampled(0)
def test_the_largest_sum_fits(gemm: Bundle):
    a = np.full((1, 131071), -128, np.int8)
    assert (gemm.integer_matmul(a, np.ascontiguousarray(a.T)) == 131071 * 2**14).all()


# Scaled


@pytest.mark.parametrize("addend, activation", (("column", "silu"), ("full", "none"), (None, "none"), ("row", "gelu")))
@pytest.mark.parametrize("b_columns, per_row", ((True, False), (False, True), (True, True)))
@pytest.mark.parametrize("kind", ("e5m2", "int8", "e4m3"))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scaled_matmul(
    gemm: Bundle, shape: tuple[int, int, int], kind: str, b_columns: bool, per_row: bool, addend: str | None,
    activation: str,
):  # fmt: skip
    (m, n, k), rng, dtype = shape, np.random.default_rng(3), eight_bits(gemm, kind)
    a, b, bias = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, b_columns), matrix(rng, (n,), FP16)
    scale_a = rng.uniform(1e-3, 1e-2, m if per_row else 1).astype(np.float32)
    scale_b = rng.uniform(0.5, 2, n if per_row else 1).astype(np.float32)
    d = matrix(rng, {"full": (m, n), "row": (1, n), "column": (m, 1)}[addend], FP16) if addend else None
    more = {"bias": bias, "d": d, "beta": -1.5, "activation": activation}
    check(gemm, "scaled_matmul", FP16, a=a, b=b, scale_a=scale_a, scale_b=scale_b, **more)


@pytest.mark.parametrize("b_columns", (True, False))
@pytest.mark.parametrize("kind", ("e4m3", "int8"))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_column_major_a(gemm: Bundle, shape: tuple[int, int, int], kind: str, b_columns: bool):
    (m, n, k), rng, dtype = shape, np.random.default_rng(15), eight_bits(gemm, kind)
    a, b = matrix(rng, (m, k), dtype, True), matrix(rng, (k, n), dtype, b_columns)
    scale_a, scale_b = rng.uniform(1e-3, 1e-2, m).astype(FP32), rng.uniform(0.5, 2, n).astype(FP32)
    check(gemm, "scaled_matmul", FP32, a=a, b=b, scale_a=scale_a, scale_b=scale_b)


@pytest.mark.parametrize("b_columns", (True, False))
@pytest.mark.parametrize("a_columns", (True, False))
def test_results_of_int32_are_truncated(gemm: Bundle, a_columns: bool, b_columns: bool):
    rng = np.random.default_rng(16)
    a, b = matrix(rng, (33, 70), INT8, a_columns), matrix(rng, (70, 48), INT8, b_columns)
    scale_a, scale_b = rng.integers(1, 9, 33).astype(FP32), np.full(1, 2**-9, FP32)
    e = into_poison(gemm, (33, 48), INT32, lambda e: gemm.scaled_matmul(
        *(on_device(gemm, x) for x in (a, b, scale_a, scale_b)), e))  # fmt: skip
    assert np.array_equal(e, np.trunc(reference.scaled_matmul(a, b, scale_a, scale_b)))


@pytest.mark.parametrize("one", (False, True), ids=("by_row", "of_all"))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_zeros_of_a(gemm: Bundle, shape: tuple[int, int, int], one: bool):
    """The product is the exact one of a less its zeros, although k * zero * colsum exceeds what fp32 holds."""
    (m, n, k), rng = shape, np.random.default_rng(17)
    a, b = matrix(rng, (m, k), INT8), matrix(rng, (k, n), INT8, True)
    zero = rng.integers(-128, 128, 1 if one else m).astype(INT32)
    given = {"a": a, "b": b, "scale_a": rng.uniform(1e-3, 1e-2, m).astype(FP32), "scale_b": np.ones(1, FP32)}
    more = {"zero_a": zero, "colsum": b.astype(INT32).sum(0, dtype=INT32), "bias": matrix(rng, (n,), FP16)}
    exact = reference.scaled_matmul(**given, **more)
    less = reference.scaled_matmul(**given | {"a": a.astype(float) - zero[:, None]}, bias=more["bias"])
    assert np.allclose(exact, less, rtol=1e-12)
    check(gemm, "scaled_matmul", FP16, **given, **more)


@pytest.mark.parametrize("shared", (False, True))
@pytest.mark.parametrize("a_columns, b_columns", LAYOUTS)
@pytest.mark.parametrize("kind", ("int8", "e4m3"))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batched_scaled_matmul(
    gemm: Bundle, shape: tuple[int, int, int], kind: str, a_columns: bool, b_columns: bool, shared: bool
):
    (m, n, k), rng, dtype = shape, np.random.default_rng(18), eight_bits(gemm, kind)
    batch, of_b = 3, 1 if shared else 3
    a, b = matrix(rng, (batch, m, k), dtype, a_columns), matrix(rng, (of_b, k, n), dtype, b_columns)
    scale_a = rng.uniform(1e-3, 1e-2, (batch, 1 if shared else m)).astype(FP32)
    scale_b = rng.uniform(0.5, 2, (of_b, n)).astype(FP32)
    bias = (matrix(rng, (of_b, n), FP32) * 4096).astype(BF16)  # as large as products
    check(gemm, "batched_scaled_matmul", BF16, a=a, b=b, scale_a=scale_a, scale_b=scale_b, bias=bias)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows_per_scale", (128, 1))
@pytest.mark.parametrize("kind", ("int8", "e4m3"))
@pytest.mark.parametrize("shape", ((130, 136, 384), (1, 200, 300), (256, 128, 128), (129, 17, 127)), ids=str)
def test_block_scaled_matmul(gemm: Bundle, shape: tuple[int, int, int], kind: str, rows_per_scale: int):
    (m, n, k), rng, dtype = shape, np.random.default_rng(4), eight_bits(gemm, kind)
    blocks = -(-k // SCALED)
    check(
        gemm, "block_scaled_matmul", FP16, a=matrix(rng, (m, k), dtype), b=matrix(rng, (k, n), dtype, True),
        scale_a=rng.uniform(1e-3, 1e-2, (-(-m // rows_per_scale), blocks)).astype(np.float32),
        scale_b=rng.uniform(0.5, 2, (blocks, -(-n // SCALED))).astype(np.float32), rows_per_scale=rows_per_scale,
    )  # fmt: skip


@pytest.mark.on("emulator", "rocm")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ("int8", "e4m3"))
def test_large_tiles_of_scaled_blocks(gemm: Bundle, kind: str, monkeypatch: pytest.MonkeyPatch):
    """Tiles have many rows and columns on a device with few compute units."""
    with_few_units(gemm, monkeypatch, 2)
    m, n, k, rng, dtype = 130, 80, 240, np.random.default_rng(5), eight_bits(gemm, kind)
    given = {"a": matrix(rng, (m, k), dtype), "b": matrix(rng, (k, n), dtype, True),
             "scale_a": rng.uniform(1e-3, 1e-2, (m, 2)).astype(np.float32),
             "scale_b": rng.uniform(1e-3, 1e-2, (2, 1)).astype(np.float32)}  # fmt: skip
    placed = {name: on_device(gemm, array) for name, array in given.items()}
    large = "tile_64x64" if gemm.index.target.arch == "gfx942" and kind == "e4m3" else "wide"
    assert configs(gemm, "block_scaled_matmul", **placed, e=gemm.device.empty((m, n), FP16)) == [large]
    check(gemm, "block_scaled_matmul", FP16, **given)


# SmoothQuant


@pytest.mark.sampled(1)
@pytest.mark.parametrize("addend", ("full", "column", "row"))
@pytest.mark.parametrize("op", ("int8_linear_relu", "int8_linear", "int8_linear_float32"))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_linear(gemm: Bundle, shape: tuple[int, int, int], op: str, addend: str):
    """Some results saturate."""
    (m, n, k), rng, dtype = shape, np.random.default_rng(6), FP32 if op.endswith("float32") else INT8
    d = matrix(rng, {"full": (m, n), "row": (1, n), "column": (m, 1)}[addend], dtype)
    check(gemm, op, dtype, a=matrix(rng, (m, k), INT8), w=matrix(rng, (n, k), INT8), d=d, alpha=0.02 / k**0.5, beta=0.3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("op", ("int8_bmm", "int8_bmm_float32"))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_bmm(gemm: Bundle, shape: tuple[int, int, int], op: str):
    """Some results saturate."""
    (m, n, k), rng, dtype = shape, np.random.default_rng(6), FP32 if op.endswith("float32") else INT8
    a, w = matrix(rng, (3, m, k), INT8), matrix(rng, (3, n, k), INT8)
    check(gemm, op, dtype, a=a, w=w, alpha=0.02 / k**0.5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op, m, batch, config", (
    ("int8_linear", 48, (), "middle"), ("int8_linear", 16, (), "short"), ("int8_bmm", 144, (3,), "middle"),
    ("int8_bmm", 144, (80,), "wide"),
))  # fmt: skip
def test_tiles_of_few_rows_and_matrices(gemm: Bundle, op: str, m: int, batch: tuple[int, ...], config: str):
    rng, n, k = np.random.default_rng(7), 80, 272
    given = {"a": matrix(rng, (*batch, m, k), INT8), "w": matrix(rng, (*batch, n, k), INT8)}
    given |= {} if batch else {"d": matrix(rng, (m, n), INT8)}
    wanted = "wide" if gemm.index.target.arch != "gfx942" and config == "middle" else config
    placed = {name: on_device(gemm, array) for name, array in given.items()}
    assert configs(gemm, op, **placed, e=gemm.device.empty((*batch, m, n), INT8), alpha=1.0) == [wanted]
    if batch != (80,):  # which takes an emulator long
        check(gemm, op, INT8, **given, alpha=0.02 / k**0.5)


def test_ties_round_to_even_and_what_is_large_saturates(gemm: Bundle):
    """Results are n + 1/2 for all n, exactly; a bias takes some over the ends."""
    a = np.arange(-128, 128, dtype=np.int8)[:, None]
    w, d = np.full((2, 1), 1, np.int8), np.array([[0, 127]], np.int8)
    result = gemm.int8_linear(a, w, d, alpha=1.5, beta=1.0)
    exact = reference.int8_linear(a, w, d, 1.5, 1.0)
    assert np.array_equal(result, np.rint(np.clip(exact, -128, 127)).astype(np.int8))
    assert (np.abs(exact % 1) == 0.5).sum() > 200 and result.max() == 127 and result.min() == -128


def test_no_products_of_8_bits(gemm: Bundle):
    """k = 0 leaves what is added."""
    rng, a, b = np.random.default_rng(14), np.zeros((3, 0), np.int8), np.zeros((0, 20), np.int8)
    d, one, addend = matrix(rng, (3, 20), INT32), np.ones(1, np.float32), matrix(rng, (1, 20), INT8)
    for splits in (0, 1, 3):
        check(gemm, "integer_matmul", INT32, {"splits": splits}, a=a, b=b, d=d, beta=-7)
    more = {"scale_a": one, "scale_b": one, "bias": matrix(rng, (20,), FP16), "d": d.astype(FP16), "beta": 2.0}
    check(gemm, "scaled_matmul", FP16, a=a, b=b, **more)
    check(gemm, "int8_linear", INT8, a=a, w=b.T, d=addend, alpha=1.0)


@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
@pytest.mark.parametrize("shape", ((5, 33), (3, 1024), (1, 1), (2, 2500)), ids=str)
def test_layer_norm_int8(gemm: Bundle, shape: tuple[int, int], dtype: np.dtype):
    rng = np.random.default_rng(8)
    weight, bias = (rng.uniform(20, 60, shape[1]).astype(np.float32) for _ in range(2))
    check(gemm, "layer_norm_int8", INT8, x=(matrix(rng, shape, dtype) * 3 + 5).astype(dtype), weight=weight, bias=bias)


# Quantisers


def check_quantised(gemm: Bundle, op: str, x: np.ndarray, kind: str, **options: Any) -> None:
    scales: list[Any] = []
    given = on_device(gemm, x)
    call = getattr(gemm, op)
    q = into_poison(gemm, x.shape, eight_bits(gemm, kind), lambda q: scales.append(call(given, q, **options)))
    exact, same = (getattr(reference, f"{op}{suffix}")(x, q, **options) for suffix in ("", "_same_dtype"))
    assert_close(scales[0].numpy(), exact[1], same[1], 1e-7 * float(exact[1].max()), "scale")
    if q.dtype == INT8:
        check_int8(q, exact[0])
        assert q.min() > -128
    else:
        assert_close(q.astype(np.float32), exact[0], same[0], 0, "q")
    assert np.abs(q.astype(np.float32)).max() == largest(q.dtype)


@pytest.mark.parametrize("kind", ("int8", "e4m3"))
@pytest.mark.parametrize(
    "shape, block, rows", (((40, 300), 128, 1), ((5, 33), None, 1), ((130, 260), 128, 128), ((7, 64), 32, 3),
                           ((6, 1040), None, 6), ((3, 2500), None, 1)), ids=str,
)  # fmt: skip
def test_quantise(gemm: Bundle, shape: tuple[int, int], block: int | None, rows: int, kind: str):
    x = matrix(np.random.default_rng(9), shape, FP16)
    x[:rows, :10] = 0
    check_quantised(gemm, "quantise", x, kind, rows_per_scale=rows, **({"block": block} if block else {}))


@pytest.mark.parametrize("kind", ("int8", "e4m3"))
@pytest.mark.parametrize("block", (32, 33))
def test_bounds_and_powers_of_two(gemm: Bundle, block: int, kind: str):
    """Values beyond the bound saturate. Scales that are powers of two already stay; they may be stored by column."""
    x, dtype = matrix(np.random.default_rng(9), (5, 100), FP32), eight_bits(gemm, kind)
    x[0] = np.clip(x[0], -0.25, 0.25)
    x[1, 0] = largest(dtype)
    for how in ({"bound": 1.5}, {"powers_of_two": True}, {"bound": 0.7, "powers_of_two": True}):
        q = np.zeros(x.shape, dtype)
        scale = gemm.device.array(np.zeros((5, -(-100 // block)), FP32), order=(1, 0))
        placed = on_device(gemm, q)
        gemm.quantise(on_device(gemm, x), placed, block=block, **how, scale=scale)
        same = reference.quantise_same_dtype(x, q, block, **how)
        assert np.array_equal(scale.numpy(), same[1])
        assert np.array_equal(placed.numpy().astype(FP32), same[0].astype(FP32))
        if "powers_of_two" in how:
            assert (np.log2(same[1]) % 1 == 0).all() and (same[1] < 2 * np.maximum(np.abs(x).max(), 1)).all()
            assert "bound" in how or same[1][1, 0] == 1


@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
@pytest.mark.parametrize("shape", ((5, 33), (3, 1040), (1, 1), (4, 2500)), ids=str)
def test_quantise_shifted(gemm: Bundle, shape: tuple[int, int], dtype: np.dtype):
    x = (matrix(np.random.default_rng(20), shape, dtype) + 1).astype(dtype)
    x[0] = -3
    others: list[Any] = []
    q = into_poison(gemm, shape, INT8, lambda q: others.extend(gemm.quantise_shifted(on_device(gemm, x), q=q)[1:]))
    scale, zero = (array.numpy() for array in others)
    exact, same = reference.quantise_shifted(x), reference.quantise_shifted_same_dtype(x)
    assert_close(scale, exact[1], same[1], 1e-7 * float(exact[1].max()), "scale")
    assert (np.abs(zero - same[2]) <= 1).all() and (np.abs(q - same[0].astype(int)) <= 1).all()
    back = (q.astype(float) - zero[:, None]) * scale[:, None]
    assert (np.abs(back - x.astype(float)) <= 0.51 * scale[:, None] + 1e-6).all()
    assert all(row.min() == -128 and row.max() == 127 for row in q[1:])


@pytest.mark.parametrize("kind", ("e4m3", "int8"))
def test_scales_and_numbers_are_quotients_rounded_once(gemm: Bundle, kind: str):
    """The scale is the nearest fp32, and numbers are rounded half to even: 22.5 is 216 times the scale of 25 in
    e4m3fnuz, a tie."""
    x = np.random.default_rng(12).standard_normal((200, 64)).astype(FP16)
    x[0] = 0
    x[0, :2] = 25, 22.5
    q = np.zeros(x.shape, eight_bits(gemm, kind))
    wide = x.astype(np.float32)
    scale = np.abs(wide).max(1) / np.float32(largest(q.dtype))
    assert np.array_equal(gemm.quantise(x, q)[:, 0], scale)
    value = wide / scale[:, None]
    assert np.array_equal(q, (np.rint(value) if q.dtype == INT8 else value).astype(q.dtype))
    of_all = gemm.quantise_all(x, q)
    assert of_all[0] == np.abs(wide).max() / np.float32(largest(q.dtype))
    if q.dtype == np.dtype("float8_e4m3fnuz"):
        gemm.quantise(x, q)
        assert scale[0] == np.float32(25 / 240) and q[0, :2].tolist() == [240, 224]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ("e4m3", "int8"))
@pytest.mark.parametrize("shape", ((70, 600), (1, 1), (5, 33), (4500, 3)), ids=str)
def test_quantise_all(gemm: Bundle, shape: tuple[int, int], kind: str):
    check_quantised(gemm, "quantise_all", matrix(np.random.default_rng(10), shape, FP16), kind)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ("e4m3", "int8"))
@pytest.mark.parametrize("shape", ((5, 33), (1, 600), (70, 64)), ids=str)
def test_quantise_static(gemm: Bundle, shape: tuple[int, int], kind: str):
    """Values too large for the scale saturate: a calibrated scale may be too small for a call."""
    x, dtype = matrix(np.random.default_rng(11), shape, FP16), eight_bits(gemm, kind)
    x[0, :3] = 60000, -60000, 0
    scale = np.array([2.5 / largest(dtype)], np.float32)
    given = [on_device(gemm, array) for array in (x, scale)]
    q = into_poison(gemm, shape, dtype, lambda q: gemm.quantise_static(given[0], q, given[1]))
    exact, same = (getattr(reference, f"quantise_static{suffix}")(x, q, scale) for suffix in ("", "_same_dtype"))
    if dtype == INT8:
        check_int8(q, exact)
    else:
        assert_close(q.astype(np.float32), exact, same, 0, "q")
    assert (q[0, :3].astype(np.float32) == [largest(dtype), -largest(dtype), 0]).all()


@pytest.mark.parametrize("zero", (-255, 54, 2**31 - 1, -(2**31)))
def test_quantise_static_with_a_zero(gemm: Bundle, zero: int):
    """Codes are rounded, then shifted, and saturate: neither a large value nor a large zero wraps."""
    x, scale = matrix(np.random.default_rng(21), (5, 33), FP32), np.array([0.1], FP32)
    large = 3e38 if abs(zero) < 1000 else 3e5
    x[0, :4] = large, -large, 0.25, 0.15
    q = into_poison(gemm, x.shape, INT8, lambda q: gemm.quantise_static(
        on_device(gemm, x), q, scale, zero=np.array([zero], INT32)))  # fmt: skip
    assert np.array_equal(q, reference.quantise_static_same_dtype(x, q, scale, np.array([zero], INT32)))


def test_zeros_are_quantised_to_zeros(gemm: Bundle):
    q = np.full((3, 40), 5, np.int8)
    assert (gemm.quantise(np.zeros((3, 40), FP16), q) > 0).all() and (q == 0).all()
