"""Softmax, and norms with all their options."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.rows import reference
from kernels.tolerance import assert_close
from tests.ops.rows.checking import CALLS, EPS, NORMS, check, given, normal
from tests.support.choices import configs, with_few_units
from tests.support.dtypes import BF16, FP16, FP32, eight_bits
from tests.support.poison import poisoned

pytestmark = pytest.mark.sampled(2)

WIDTHS = (1, 3, 127, 128, 512, 1000, 1024, 2048, 4096, 5001, 8192, 16384, 32768, 40001, 131072)
"""Widths with variants of their own, with elements that can be loaded together and without."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op, vectors", CALLS)
@pytest.mark.parametrize("cols", WIDTHS)
@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
def test_every_width(rows: Bundle, dtype: np.dtype, cols: int, op: str, vectors: str):
    check(rows, op, **given(np.random.default_rng(cols), op, vectors, (5, cols), dtype))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("op, vectors", CALLS)
@pytest.mark.parametrize("seed", range(20))
def test_random_rows(rows: Bundle, op: str, vectors: str, seed: int):
    """Rows of any length and number are right."""
    rng = np.random.default_rng([42, seed])
    count, cols = (round(np.exp(rng.uniform(0, np.log(most)))) for most in (40, 20000))
    dtype = (BF16, FP16, FP32)[int(rng.integers(3))]
    check(rows, op, **given(rng, op, vectors, (count, cols), dtype))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("op, vectors", CALLS)
@pytest.mark.parametrize("count", (1, 2, 15, 16, 17, 400))
@pytest.mark.parametrize("cols", (16, 100, 128, 500, 512))
def test_many_short_rows(rows: Bundle, cols: int, count: int, op: str, vectors: str):
    """Short rows share workgroups."""
    check(rows, op, **given(np.random.default_rng(count), op, vectors, (count, cols), FP32))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("op, vectors", CALLS[1:])
@pytest.mark.parametrize("count, cols", ((16 * 8, 16), (4 * 8, 500), (4 * 8, 512), (64, 1024)))
def test_programs_take_several_tiles(rows: Bundle, count: int, cols: int, op: str, vectors: str):
    """Programs loop over tiles. count: rows for each compute unit."""
    shape, rng = (count * rows.device.properties.num_cus + 21, cols), np.random.default_rng(0)
    check(rows, op, **given(rng, op, vectors, shape, BF16), residual=normal(rng, shape, BF16))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scale", (0.125, 100.0, 0.0, -3.0))
@pytest.mark.parametrize("cols", (100, 1024, 40000))
@pytest.mark.parametrize("shared", (False, True))
def test_softmax_scaled_and_masked(rows: Bundle, shared: bool, cols: int, scale: float):
    rng = np.random.default_rng(cols)
    mask = rng.random((1 if shared else 6, cols)) < 0.5
    mask[:, cols // 2] = True
    if not shared:
        mask[3] = False
    check(rows, "softmax", x=normal(rng, (6, cols), FP32, 2), mask=mask, scale=scale)


@pytest.mark.on("emulator", "hip")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("op, vectors", CALLS)
@pytest.mark.parametrize("count, parts", ((1, 8), (4, 2), (5, 1)))
def test_parts_of_long_rows(
    rows: Bundle, op: str, vectors: str, count: int, parts: int, monkeypatch: pytest.MonkeyPatch
):
    """Nine steps are shared by eight parts, three of which are empty, by two, and by none; one part is hidden."""
    with_few_units(rows, monkeypatch, 8)
    rng, shape = np.random.default_rng(count), (count, 70000)
    options = given(rng, op, vectors, shape, FP32)
    if op == "softmax":
        options["mask"] = np.ones(shape, bool)
        options["mask"][:, :20000] = False
    else:
        options["residual"] = normal(rng, shape, FP32)
    assert len(configs(rows, op, **options)) == (1 if parts == 1 else 2)
    check(rows, op, **options)


@pytest.mark.parametrize("op, vectors", CALLS[1:])
@pytest.mark.parametrize("cols", (1, 100, 128, 512, 2048, 8192, 16384, 32768, 40000))
def test_norm_of_a_sum(rows: Bundle, cols: int, op: str, vectors: str):
    rng = np.random.default_rng(cols)
    options = given(rng, op, vectors, (3, cols), BF16) | {"eps": 0.1, "zero_centred": True}
    check(rows, op, **options, residual=normal(rng, (3, cols), BF16))


@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
@pytest.mark.parametrize("cols", (100, 500, 1024, 40000))
def test_temperatures(rows: Bundle, cols: int, dtype: np.dtype):
    """A temperature for each row divides scale * x; one for all may be given, too."""
    rng = np.random.default_rng(cols)
    temperature = np.array((0.1, 0.5, 1, 7, 1e5), FP32)
    x, mask = normal(rng, (5, cols), dtype, 2), rng.random((5, cols)) < 0.5
    result = check(rows, "softmax", x=x, temperature=temperature, scale=0.7)
    assert np.argmax(result[:4].astype(FP32), 1).tolist() == np.argmax(x[:4].astype(FP32), 1).tolist()
    check(rows, "softmax", x=x, temperature=temperature[1:2], mask=mask)


@pytest.mark.parametrize("cols", (1024, 40000))
def test_statistics_do_not_cancel(rows: Bundle, cols: int):
    """Values far from zero: a variance from a sum of squares would be noise."""
    rng = np.random.default_rng(0)
    x = (1000 + rng.standard_normal((3, cols))).astype(np.float32)
    x[:, 0] = -1000  # nor is the first value near the mean
    check(rows, "layer_norm", x=x, weight=np.ones(cols, np.float32), eps=1e-5)


QUANTISED = (("int8", BF16), ("e4m3", BF16), ("e5m2", FP16), ("int8", FP32), ("e4m3", FP32))


@pytest.mark.parametrize("residual", (False, True))
@pytest.mark.parametrize("kind, source", QUANTISED, ids=str)
@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("cols", (3, 33, 512, 1000, 2048, 5000, 8192, 32768, 40000))
def test_quantised_norm(rows: Bundle, cols: int, op: str, kind: str, source: np.dtype, residual: bool):
    """With a residual, and with factors of the columns."""
    dtype, rng = eight_bits(rows, kind), np.random.default_rng(cols)
    x, added = (normal(rng, (3, cols), source) for _ in range(2))
    x[1] = added[1] = 0  # a row without a scale
    arrays = {"x": x, "weight": normal(rng, (cols,), source), "out": np.zeros((3, cols), dtype)}
    arrays |= {"bias": np.zeros(cols, source)} if op == "layer_norm" else {}
    arrays |= {"residual": added, "smooth": rng.uniform(0.5, 2, cols).astype(FP32)} if residual else {}
    placed = {name: rows.device.array(value) for name, value in arrays.items()}
    scale = getattr(rows, f"{op}_quantised")(**placed)
    exact, same = (
        getattr(reference, f"{op}_quantised{suffix}")(**arrays, eps=EPS[op]) for suffix in ("", "_same_dtype")
    )
    assert_close(scale.numpy(), exact[-1], same[-1], 1e-7, "row_scales")
    found = placed["out"].numpy().astype(np.float64)
    assert_close(found, exact[0], same[0], 1e-3)
    assert (found != same[0].astype(np.float64)).mean() < 0.01, "other than where rounding decides"
    assert (np.abs(found).max(1) == [reference.largest(dtype), 0, reference.largest(dtype)]).all()
    assert not residual or np.array_equal(placed["residual"].numpy(), exact[1])


def test_factors_of_columns_apply_to_the_bias(rows: Bundle):
    """Rows of 0 are normalised to the bias, which is what the factors multiply."""
    x, bias, smooth = np.zeros((2, 64), BF16), np.ones(64, BF16), np.linspace(0.5, 4, 64, dtype=FP32)
    out = rows.device.array(np.zeros((2, 64), np.int8))
    scales = rows.layer_norm_quantised(x, np.ones(64, BF16), out=out, bias=bias, smooth=smooth)
    assert np.array_equal(scales, np.full(2, 4 / np.float32(127), FP32))
    assert np.array_equal(out.numpy(), np.rint(np.tile(smooth, (2, 1)) / scales[:, None]).astype(np.int8))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("block, bound", ((1, 0), (64, 0), (100, 0.5), (128, 0)))
@pytest.mark.parametrize("kind, source", (("int8", BF16), ("e4m3", BF16), ("e4m3", FP32)), ids=str)
@pytest.mark.parametrize("cols", (33, 512, 5000))
def test_norm_with_scales_of_blocks(rows: Bundle, cols: int, kind: str, source: np.dtype, block: int, bound: float):
    rng, dtype = np.random.default_rng(cols), eight_bits(rows, kind)
    x, added = (normal(rng, (3, cols), source) for _ in range(2))
    x[1] = added[1] = 0
    arrays = {"x": x, "weight": normal(rng, (cols,), source), "out": np.zeros((3, cols), dtype), "residual": added}
    placed = {name: rows.device.array(value) for name, value in arrays.items()}
    options = {"block": block, "bound": bound, "eps": 0.1, "zero_centred": True}
    scales = rows.device.array(np.zeros((3, -(-cols // block)), FP32), order=(1, 0))
    rows.rms_norm_block_quantised(**placed, **options, scales=scales)
    exact, same = (getattr(reference, f"rms_norm_block_quantised{end}")(**arrays, **options)
                   for end in ("", "_same_dtype"))  # fmt: skip
    assert_close(scales.numpy(), exact[2], same[2], 1e-7, "scales")
    assert_close(placed["out"].numpy().astype(np.float64), exact[0], same[0], 1e-3)
    assert np.array_equal(placed["residual"].numpy(), exact[1])


@pytest.mark.parametrize("how", ({"scale": np.array([0.02], np.float32)}, {"bound": 1.5}), ids="-".join)
@pytest.mark.parametrize("kind", ("int8", "e4m3"))
@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("cols", (100, 64, 40000))
def test_static_and_bounded_scales(rows: Bundle, cols: int, op: str, kind: str, how: dict[str, object]):
    """Values beyond the scale saturate, and row_scales has the scale that was given."""
    rng, dtype = np.random.default_rng(cols), eight_bits(rows, kind)
    arrays = {
        "x": normal(rng, (3, cols), BF16),
        "weight": normal(rng, (cols,), BF16),
        "out": np.zeros((3, cols), dtype),
    }
    arrays |= {"residual": normal(rng, (3, cols), BF16)}
    arrays |= {"bias": np.zeros(cols, BF16)} if op == "layer_norm" else {}
    placed = {name: rows.device.array(value) for name, value in arrays.items()}
    scales = getattr(rows, f"{op}_quantised")(**placed, **how).numpy()
    exact, same = (
        getattr(reference, f"{op}_quantised{suffix}")(**arrays, **how, eps=EPS[op]) for suffix in ("", "_same_dtype")
    )
    assert_close(scales, exact[-1], same[-1], 1e-7, "row_scales")
    assert_close(placed["out"].numpy().astype(np.float64), exact[0], same[0], 1e-3)
    assert np.abs(exact[0]).max() <= reference.largest(dtype)


@pytest.mark.parametrize("kind", ("int8", "e4m3"))
@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("cols", (64, 40000))
def test_scales_of_quantised_norms_are_quotients_rounded_once(rows: Bundle, cols: int, op: str, kind: str):
    """Rows of 1 and -1 are normalised to themselves exactly, so that each scale is that of the weights."""
    rng, out = np.random.default_rng(cols), np.zeros((1, cols), eight_bits(rows, kind))
    x = np.where(np.arange(cols) % 2, 1, -1).astype(BF16)[None]
    bias = {"bias": np.zeros(cols, BF16)} if op == "layer_norm" else {}
    for _ in range(8):
        weight = normal(rng, (cols,), BF16)
        scale = getattr(rows, f"{op}_quantised")(x, weight, **bias, out=out, eps=0)
        assert scale[0] == np.abs(weight.astype(np.float32)).max() / np.float32(reference.largest(out.dtype))


SPECIAL = (-np.inf, np.inf, np.nan, 3e38, -3e38)


def with_special(special: float, cols: int, dtype: np.dtype) -> np.ndarray:
    """Make rows with one special value, with usual ones, with nothing but special ones, and with usual ones again."""
    x = normal(np.random.default_rng(0), (4, cols), dtype)
    x[0, cols // 3] = x[2, :] = special
    return x


@pytest.mark.parametrize("op", ("softmax", *NORMS))
@pytest.mark.parametrize("cols", (100, 4096, 40000))
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
def test_special_values_stay_in_their_row(rows: Bundle, dtype: np.dtype, special: float, cols: int, op: str):
    """Rows with an infinity, NaN or huge value are as in the references; the others are as usual."""
    x, weight = with_special(special, cols, dtype), np.ones(cols, dtype)
    if op == "softmax":
        check(rows, op, x=x)
        return
    found = getattr(rows, op)(x, weight).astype(np.float32)
    wanted = getattr(reference, f"{op}_same_dtype")(x, weight, eps=EPS[op]).astype(np.float32)
    assert np.isfinite(found[1::2]).all()
    np.testing.assert_allclose(found, wanted, 2**-7 if dtype == BF16 else 1e-4, 1e-6, equal_nan=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cols", (100, 40000, 4096))
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("kind", ("int8", "e4m3"))
def test_special_values_do_not_disturb_other_quantised_rows(rows: Bundle, kind: str, special: float, cols: int):
    x, weight = with_special(special, cols, BF16), np.ones(cols, BF16)
    results = []
    for taken in (x[1::2], x):
        out = rows.device.array(np.zeros(taken.shape, eight_bits(rows, kind)))
        scales = rows.rms_norm_quantised(rows.device.array(taken), weight, out).numpy()
        results.append((scales, out.numpy().view(np.uint8)))
    (scales, values), (all_scales, all_values) = results
    assert np.array_equal(all_scales[1::2], scales) and np.array_equal(all_values[1::2], values)


@pytest.mark.slow
@pytest.mark.on("emulator")
def test_every_variant_of_softmax():
    from tests.support.emulation.bundling import on_demand  # a GPU machine has no emulator
    from tests.support.on_demand import key_of

    bundle, seen = on_demand("rows", "op=softmax"), set()
    for dtype in (FP16, BF16, FP32):
        for cols in (16, 128, 256, 1024, 2048, 4096, 8192, 16384, 20000, 40000, 17, 250, 1001, 20001):
            x = normal(np.random.default_rng(cols), (3, cols), dtype, 4)
            decision = bundle.softmax.decide({"x": poisoned(bundle, x).layout}, {})
            seen |= {key_of(launch.variant) for launch in decision.launches}
            check(bundle, "softmax", x=x)
    assert seen == {key_of(variant) for variant in bundle.index.variants}
