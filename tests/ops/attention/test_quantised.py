"""Attention of int8 and float8 tensors, from gfx942 code objects on the emulator in strict mode."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle, NoVariantError
from aot_runtime.caches import quantise_heads
from kernels.attention.reference import attention
from tests.ops.attention.cases import Array, Call, Placed
from tests.ops.attention.quantised import CASES, Quantised, check, make_call, placed, run


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_reference(quantised: Bundle, case: Quantised):
    check(quantised, make_call(case, quantised.device.arch))


def out_of(bundle: Bundle, case: Quantised, rows: slice = slice(None), keys: Array | None = None) -> Array:
    """What a case gives for some of its queries, with its keys in another order."""
    call = make_call(replace(case, return_lse=False), bundle.device.arch)
    order = np.arange(case.lengths[1]) if keys is None else keys
    inputs = {name: item if isinstance(item, np.ndarray) else item.values for name, item in call.inputs.items()}
    cut = {"q": inputs["q"][:, :, rows], "k": inputs["k"][:, :, order], "v": inputs["v"][:, :, order]}
    again = {name: placed(x, "bhsd", rows=name != "v" or case.v_rows) for name, x in cut.items()}
    out = placed(call.outputs["out"].values[:, :, rows], "bhsd")
    return run(bundle, Call(call.op, call.inputs | again, {"out": out}, call.scalars))["out"]


def test_int8_probabilities_depend_neither_on_blocks_nor_on_their_order(quantised: Bundle):
    """Bit for bit: a call of few queries has other blocks than one of many."""
    case = Quantised("int8", int8_p=True)
    whole = out_of(quantised, case)
    shuffled = out_of(quantised, case, keys=np.random.default_rng(1).permutation(100))
    np.testing.assert_array_equal(shuffled, whole)
    np.testing.assert_array_equal(out_of(quantised, case, slice(0, 20)), whole[:, :, :20])


@pytest.mark.parametrize(("case", "bound"), (
    (Quantised("int8"), 2e-2), (Quantised("int8", int8_p=True), 5e-2), (Quantised("int8_kv"), 2e-2),
    (Quantised("fp8"), 0.14),
), ids=str)  # fmt: skip
def test_stands_for_what_was_quantised(quantised: Bundle, case: Quantised, bound: float):
    """Within 2e-2 of the unquantised result, as perf-kernels' int8 is to be, where probabilities keep 11 bits."""
    rng = np.random.default_rng(0)
    q, (k, v) = rng.standard_normal((2, 2, 70, 64)), rng.standard_normal((2, 2, 1, 100, 64))
    call = make_call(case, quantised.device.arch)
    inputs = dict(call.inputs)
    for name, x in (("q", q), ("k", k), ("v", v)):
        dtype = call.inputs[name].values.dtype
        if f"{name}_scale" in inputs:
            numbers, inputs[f"{name}_scale"] = quantise_heads(x, dtype)
        else:
            numbers = x.astype(dtype)
        inputs[name] = placed(numbers, "bhsd")
    out = run(quantised, replace(call, inputs=inputs))["out"]
    assert np.abs(out - attention(q, k, v, scale=0.125)).max() <= bound


def refused(bundle: Bundle, case: Quantised, error: type[Exception], message: str, **changes: Array | None) -> None:
    call = make_call(replace(case, return_lse=False), bundle.device.arch)
    tensors = {name: x.values if isinstance(x, Placed) else x for name, x in (call.inputs | call.outputs).items()}
    given = {name: x for name, x in (tensors | changes).items() if x is not None}
    before = bundle.device.driver.last
    with pytest.raises(error, match=message):
        getattr(bundle, call.op)(**given, **call.scalars)
    assert bundle.device.driver.last is before, "something was launched"


def test_scales_that_are_missing(quantised: Bundle):
    for op, name in (("int8", "q_scale"), ("int8", "v_scale"), ("int8_kv", "k_scale"), ("fp8", "v_scale")):
        refused(quantised, Quantised(op), TypeError, f"missing.*'{name}'", **{name: None})


def test_float8_of_the_wrong_flavour(quantised: Bundle):
    wrong = np.zeros((2, 2, 70, 64), ml_dtypes.float8_e4m3fn)
    changes = {"q": wrong, "k": wrong[:, :1], "v": wrong[:, :1]}
    refused(quantised, Quantised("fp8"), NoVariantError, "gfx942 have float8_e4m3fnuz", **changes)
    refused(
        quantised, Quantised("fp8"), ArgumentError, "'k' is float8_e4m3fn, but 'q' is float8_e4m3fnuz", k=changes["k"]
    )


def test_tensors_that_do_not_fit(quantised: Bundle):
    ones = np.ones((1, 3), np.float32)
    refused(quantised, Quantised("int8"), ArgumentError, "'q_scale' has shape .* is 3, but must be 2", q_scale=ones)
    refused(
        quantised,
        Quantised("int8"),
        ArgumentError,
        "'q' is float16; allowed: int8",
        q=np.zeros((2, 2, 70, 64), np.float16),
    )
    refused(quantised, Quantised("int8"), ArgumentError, "'out' is float32; allowed: float16, bfloat16",
            out=np.zeros((2, 2, 70, 64), np.float32))  # fmt: skip
    many = np.zeros((2, 1, 131073, 1), np.int8)
    refused(quantised, Quantised("int8", head_dim=1, int8_p=True), ArgumentError, "seqlen_k <= 131072", k=many, v=many)
