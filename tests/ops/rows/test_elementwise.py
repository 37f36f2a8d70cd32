"""Rotary embedding, gated activations, tables, casts and transposes."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.rows import reference
from kernels.tolerance import assert_close
from tests.ops.rows.checking import check, normal
from tests.support.dtypes import BF16, FP16, FP32, INT8, eight_bits
from tests.support.poison import into_poison, poisoned

pytestmark = pytest.mark.sampled(3)


@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("heads", (1, 3, 32))
@pytest.mark.parametrize("head_dim, pairs", ((64, 32), (128, 64), (256, 128), (80, 40), (128, 16), (3, 1), (256, 48)))
def test_rotary(rows: Bundle, head_dim: int, pairs: int, heads: int, interleaved: bool, dtype: np.dtype):
    """Elements that are not rotated are copied. Positions outside of the table use its ends."""
    rng = np.random.default_rng(pairs)
    phases = rng.uniform(-np.pi, np.pi, (20, pairs))
    cos, sin = (f(phases).astype(np.float32) for f in (np.cos, np.sin))
    positions = np.array([0, 19, 7, 7, 3, -1, 20, 2**31 - 1, -(2**31)], np.int32)
    x = normal(rng, (len(positions), heads, head_dim), dtype)
    result = check(rows, "rotary", x=x, cos=cos, sin=sin, positions=positions, interleaved=interleaved)
    assert np.array_equal(result[..., 2 * pairs :], x[..., 2 * pairs :])


def test_a_rotation_by_a_right_angle_exchanges_elements(rows: Bundle):
    x = np.arange(64, dtype=np.float32).reshape(1, 1, 64)
    cos, sin, first = np.zeros((1, 32), np.float32), np.ones((1, 32), np.float32), np.zeros(1, np.int32)
    assert np.array_equal(rows.rotary(x, cos, sin, first), np.concatenate([-x[..., 32:], x[..., :32]], -1))
    pairs = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    assert np.array_equal(rows.rotary(x, cos, sin, first, interleaved=True), pairs)


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("head_dim, pairs", ((64, 32), (80, 40), (128, 16), (3, 1)))
def test_rotary_with_an_angle_for_each_element(rows: Bundle, head_dim: int, pairs: int, interleaved: bool):
    rng = np.random.default_rng(pairs)
    cos, sin = (normal(rng, (20, 2 * pairs), FP32) for _ in range(2))
    x, positions = normal(rng, (4, 3, head_dim), BF16), np.array([19, 0, 7, 20], np.int32)
    check(rows, "rotary_by_element", x=x, cos=cos, sin=sin, positions=positions, interleaved=interleaved)


@pytest.mark.parametrize("step", (1, 3, -1))
def test_positions_of_64_bits(rows: Bundle, step: int):
    """Kernels read their low halves, wherever these are."""
    rng = np.random.default_rng(4)
    cos, sin = (normal(rng, (9, 8), FP32) for _ in range(2))
    x, positions = normal(rng, (4, 2, 16), FP16), np.array([8, 0, 3, -1])
    spread = np.repeat(positions, 3) if step == 3 else positions[::step].copy()
    on_device = rows.device.array(spread)[::step]
    assert np.array_equal(on_device.numpy(), positions)
    found = rows.rotary(*map(rows.device.array, (x, cos, sin)), on_device).numpy()
    assert np.array_equal(found, rows.rotary(x, cos, sin, positions.astype(np.int32)))
    assert np.array_equal(found, rows.rotary(x, cos, sin, positions))


GATES = (("silu_mul", {}), ("gelu_mul", {}), ("gelu_mul", {"approximate": "tanh"}))


@pytest.mark.parametrize("op, options", GATES, ids=str)
@pytest.mark.parametrize("cols", (1, 3, 127, 1000, 2048, 4096, 8192, 14336))
@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
def test_gates(rows: Bundle, dtype: np.dtype, cols: int, op: str, options: dict):
    gate, up = (normal(np.random.default_rng(seed), (3, cols), dtype, 3) for seed in (0, 1))
    check(rows, op, gate=gate, up=up, **options)


@pytest.mark.parametrize("op, options", GATES, ids=str)
def test_gates_at_the_ends(rows: Bundle, op: str, options: dict):
    gate = np.array([[0, 1e4, -1e4, 1e30, -1e30, 3e38, np.inf, np.nan, 88, -88, -90, -104]], np.float32)
    found = getattr(rows, op)(gate, np.ones_like(gate), **options)
    assert np.allclose(found, np.maximum(gate, 0), atol=1e-30, equal_nan=True)


KINDS_OF_ACTIVATION = ("silu", "gelu", "gelu_tanh", "gelu_quick", "sigmoid", "relu", "relu_squared")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("gated", (False, True))
@pytest.mark.parametrize("cols", (1, 127, 4096))
@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
@pytest.mark.parametrize("kind", KINDS_OF_ACTIVATION)
def test_activations(rows: Bundle, kind: str, dtype: np.dtype, cols: int, gated: bool):
    x, up = (normal(np.random.default_rng(seed), (3, cols), dtype, 3) for seed in (0, 1))
    check(rows, "activate", x=x, **({"up": up} if gated else {}), kind=kind, threshold=0.5)


@pytest.mark.parametrize("kind", ("silu", "gelu_quick"))
def test_limited_activations(rows: Bundle, kind: str):
    """Only large values of x are limited, and both large and small ones of up; NaN stays."""
    x, up = (normal(np.random.default_rng(seed), (3, 1000), FP32, 9) for seed in (0, 1))
    x[0, 0] = up[0, 1] = np.nan
    found = rows.activate(x, up=up, kind=kind, limit=7.0)
    bounded = rows.activate(np.minimum(x, 7), up=np.clip(up, -7, 7), kind=kind)
    assert np.array_equal(found, bounded, equal_nan=True) and np.isnan(found[0, :2]).all()
    check(rows, "activate", x=x[1:], up=up[1:], kind=kind, limit=7.0)
    check(rows, "activate", x=x[1:], up=up[1:], kind=kind, limit=7.0, shift=1.0)
    assert np.array_equal(rows.activate(x, kind=kind, shift=1.0), rows.activate(x, kind=kind), equal_nan=True)


@pytest.mark.parametrize("kind", [kind for kind in KINDS_OF_ACTIVATION if kind != "sigmoid"])
def test_activations_at_the_ends(rows: Bundle, kind: str):
    x = np.array([[0, 1e4, -1e4, np.inf, np.nan, 88, -88, -104]], np.float32)
    found = rows.activate(x, kind=kind)
    wanted = np.maximum(x, 0)
    assert np.allclose(found, wanted**2 if kind == "relu_squared" else wanted, atol=1e-30, equal_nan=True)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "options",
    ({}, {"block": 64}, {"block": 100}, {"block": 64, "bound": 0.5}, {"scale": np.array([0.02], FP32)}),
    ids="-".join,
)
@pytest.mark.parametrize("kind", ("int8", "e4m3"))
@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
@pytest.mark.parametrize("cols", (33, 512, 2100))
def test_quantised_activations(rows: Bundle, cols: int, dtype: np.dtype, kind: str, options: dict):
    """By row, by block, and with one scale for all; one row is of zeros; scales may be stored by column."""
    rng, narrow = np.random.default_rng(cols), eight_bits(rows, kind)
    x, up = (normal(rng, (3, cols), dtype, 2) for _ in range(2))
    x[1] = 0
    given = {"x": x, "up": up, "q": np.zeros((3, cols), narrow), "kind": "gelu_tanh"} | options
    q = rows.device.array(given["q"])
    columns = -(-cols // options.get("block", cols))
    scales = rows.device.array(np.zeros((3, columns), FP32), order=(1, 0))
    rows.activate_quantised(**given | {"q": q}, scales=scales)
    exact, same = (reference.activate_quantised(**given), reference.activate_quantised_same_dtype(**given))
    assert_close(scales.numpy(), exact[1], same[1], 1e-7, "scales")
    assert_close(q.numpy().astype(np.float64), exact[0], same[0], 1e-3)
    assert not q.numpy()[1].astype(FP32).any()


@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
@pytest.mark.parametrize("shapes", (((3, 1), (1, 100)), ((1, 1), (3, 100)), ((1, 100), (1, 1))), ids=str)
@pytest.mark.parametrize("cols", (100, 4096))
def test_multiply_add(rows: Bundle, cols: int, shapes: tuple, dtype: np.dtype):
    rng = np.random.default_rng(cols)
    x = normal(rng, (3, cols), dtype)
    a, b = (normal(rng, (height, cols if width > 1 else 1), dtype) for height, width in shapes)
    check(rows, "multiply_add", x=x, a=a, b=b)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cols", (1, 3, 127, 1000, 4096, 8192))
@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
@pytest.mark.parametrize("kind", (np.int32, np.int64))
def test_embedding(rows: Bundle, kind: type, dtype: np.dtype, cols: int):
    """Ids outside of the table give zeros."""
    limits = np.iinfo(kind)
    ids = np.array([0, 49, 7, 7, 50, -1, limits.max, limits.min], kind)
    table = normal(np.random.default_rng(cols), (50, cols), dtype)
    result = check(rows, "embedding", floor=0, shape=(len(ids), cols), table=table, ids=ids)
    assert not result[4:].any()


@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
def test_embedding_with_a_scale(rows: Bundle, dtype: np.dtype):
    """The scale is rounded to the table's dtype first: 50.6 is 50.5 in bfloat16."""
    table = normal(np.random.default_rng(0), (9, 1000), dtype)
    check(rows, "embedding", floor=0, shape=(3, 1000), table=table, ids=np.array([8, 0, 9], np.int64), scale=50.6)


SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65520, 1e5, 3.3e38, 6e-8, 2.9e-8, 1e-40, 1 + 2**-9,
           1 + 3 * 2**-9, 242.0, 241, -450, -500, 0.3, -0.07, 0.001)  # fmt: skip
KINDS = {"float16": FP16, "bfloat16": BF16, "float32": FP32, "e4m3": None}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("source, target", [(s, d) for s in KINDS for d in KINDS if s != d], ids=str)
def test_casts(rows: Bundle, source: str, target: str):
    """Casts are exact; values too large for a float8 become its largest. From a float8, all 256 values are cast."""
    narrow = eight_bits(rows, "e4m3")
    every = np.arange(256, dtype=np.uint8).view(narrow)
    to = KINDS[target] or narrow
    numbers = np.concatenate([SPECIAL, every.astype(np.float64), 100 * np.random.default_rng(0).standard_normal(423)])
    with np.errstate(over="ignore", invalid="ignore"):
        x = every[None] if source == "e4m3" else numbers.astype(KINDS[source]).reshape(2, 350)
    placed = poisoned(rows, x)
    found = into_poison(rows, x.shape, to, lambda out: rows.cast(placed, out)).astype(np.float64)
    wanted = reference.cast_same_dtype(x, np.zeros(0, to)).astype(np.float64)
    assert np.array_equal(found, wanted, equal_nan=True) and np.array_equal(np.isnan(found), np.isnan(x))
    zeros = wanted == 0
    assert np.array_equal(np.signbit(found[zeros]), np.signbit(wanted[zeros]))
    assert target != "e4m3" or np.nanmax(np.abs(found)) == reference.largest(narrow)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", (BF16, FP16, FP32, INT8), ids=str)
@pytest.mark.parametrize("shape", ((3, 63, 65), (1, 1, 1), (1, 1, 300), (1, 300, 1), (2, 64, 64), (2, 99, 48)), ids=str)
def test_transpose(rows: Bundle, shape: tuple[int, ...], dtype: np.dtype):
    x = normal(np.random.default_rng(0), shape, dtype, 30)
    check(rows, "transpose", floor=0, shape=(shape[0], shape[2], shape[1]), x=x)
