"""Faults in the kernels of softmax and norms: comparison with the references notices each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.rows import reference
from kernels.tolerance import assert_close
from tests.support.op_bundles import OpBundles
from tests.support.planted_faults import Plant, assert_noticed
from tests.support.poison import poisoned

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(3)]

LAYER, LONG = "layer_norm", 20001  # a row of several steps
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "softmax": ("softmax", 50, {}), "scaled": ("softmax", 50, {"scale": -40.0}),
    "masked": ("softmax", 50, {"mask": True}), "long masked": ("softmax", LONG, {"mask": True}),
    "long softmax": ("softmax", LONG, {}), "rms": ("rms_norm", 50, {}), "layer": (LAYER, 50, {"bias": True}), "zero-centred": (LAYER, 50, {"zero_centred": True}),
    "fused": (LAYER, 50, {"residual": True}), "long layer": (LAYER, LONG, {}), "long rms": ("rms_norm", LONG, {}),
    "long fused": (LAYER, LONG, {"residual": True}), "quantised": ("layer_norm_quantised", 50, {"bias": True}),
}  # fmt: skip

FAULTS = {
    "maximum not subtracted": ("scaled", "softmax", "_exp(scores - tl.max(scores, 1)[:, None])", "_exp(scores)"),
    "padding counted": ("softmax", "softmax", 'tl.where(inside, values, float("-inf"))', "values"),
    "one column too many": ("softmax", "softmax", "    inside = (row < rows) & (columns < cols)",
        "    inside = (row < rows) & (columns <= cols)"),
    "a row left out": ("softmax", "softmax", "    inside = (row < rows)", "    inside = (row < rows - 1)"),
    "packed out": ("softmax", "softmax", "tl.store(out.ptr + row * out.stride_rows", "tl.store(out.ptr + row * cols"),
    "base 2": ("softmax", "softmax", "x * LOG2_E", "x"),
    "scale left out": ("scaled", "softmax", "to(tl.float32) * scale", "to(tl.float32)"),
    "first row's mask for all": ("masked", "softmax", "mask.ptr + row * mask.stride_rows", "mask.ptr + 0 * row"),
    "an absent mask hides all": ("softmax", "softmax", "mask=there, other=1", "mask=there, other=0"),
    "sum not rescaled": ("long softmax", "softmax", "lane_sum * _exp(lane_max - origin)", "lane_sum"),
    "lanes not rescaled": ("long softmax", "softmax", "lane_sum * _exp(lane_max - row_max)", "lane_sum"),
    "no origin in a lane of -inf": ("long masked", "softmax", 'tl.where(new_max == float("-inf"), 0.0, new_max)',
        "new_max"),
    "one too many in the mean": ("layer", "norm", "(tl.sum(values, 1) / cols)", "(tl.sum(values, 1) / (cols + 1))"),
    "padding in the variance": ("layer", "norm",
        "tl.where(inside, values - (tl.sum(values, 1) / cols)[:, None], 0.0)",
        "values - (tl.sum(values, 1) / cols)[:, None]"),
    "no eps": ("rms", "norm", "tl.sum(values * values, 1) / cols + eps", "tl.sum(values * values, 1) / cols"),
    "bias left out": ("layer", "norm",
        "tl.load(bias + columns, mask=inside & given(bias), other=0.0).to(tl.float32)", "0.0"),
    "zero_centred left out": ("zero-centred", "norm", " + zero_centred.to(tl.float32)", ""),
    "sum not rounded": ("fused", "norm", "total = rounded.to(tl.float32)", "total += added.to(tl.float32)"),
    "sum not written": ("fused", "norm",
        "tl.store(residual.ptr + row * residual.stride_rows + columns, rounded, mask=there)", "pass"),
    "sum written in each pass": ("long fused", "norm", "        if WRITE_BACK:\n", "        if True:\n"),
    "no eps in long rows": ("long rms", "norm", "(lane_squares, 0) / cols + eps", "(lane_squares, 0) / cols"),
    "short lanes counted as others": ("long layer", "norm", "(cols - block + STEP - 1) // STEP",
        "(cols + STEP - 1) // STEP"),
    "lanes not joined": ("long layer", "norm", "lane_squares += lane_count * (lane_mean - mean) * (lane_mean - mean)",
        "pass"),
    "Welford's second factor": ("long layer", "norm", "delta * (values - lane_mean)", "delta * delta"),
    "scale without sign": ("quantised", "norm", "inside, tl.abs(values), 0.0)", "inside, values, 0.0)"),
}  # fmt: skip


def check(rows: Bundle, name: str) -> None:
    op, cols, options = CASES[name]
    rng, dtype = np.random.default_rng(0), np.dtype(np.float16)
    norm = "norm" in op
    x, residual = ((3 * norm + 2 * rng.standard_normal((5, cols))).astype(dtype) for _ in range(2))
    x[:, 1] -= 30 * norm  # the largest magnitude is a negative number's
    weight, bias = (rng.standard_normal(cols).astype(dtype) for _ in range(2))
    known = {"mask": rng.random(x.shape) < 0.5, "residual": residual, "bias": bias}
    options = {key: known.get(key, value) for key, value in options.items()} | ({"eps": 0.25} if norm else {})
    inputs = {"x": x} | ({"weight": weight} if norm else {})
    inputs |= {key: options.pop(key) for key in known if key in options}
    inputs |= {"out": np.zeros(x.shape, np.int8)} if "quantised" in op else {}
    wholes = {key: poisoned(rows, value) for key, value in inputs.items()}
    out = wholes.setdefault("out", poisoned(rows, np.full(x.shape, np.nan, dtype)))
    returned = getattr(rows, op)(**wholes, **options)
    exact, same = (getattr(reference, f"{op}{suffix}")(**inputs, **options) for suffix in ("", "_same_dtype"))
    if isinstance(exact, np.ndarray):
        exact, same = (exact,), (same,)
    actual = (out, returned) if "quantised" in op else (wholes["residual"], out) if "residual" in inputs else (out,)
    for result, wanted, like in zip(actual, exact, same, strict=True):
        assert_close(result.numpy(), wanted, like, 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_right_kernels_pass(op_bundles: OpBundles, name: str):
    check(op_bundles.open("rows", f"op={CASES[name][0]},T=float16"), name)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_noticed(planted: Plant, fault: str):
    name, file, right, wrong = FAULTS[fault]
    bundle = planted("rows", f"op={CASES[name][0]},T=float16", f"rows/{file}.py", right, wrong)
    assert_noticed(lambda: check(bundle, name))
