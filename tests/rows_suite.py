"""Row-wise kernels against the fp64 references: tests for any device, of which a test module gives the fixture
`rows_for`. Arrays lie within others that hold NaN, and outputs hold NaN beforehand.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from poison import poisoned

from aot_runtime import ArgumentError, Bundle, DeviceArray
from kernels.rows import reference
from kernels.tolerance import assert_close

FP16, BF16, FP32 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
INT8 = np.dtype(np.int8)
WIDTHS = (1, 3, 127, 512, 1000, 1024, 4096, 8192, 32768, 65536, 131072)

RowsFor = Callable[[np.dtype], Bundle]
"""The bundle with kernels for a dtype: bfloat16 and float32 for all ops, float16 for some."""


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(dtype)


def nan_output(bundle: Bundle, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
    return bundle.device.array(np.full(shape, np.nan, dtype))


def check_softmax(rows: Bundle, x: np.ndarray, **options: object) -> None:
    out = nan_output(rows, x.shape, x.dtype)
    given = {name: poisoned_mask(rows, value) if name == "mask" else value for name, value in options.items()}
    rows.softmax(poisoned(rows, x), out=out, **given)
    exact, same = reference.softmax(x, **options), reference.softmax_same_dtype(x, **options)
    finite = np.where(np.isfinite(exact), exact, 0)
    assert_close(out.numpy(), exact, same, 1e-6 * float(finite.max(initial=0)))


def poisoned_mask(rows: Bundle, mask: np.ndarray) -> DeviceArray:
    """A view with True around it."""
    whole = np.ones((mask.shape[0] + 4, mask.shape[1] + 16), bool)
    whole[2:-2, : mask.shape[1]] = mask
    return rows.device.array(whole)[2:-2, : mask.shape[1]]


NORMS = ("rms_norm", "layer_norm")
EPS = {"rms_norm": 1e-6, "layer_norm": 1e-5}


# Softmax


@pytest.mark.parametrize("cols", WIDTHS)
@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
def test_softmax(rows_for: RowsFor, dtype: np.dtype, cols: int):
    x = normal(np.random.default_rng(cols), (5, cols), dtype, 4)
    check_softmax(rows_for(dtype), x)


@pytest.mark.parametrize("rows", (1, 2, 15, 16, 17, 70))
@pytest.mark.parametrize("cols", (16, 100, 128, 500, 512))
def test_softmax_of_many_short_rows(rows_for: RowsFor, cols: int, rows: int):
    check_softmax(rows_for(FP32), normal(np.random.default_rng(rows), (rows, cols), FP32))


@pytest.mark.parametrize("scale", (0.125, -3.0, 100.0, 0.0))
@pytest.mark.parametrize("cols", (100, 1024, 40000))
@pytest.mark.parametrize("shared", (False, True))
def test_softmax_scaled_and_masked(rows_for: RowsFor, cols: int, shared: bool, scale: float):
    rng = np.random.default_rng(cols)
    mask = rng.random((1 if shared else 6, cols)) < 0.5
    mask[:, cols // 2] = True
    if not shared:
        mask[3] = False
    check_softmax(rows_for(FP32), normal(rng, (6, cols), FP32, 2), mask=mask, scale=scale)


@pytest.mark.parametrize("cols", (100, 4096, 40000))
@pytest.mark.parametrize("special", (-np.inf, np.inf, np.nan, 3e38, -3e38))
def test_special_values_stay_in_their_row(rows_for: RowsFor, special: float, cols: int):
    """Of an infinity, NaN or huge value the rows are what the references make of them; the others are as usual."""
    x = normal(np.random.default_rng(0), (4, cols), FP32)
    x[0, cols // 3] = x[2, :] = special
    rows = rows_for(FP32)
    check_softmax(rows, x)
    weight = np.ones(cols, np.float32)
    for op in NORMS:
        found = getattr(rows, op)(x, weight)
        wanted = getattr(reference, f"{op}_same_dtype")(x, weight, eps=EPS[op])
        assert np.isfinite(found[1::2]).all() and np.array_equal(np.isnan(found), np.isnan(wanted))


# Norms


def run_norm(
    rows: Bundle, op: str, x: np.ndarray, weight: np.ndarray, residual: np.ndarray | None = None, **options: object
) -> None:
    """With NaN around inputs, and the residual's surroundings unchanged."""
    options = {"eps": EPS[op], **options}
    bias = {"bias": options.pop("bias")} if "bias" in options else {}
    out = nan_output(rows, x.shape, x.dtype)
    inout = None if residual is None else poisoned(rows, residual)
    given = {"x": poisoned(rows, x), "weight": weight, **bias, "residual": inout, "out": out}
    getattr(rows, op)(**{name: value for name, value in given.items() if value is not None}, **options)
    exact, same = (
        getattr(reference, f"{op}{suffix}")(x, weight, **bias, residual=residual, **options)
        for suffix in ("", "_same_dtype")
    )
    if residual is not None:
        (total, exact), (_, same) = exact, same
        assert np.array_equal(inout.numpy(), total)
    assert_close(out.numpy(), exact, same, 2e-6)


@pytest.mark.parametrize("cols", WIDTHS)
@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
@pytest.mark.parametrize("op", NORMS)
def test_norm(rows_for: RowsFor, op: str, dtype: np.dtype, cols: int):
    rng = np.random.default_rng(cols)
    bias = {"bias": normal(rng, (cols,), dtype)} if op == "layer_norm" else {}
    run_norm(rows_for(dtype), op, normal(rng, (3, cols), dtype, 3), normal(rng, (cols,), dtype), **bias)


@pytest.mark.parametrize("cols", (100, 128, 512, 2048, 8192, 16384, 32768, 40000))
@pytest.mark.parametrize("op", NORMS)
def test_norm_of_a_sum(rows_for: RowsFor, op: str, cols: int):
    rng = np.random.default_rng(cols)
    bias = {"bias": normal(rng, (cols,), BF16)} if op == "layer_norm" else {}
    x, residual = (normal(rng, (3, cols), BF16) for _ in range(2))
    run_norm(rows_for(BF16), op, x, normal(rng, (cols,), BF16, 0.1), residual, zero_centred=True, **bias)


@pytest.mark.parametrize("rows", (1, 15, 17, 400))
@pytest.mark.parametrize("cols", (16, 100, 128, 512))
@pytest.mark.parametrize("op", NORMS)
def test_norm_of_many_short_rows(rows_for: RowsFor, op: str, cols: int, rows: int):
    rng = np.random.default_rng(cols)
    run_norm(rows_for(FP32), op, normal(rng, (rows, cols), FP32), normal(rng, (cols,), FP32))


@pytest.mark.parametrize("op", NORMS)
def test_norm_without_bias_and_with_a_large_eps(rows_for: RowsFor, op: str):
    rng = np.random.default_rng(3)
    run_norm(rows_for(FP32), op, normal(rng, (3, 1000), FP32), normal(rng, (1000,), FP32), eps=10.0)


@pytest.mark.parametrize("cols", (1024, 40000))
def test_statistics_do_not_cancel(rows_for: RowsFor, cols: int):
    """Values far from zero: a variance from a sum of squares would be noise."""
    rng = np.random.default_rng(0)
    x = (1000 + rng.standard_normal((3, cols))).astype(np.float32)
    x[:, 0] = -1000  # nor is the first value near the mean
    weight = np.ones(cols, np.float32)
    found = rows_for(FP32).layer_norm(x, weight)
    exact = reference.layer_norm(x, weight, eps=1e-5)
    assert np.abs(found - exact).max() < 3e-3


def quantised(rows: Bundle, kind: str) -> np.dtype:
    """int8, or the float8 that the arch has."""
    if kind == "int8":
        return INT8
    return np.dtype(ml_dtypes.float8_e4m3fnuz if rows.device.arch == "gfx942" else ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize("cols", (33, 512, 2048, 5000, 8192, 32768, 40000))
@pytest.mark.parametrize("residual", (False, True))
@pytest.mark.parametrize("kind", ("int8", "float8"))
@pytest.mark.parametrize("op", NORMS)
def test_quantised_norm(rows_for: RowsFor, op: str, kind: str, residual: bool, cols: int):
    rows, rng = rows_for(BF16), np.random.default_rng(cols)
    dtype = quantised(rows, kind)
    x, added = (normal(rng, (3, cols), BF16) for _ in range(2))
    x[1] = added[1] = 0  # a row without a scale
    arrays = {"x": x, "weight": normal(rng, (cols,), BF16), "out": np.zeros((3, cols), dtype)}
    if op == "layer_norm":
        arrays["bias"] = np.zeros(cols, BF16)
    if residual:
        arrays["residual"] = added
    given = {name: rows.device.array(value) for name, value in arrays.items()}
    scale = getattr(rows, f"{op}_quantised")(**given)
    arrays["eps"] = EPS[op]
    exact, same = (getattr(reference, f"{op}_quantised{suffix}")(**arrays) for suffix in ("", "_same_dtype"))
    assert_close(scale.numpy(), exact[-1], same[-1], 1e-7, "row_scales")
    found = given["out"].numpy().astype(np.float64)
    assert_close(found, exact[0], same[0], 1e-3)
    assert (found != same[0].astype(np.float64)).mean() < 0.01, "other than where rounding decides"
    assert (np.abs(found).max(1) == [reference.largest(dtype), 0, reference.largest(dtype)]).all()
    if residual:
        assert np.array_equal(given["residual"].numpy(), exact[1])


def test_a_residual_of_another_shape_is_refused(rows_for: RowsFor):
    x = np.zeros((2, 32), np.float32)
    with pytest.raises(ArgumentError, match="cols"):
        rows_for(FP32).rms_norm(x, np.ones(32, np.float32), residual=np.zeros((2, 33), np.float32))
