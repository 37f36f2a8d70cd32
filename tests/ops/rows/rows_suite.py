"""Row-wise kernels against the fp64 references: tests for any device, of which a test module gives the fixture
`rows_for`. Arrays lie within others that hold NaN, and outputs hold NaN beforehand.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle, DeviceArray
from kernels.rows import reference
from kernels.tolerance import assert_close
from tests.support.poison import poisoned

FP16, BF16, FP32 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
INT8 = np.dtype(np.int8)
WIDTHS = (1, 3, 127, 512, 1000, 1024, 4096, 8192, 32768, 65536, 131072)
FAR = tuple(pytest.param(cols, marks=pytest.mark.slow) for cols in (65536, 131072))
"""Widths at which some ops do nothing else than below."""

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


@pytest.mark.parametrize("count", (1, 2, 15, 16, 17, 70))
@pytest.mark.parametrize("cols", (16, 100, 128, 500, 512))
def test_softmax_of_many_short_rows(rows_for: RowsFor, cols: int, count: int):
    check_softmax(rows_for(FP32), normal(np.random.default_rng(count), (count, cols), FP32))


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


SPECIAL = (-np.inf, np.inf, np.nan, 3e38, -3e38)


def with_special(special: float, cols: int, dtype: np.dtype) -> np.ndarray:
    """Rows with one special value, with usual ones, with nothing but special ones, and with usual ones again."""
    x = normal(np.random.default_rng(0), (4, cols), dtype)
    x[0, cols // 3] = x[2, :] = special
    return x


@pytest.mark.parametrize("cols", (100, 4096, 40000))
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
def test_special_values_stay_in_their_row(rows_for: RowsFor, dtype: np.dtype, special: float, cols: int):
    """Of an infinity, NaN or huge value the rows are what the references make of them; the others are as usual."""
    rows, x = rows_for(dtype), with_special(special, cols, dtype)
    check_softmax(rows, x)
    weight = np.ones(cols, dtype)
    for op in NORMS:
        found = getattr(rows, op)(x, weight).astype(np.float32)
        wanted = getattr(reference, f"{op}_same_dtype")(x, weight, eps=EPS[op]).astype(np.float32)
        assert np.isfinite(found[1::2]).all()
        np.testing.assert_allclose(found, wanted, 2**-7 if dtype == BF16 else 1e-4, 1e-6, equal_nan=True)


@pytest.mark.parametrize("cols", (100, 4096, 40000))
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("kind", ("int8", "float8"))
def test_special_values_do_not_disturb_other_quantised_rows(rows_for: RowsFor, kind: str, special: float, cols: int):
    rows = rows_for(BF16)
    x, weight = with_special(special, cols, BF16), np.ones(cols, BF16)
    results = []
    for given in (x[1::2], x):
        out = rows.device.array(np.zeros(given.shape, quantised(rows, kind)))
        scales = rows.rms_norm_quantised(rows.device.array(given), weight, out).numpy()
        results.append((scales, out.numpy().view(np.uint8)))
    (scales, values), (all_scales, all_values) = results
    assert np.array_equal(all_scales[1::2], scales) and np.array_equal(all_values[1::2], values)


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


@pytest.mark.parametrize("cols", (1, 100, 128, 512, 2048, 8192, 16384, 32768, 40000))
@pytest.mark.parametrize("op, biased", (("rms_norm", False), ("layer_norm", False), ("layer_norm", True)))
def test_norm_of_a_sum(rows_for: RowsFor, op: str, biased: bool, cols: int):
    rng = np.random.default_rng(cols)
    bias = {"bias": normal(rng, (cols,), BF16)} if biased else {}
    x, residual = (normal(rng, (3, cols), BF16) for _ in range(2))
    run_norm(rows_for(BF16), op, x, normal(rng, (cols,), BF16, 0.1), residual, zero_centred=True, **bias)


@pytest.mark.parametrize("count", (1, 15, 17, 400))
@pytest.mark.parametrize("cols", (16, 100, 128, 512))
@pytest.mark.parametrize("op", NORMS)
def test_norm_of_many_short_rows(rows_for: RowsFor, op: str, cols: int, count: int):
    rng = np.random.default_rng(cols)
    run_norm(rows_for(FP32), op, normal(rng, (count, cols), FP32), normal(rng, (cols,), FP32))


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


@pytest.mark.parametrize("cols", (3, 33, 512, 1000, 2048, 5000, 8192, 32768, 40000, *FAR))
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


# Rotary embedding


def angles(rng: np.random.Generator, positions: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    phases = rng.uniform(-np.pi, np.pi, (positions, pairs))
    return np.cos(phases).astype(np.float32), np.sin(phases).astype(np.float32)


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("heads", (1, 3, 32))
@pytest.mark.parametrize("head_dim, pairs", ((64, 32), (128, 64), (256, 128), (80, 40), (128, 16), (3, 1), (256, 48)))
@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
def test_rotary(rows_for: RowsFor, dtype: np.dtype, head_dim: int, pairs: int, heads: int, interleaved: bool):
    rows, rng = rows_for(dtype), np.random.default_rng(pairs)
    x = normal(rng, (5, heads, head_dim), dtype)
    cos, sin = angles(rng, 20, pairs)
    positions = np.array([0, 19, 7, 7, 3], np.int32)
    out = nan_output(rows, x.shape, dtype)
    rows.rotary(
        poisoned(rows, x), poisoned(rows, cos), poisoned(rows, sin), positions, interleaved=interleaved, out=out
    )
    given = (x, cos, sin, positions)
    exact = reference.rotary(*given, interleaved=interleaved)
    assert_close(out.numpy(), exact, reference.rotary_same_dtype(*given, interleaved=interleaved), 1e-6)
    if 2 * pairs < head_dim:
        assert np.array_equal(out.numpy()[..., 2 * pairs :], x[..., 2 * pairs :])


def test_a_rotation_by_a_right_angle_exchanges_elements(rows_for: RowsFor):
    x = np.arange(64, dtype=np.float32).reshape(1, 1, 64)
    cos, sin, first = np.zeros((1, 32), np.float32), np.ones((1, 32), np.float32), np.zeros(1, np.int32)
    rows = rows_for(FP32)
    halves = np.concatenate([-x[..., 32:], x[..., :32]], -1)
    assert np.array_equal(rows.rotary(x, cos, sin, first), halves)
    pairs = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    assert np.array_equal(rows.rotary(x, cos, sin, first, interleaved=True), pairs)


def test_positions_outside_of_the_table_take_its_ends(rows_for: RowsFor):
    rows, rng = rows_for(FP32), np.random.default_rng(0)
    x, (cos, sin) = normal(rng, (4, 2, 64), FP32), angles(rng, 6, 32)
    tables = [poisoned(rows, cos), poisoned(rows, sin)]
    outside, inside = (np.array(p, np.int32) for p in ([-1, 6, 2**31 - 1, -(2**31)], [0, 5, 5, 0]))
    given = rows.device.array(x)
    assert np.array_equal(rows.rotary(given, *tables, outside).numpy(), rows.rotary(given, *tables, inside).numpy())


def test_rotary_of_packed_heads(rows_for: RowsFor):
    """q and k as views of one matrix."""
    rows, rng = rows_for(BF16), np.random.default_rng(0)
    qkv, (cos, sin) = normal(rng, (3, 6, 64), BF16), angles(rng, 9, 32)
    positions = np.array([8, 1, 0], np.int32)
    whole = rows.device.array(qkv)
    for view in (slice(0, 4), slice(4, 5)):
        out = rows.rotary(whole[:, view], cos, sin, positions).numpy()
        given = (qkv[:, view], cos, sin, positions)
        assert_close(out, reference.rotary(*given), reference.rotary_same_dtype(*given), 1e-6)


# Gated activations

GATES = (("silu_mul", {}), ("gelu_mul", {}), ("gelu_mul", {"approximate": "tanh"}))


@pytest.mark.parametrize("cols", (1, 3, 127, 1000, 2048, 4096, 8192, 14336, *FAR))
@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
@pytest.mark.parametrize("op, options", GATES, ids=str)
def test_gates(rows_for: RowsFor, op: str, options: dict, dtype: np.dtype, cols: int):
    """Of halves of one matrix, as a product with joined weights leaves them."""
    rows, rng = rows_for(dtype), np.random.default_rng(cols)
    both = normal(rng, (3, 2 * cols), dtype, 3)
    whole = poisoned(rows, both)
    out = nan_output(rows, (3, cols), dtype)
    getattr(rows, op)(whole[:, :cols], whole[:, cols:], out=out, **options)
    gate, up = both[:, :cols], both[:, cols:]
    exact, same = (getattr(reference, f"{op}{suffix}")(gate, up, **options) for suffix in ("", "_same_dtype"))
    assert_close(out.numpy(), exact, same, 1e-6)


@pytest.mark.parametrize("op, options", GATES, ids=str)
def test_gates_at_the_ends(rows_for: RowsFor, op: str, options: dict):
    gate = np.array([[0, 1e4, -1e4, 1e30, -1e30, 3e38, np.inf, np.nan, 88, -88, -90, -104]], np.float32)
    found = getattr(rows_for(FP32), op)(gate, np.ones_like(gate), **options)
    assert np.array_equal(np.isnan(found), np.isnan(gate))
    assert np.allclose(found, np.maximum(gate, 0), atol=1e-30, equal_nan=True)


# Tables, casts, transposes


@pytest.mark.parametrize("cols", (1, 3, 127, 1000, 4096, 8192, *FAR))
@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
@pytest.mark.parametrize("kind", (np.int32, np.int64))
def test_embedding(rows_for: RowsFor, kind: type, dtype: np.dtype, cols: int):
    rows, rng = rows_for(dtype), np.random.default_rng(cols)
    table = normal(rng, (50, cols), dtype)
    limits = np.iinfo(kind)
    ids = np.array([0, 49, 7, 7, 50, -1, limits.max, limits.min], kind)
    out = nan_output(rows, (len(ids), cols), dtype)
    rows.embedding(poisoned(rows, table), ids, out=out)
    assert np.array_equal(out.numpy(), reference.embedding(table, ids))
    assert not out.numpy()[4:].any()


WIDE = (FP16, BF16, FP32)


@pytest.mark.parametrize("source, target", [(s, d) for s in WIDE for d in WIDE if s != d], ids=str)
def test_casts(cast_for: RowsFor, source: np.dtype, target: np.dtype):
    rows, rng = cast_for(source), np.random.default_rng(0)
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        65504,
        65520,
        1e5,
        3.3e38,
        6e-8,
        2.9e-8,
        1e-40,
        1 + 2**-9,
        1 + 3 * 2**-9,
    ]
    with np.errstate(over="ignore"):
        x = np.concatenate([special, rng.standard_normal(3 * 700 - len(special)) * 100]).astype(source).reshape(3, 700)
        wanted = x.astype(np.float32).astype(target)
    out = nan_output(rows, x.shape, target)
    rows.cast(poisoned(rows, x), out)
    assert np.array_equal(out.numpy(), wanted, equal_nan=True)
    assert np.array_equal(np.signbit(out.numpy().astype(np.float64)[0, :2]), [False, True])


@pytest.mark.parametrize("wide", WIDE, ids=str)
def test_casts_of_float8(cast_for: RowsFor, wide: np.dtype):
    """All 256 numbers one way, and there and back; larger ones saturate."""
    rows = cast_for(wide)
    dtype = quantised(rows, "float8")
    every = np.arange(256, dtype=np.uint8).view(dtype).reshape(1, 256)
    out = nan_output(rows, every.shape, wide)
    rows.cast(every, out)
    assert np.array_equal(out.numpy(), every.astype(np.float32).astype(wide), equal_nan=True)
    back = rows.device.array(np.zeros((1, 256), dtype))
    rows.cast(out, back)
    assert np.array_equal(back.numpy().astype(np.float32), every.astype(np.float32), equal_nan=True)
    most = reference.largest(dtype)
    x = np.array([[most * 1.01, -most * 2, np.inf, -np.inf, np.nan, 0.3, -0.07, 0.001]], wide)
    narrow = rows.device.array(np.zeros(x.shape, dtype))
    rows.cast(x, narrow)
    wanted = reference.cast_same_dtype(x, np.zeros(0, dtype)).astype(np.float32)
    assert np.array_equal(narrow.numpy().astype(np.float32), wanted, equal_nan=True)
    assert list(wanted[0, :4]) == [most, -most, most, -most]


@pytest.mark.parametrize(
    "shape", ((1, 1, 1), (2, 64, 64), (3, 63, 65), (1, 1, 300), (1, 300, 1), (2, 130, 48)), ids=str
)
@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
def test_transpose(rows_for: RowsFor, dtype: np.dtype, shape: tuple[int, ...]):
    rows, rng = rows_for(dtype), np.random.default_rng(0)
    x = normal(rng, shape, dtype)
    out = nan_output(rows, (shape[0], shape[2], shape[1]), dtype)
    rows.transpose(poisoned(rows, x), out=out)
    assert np.array_equal(out.numpy(), x.swapaxes(1, 2))


# Choosing tokens

VOCABULARIES = (1, 3, 127, 1000, 4096, 32000, 131072)


@pytest.mark.parametrize("cols", VOCABULARIES)
@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
def test_argmax(rows_for: RowsFor, dtype: np.dtype, cols: int):
    """In bfloat16 many are equal: the first wins."""
    rows = rows_for(dtype)
    x = normal(np.random.default_rng(cols), (5, cols), dtype)
    assert np.array_equal(rows.argmax(poisoned(rows, x)).numpy(), reference.argmax(x))


@pytest.mark.parametrize("cols", (40, 9000))
def test_argmax_of_special_values(rows_for: RowsFor, cols: int):
    x = np.full((7, cols), -np.inf, np.float32)
    x[1:] = -3
    x[1, 20:] = -2  # the first of equal ones
    x[2, [30, 35]] = np.inf
    x[3, [30, 35]] = np.inf, -np.nan
    x[4] = -0.0
    x[4, 7] = 0.0  # equal to those before it
    x[5, 39] = 1e-45
    x[6, [3, cols - 1]] = np.nan
    assert rows_for(FP32).argmax(x).tolist() == [0, 20, 30, 35, 0, 39, 3]


def parameters(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    return {
        "temperature": rng.uniform(0.2, 2, rows).astype(np.float32),
        "seeds": rng.integers(-(2**63), 2**63 - 1, rows),
        "positions": rng.integers(0, 2**31 - 1, rows, dtype=np.int32),
    }


def check_sample(rows: Bundle, x: np.ndarray, given: dict[str, np.ndarray]) -> np.ndarray:
    """The token has the largest score, or, where fp32 cannot tell, one that is as good as the largest."""
    tokens = rows.sample(poisoned(rows, x), **given).numpy()
    scores = reference.sample_scores(x, **given)
    chosen = np.take_along_axis(scores, tokens[:, None].astype(np.int64), 1)[:, 0]
    assert (chosen >= scores.max(1) - 1e-5 * np.maximum(1, np.abs(scores.max(1)))).all()
    return tokens


@pytest.mark.parametrize("cols", VOCABULARIES)
@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
def test_sample(rows_for: RowsFor, dtype: np.dtype, cols: int):
    rng = np.random.default_rng(cols)
    check_sample(rows_for(dtype), normal(rng, (6, cols), dtype, 3), parameters(rng, 6))


@pytest.mark.parametrize("cols", (3, 1000, 32000))
@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
def test_top_k_and_top_p(sample_for: RowsFor, dtype: np.dtype, cols: int):
    rng = np.random.default_rng(cols)
    x = normal(rng, (8, cols), dtype, 3)
    given = parameters(rng, 8)
    given["top_k"] = np.array([0, 1, 2, 40, 40, cols, 2**31 - 1, 500], np.int32)
    given["top_p"] = np.array([0.9, 1, 0.99, 1, 0.5, 0.95, 1, 0.0], np.float32)
    tokens = check_sample(sample_for(dtype), x, given)
    assert tokens[1] == x[1].astype(np.float32).argmax()


@pytest.mark.parametrize("cols", (100, 4096))
@pytest.mark.parametrize("limit", ("top_k", "top_p"))
def test_top_k_or_top_p_alone(rows_for: RowsFor, limit: str, cols: int):
    """As with the other at the value that keeps all."""
    rows, rng = rows_for(BF16), np.random.default_rng(cols)
    x, given = normal(rng, (6, cols), BF16, 3), parameters(rng, 6)
    limits = {"top_k": np.array([5], np.int32), "top_p": np.array([0.4], np.float32)}
    keeping_all = {"top_k": np.zeros(1, np.int32), "top_p": np.ones(1, np.float32)}
    tokens = check_sample(rows, x, given | {limit: limits[limit]})
    assert np.array_equal(tokens, rows.sample(x, **given | keeping_all | {limit: limits[limit]}))


def test_the_kept_set_is_exact(rows_for: RowsFor):
    """Over many seeds all of the kept columns are drawn, and no other."""
    rows, rng, draws = rows_for(FP32), np.random.default_rng(0), 512
    x = np.repeat(rng.permutation(100).astype(np.float32)[None] / 100, draws, 0)
    given = {"temperature": np.ones(1, np.float32), "seeds": np.arange(draws), "positions": np.zeros(draws, np.int32)}
    limits = {"top_k": np.array([10], np.int32), "top_p": np.array([1], np.float32)}
    assert set(rows.sample(x, **given, **limits)) == set(np.argsort(x[0])[-10:])
    limits = {"top_k": np.array([0], np.int32), "top_p": np.array([0.2], np.float32)}
    ordered = np.argsort(-x[0])
    mass = np.exp(x[0][ordered].astype(np.float64)).cumsum()
    count = 1 + int((mass < 0.2 * mass[-1]).sum())
    assert 5 < count < 30 and set(rows.sample(x, **given, **limits)) == set(ordered[:count])


def test_equal_logits_are_kept_together(rows_for: RowsFor):
    x = np.repeat(np.array([[2, 1, 2, 0, 2, 1.5, -np.inf]], np.float32), 256, 0)
    given = {"temperature": np.ones(1, np.float32), "seeds": np.arange(256), "positions": np.zeros(256, np.int32)}
    limits = {"top_k": np.array([2], np.int32), "top_p": np.array([0.1], np.float32)}
    assert set(rows_for(FP32).sample(x, **given, **limits)) == {0, 2, 4}


def test_frequencies_are_the_probabilities(rows_for: RowsFor):
    """A chi-squared test, over positions of one seed and over seeds."""
    draws, x = 8192, np.array([0, 0.7, 1.1, 2.3, -0.7, 3.4, -np.inf, 1.6], np.float32)
    probabilities = np.exp(x.astype(np.float64) / 0.7)
    expected = draws * probabilities / probabilities.sum()
    for seeds, positions in ((np.arange(draws), np.zeros(draws)), (np.full(draws, 5), np.arange(draws))):
        tokens = rows_for(FP32).sample(
            np.repeat(x[None], draws, 0),
            np.array([0.7], np.float32),
            seeds.astype(np.int64),
            positions.astype(np.int32),
        )
        counts = np.bincount(tokens, minlength=8)
        possible = expected > 0
        assert counts[~possible].sum() == 0
        assert ((counts - expected)[possible] ** 2 / expected[possible]).sum() < 24.3  # 0.1 % of 6 degrees of freedom


def test_what_is_drawn_depends_on_the_row_alone(rows_for: RowsFor):
    rows, rng = rows_for(FP32), np.random.default_rng(0)
    x, given = normal(rng, (6, 5000), FP32), parameters(rng, 6)
    tokens = rows.sample(x, **given)
    order = np.array([4, 1, 0])
    assert np.array_equal(rows.sample(x[order], **{name: value[order] for name, value in given.items()}), tokens[order])
    assert not np.array_equal(rows.sample(x, **given | {"positions": given["positions"] // 2}), tokens)
    assert not np.array_equal(rows.sample(x, **given | {"seeds": given["seeds"] // 2}), tokens)


@pytest.mark.parametrize("temperature", (0.0, 1e-30, -1.0))
def test_no_temperature_is_the_largest(rows_for: RowsFor, temperature: float):
    rows, rng = rows_for(FP32), np.random.default_rng(0)
    x, given = normal(rng, (4, 5000), FP32), parameters(rng, 4)
    given["temperature"] = np.array([temperature], np.float32)
    assert np.array_equal(rows.sample(x, **given), reference.argmax(x))
    limits = {"top_k": np.array([7], np.int32), "top_p": np.array([0.5], np.float32)}
    assert np.array_equal(rows.sample(x, **given, **limits), reference.argmax(x))


def test_nan_and_infinity_are_chosen(rows_for: RowsFor):
    rng = np.random.default_rng(0)
    x, given = normal(rng, (3, 5000), FP32), parameters(rng, 3)
    x[0, 4000], x[1, 3000], x[2] = np.nan, np.inf, -np.inf
    x[2, 7] = 0
    limits = {"top_k": np.array([7], np.int32), "top_p": np.array([0.5], np.float32)}
    for more in ({}, limits):
        assert rows_for(FP32).sample(x, **given, **more).tolist() == [4000, 3000, 7]


def test_philox_has_the_known_numbers():
    """Of the test vectors that its authors publish."""
    zeros, ones = (tuple(np.full(1, word, np.uint64) for _ in range(4)) for word in (0, 2**32 - 1))
    assert [int(word[0]) for word in reference.philox(zeros, 0)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    found = [int(word[0]) for word in reference.philox(ones, 2**64 - 1)]
    assert found == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
