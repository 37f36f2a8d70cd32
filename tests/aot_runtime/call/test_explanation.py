"""What is said of a call: why it gets its variants, with no device, and with arrays."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from aot_runtime.bundle.reading import read_index
from aot_runtime.call.callspec import CallSpec, plan_call
from aot_runtime.call.explanation import explain_call, explain_decision
from aot_runtime.call.op import build_op
from aot_runtime.call.planner import op_planner
from aot_runtime.contract import records
from aot_runtime.device.device import Device
from aot_runtime.device.drivers.base import DeviceProperties
from aot_runtime.errors import ArgumentError, NoVariantError

CALL = CallSpec(dims={"rows": 8, "cols": 128}, dtypes={"T": "float16"}, scalars={"seed": "1"})


def explained(index: records.Index, call: CallSpec, num_cus: int | None = 64, op: str = "reduce") -> list[str]:
    planner = op_planner(index, op)
    return explain_decision(planner, plan_call(index, planner, call, num_cus), index.blobs).splitlines()


def changed(**fields: Any) -> CallSpec:
    return dataclasses.replace(CALL, **fields)


def test_every_step_of_a_decision_is_said(sample: records.Index):
    assert (
        explained(sample, CALL)
        == """\
reduce on gfx942 with 64 compute units
tensors:
  x      float16[8, 128] strides [128, 1]
  total  float16[8] strides [1]
dims:
  rows  8
  cols  128
scalars:
  seed            1
  scale           0.08838834764831845
  rounding        nearest
  return_largest  False
derived:
  splits  1 = cdiv(cols, 4096)
workspace:
  partial  32 bytes, zeroed
specialisation: aligned
axes:
  T         float16, the dtype of x, weight, total
  WEIGHTED  False, being given(weight) = False, of False, True
  WIDTH     256, the smallest that is >= min(cols, 4096) = 128, of 64, 256, 4096
launch 0: reduce_rows of code/bbbbbbbbbbbbbbbb.hsaco
  not config 0 'long': cols > 1024 and not WEIGHTED does not hold (WEIGHTED=False, cols=128)
  not config 1 'wide': num_cus > 100 and cols > 64 does not hold (cols=128, num_cus=64)
  config 2 'base': BLOCK=32, num_warps=4
  grid 1 x 1 x 1 (cdiv(rows, BLOCK), splits, 1)
  block 256 threads (4 waves of 64), LDS 512 bytes
  kernargs, 72 bytes:
       0  x                 *float16  address of x
       8  partial           *float32  address of partial
      16  default           i1        False = return_largest
      24  register          fp64      64.0 = cols / 2
      32  tiny              i8        3
      34  small             u16       7
      36  rows              i32       8
      40  seed              i64       1
      48  scale             fp32      0.08838834764831845
      52  stride_x_rows     i32       128 = stride(x, 0)
      56  .global_scratch   *int8     0, as it needs no scratch
      64  .profile_scratch  *int8     0, as it needs no scratch
launch 1: add_partial is left out: splits > 1 does not hold (splits=1)""".splitlines()
    )


def test_the_config_that_is_chosen_says_why(sample: records.Index):
    lines = explained(sample, CALL, num_cus=304)
    chosen = next(line for line in lines if line.startswith("  config"))
    assert chosen.startswith("  config 1 'wide', as num_cus > 100 and cols > 64 (cols=128, num_cus=304): BLOCK=64, ")
    assert not any("not config 1" in line for line in lines)


def test_a_config_that_holds_and_was_not_built_is_named(sample: records.Index):
    lines = explained(sample, changed(dtypes={"T": "bfloat16"}), num_cus=304)
    passed_over = next(line for line in lines if "config 1" in line)
    reason = "it serves this call, but no variant of it is in the bundle for these axis values"
    assert passed_over.endswith(f"'wide': {reason}")


def test_a_dtype_is_given_by_its_variable_or_by_a_tensor(sample: records.Index):
    assert explained(sample, changed(dtypes={"total": "float16"})) == explained(sample, CALL)
    with pytest.raises(ArgumentError, match="argument 'total' is float16, but 'x' is bfloat16"):
        explained(sample, changed(dtypes={"T": "bfloat16", "total": "float16"}, shapes={"total": (8,)}))


def test_why_a_call_is_not_aligned(sample: records.Index):
    lines = explained(sample, changed(strides={"x": (129, 1)}, unaligned=frozenset({"x"})))
    at = lines.index("specialisation: general, because")
    assert lines[at + 1 : at + 3] == [
        "  the address of 'x' is not a multiple of 16",
        "  stride 129 of 'x' in dim 0 is not a multiple of 16",
    ]
    assert "      56  stride_x_rows     i64       129 = stride(x, 0)" in lines


def test_an_aligned_call_that_only_the_general_variant_is_built_for(sample: records.Index):
    general = tuple(variant for variant in sample.variants if not variant.aligned)
    lines = explained(msgspec.structs.replace(sample, variants=general), CALL)
    assert "specialisation: general, because no aligned variant of this call is in the bundle" in lines


def test_scratch_and_a_second_launch(sample: records.Index):
    lines = explained(sample, changed(dims={"rows": 64, "cols": 10000}, given=frozenset({"weight"})))
    assert "  weight  float16[64, 10000] strides [10000, 1]" in lines
    assert "  grid 2 x 3 x 1 (cdiv(rows, BLOCK), splits, 1)" in lines
    assert "      56  .global_scratch   *int8     address of 384 bytes of scratch memory" in lines
    assert any(line.startswith("launch 1: add_partial of code/") for line in lines)


@pytest.mark.parametrize(
    ("change", "num_cus", "message"),
    [
        ({"dtypes": {}}, 64, "which dtype is T? allowed: float16, bfloat16"),
        ({"dtypes": {"T": "float15"}}, 64, "'float15' is no dtype; did you mean 'float16'?"),
        ({"dtypes": {"T": "float32"}}, 64, "argument 'x' is float32; allowed: float16, bfloat16"),
        ({"dims": {"rows": 8}}, 64, "the shape of 'x' does not follow from the dims: 'cols' needs cols"),
        ({"dims": {"rows": 8, "cols": 1 << 21}}, 64, "cols is 2097152; allowed: 1 to 1048576"),
        ({"dims": {"rows": 7, "cols": 128}}, 64, "requires rows % 2 == 0; given: rows=7"),
        ({"dims": {"rows": 8, "colls": 1}}, 64, "has no dim 'colls'; did you mean 'cols'?"),
        ({"dims": {}}, 64, "argument 'x' is missing"),
        ({"shapes": {"y": (1,)}}, 64, "has no tensor 'y'"),
        ({"shapes": {"x": (8, 128, 1)}}, 64, "argument 'x' has 3 dims [8, 128, 1]; it takes 2"),
        ({"strides": {"x": (1,)}}, 64, "'x' has 2 dims, and 1 strides were given"),
        ({"given": frozenset({"x"})}, 64, "has no optional tensor 'x'"),
        ({"scalars": {}}, 64, "argument 'seed' is missing"),
        ({"scalars": {"seed": "1.5"}}, 64, "argument 'seed' is '1.5'; an integer is allowed"),
        ({"scalars": {"seed": "-1"}}, 64, "argument 'seed' is -1; allowed: 0"),
        ({"scalars": {"seed": "1", "rounding": "down"}}, 64, "'rounding' is 'down'; allowed: nearest, stochastic"),
        ({"scalars": {"seed": "1", "return_largest": "maybe"}}, 64, "'maybe'; true or false is allowed"),
        ({}, None, "give --num-cus"),
    ],
)
def test_a_refused_call_is_explained_by_its_error(
    sample: records.Index, change: dict[str, Any], num_cus: int | None, message: str
):
    with pytest.raises(ArgumentError) as caught:
        explained(sample, changed(**change), num_cus)
    assert message in str(caught.value)


def test_a_call_that_nothing_was_built_for(sample: records.Index):
    few = tuple(variant for variant in sample.variants if variant.axis_values.get("WIDTH") != 256)
    with pytest.raises(NoVariantError, match=r"WIDTH: 4096, 64"):
        explained(msgspec.structs.replace(sample, variants=few), CALL)


def test_ops_that_do_not_ask_for_compute_units_need_none(sample: records.Index):
    lines = explained(sample, CallSpec(dims={"n": 1000}), None, op="swap")
    assert lines[0] == "swap on gfx942"
    assert "  grid 4 x 1 x 1 (cdiv(n, 256), 1, 1)" in lines


def test_an_op_that_is_not_there(sample: records.Index):
    with pytest.raises(ArgumentError, match="no op 'reduc'; did you mean 'reduce'"):
        op_planner(sample, "reduc")


def test_text_and_numbers_of_scalars(sample: records.Index):
    lines = explained(
        sample,
        changed(scalars={"seed": "0x10", "scale": "2", "rounding": "stochastic", "return_largest": "TRUE"}),
    )
    at = lines.index("scalars:")
    assert [line.split() for line in lines[at + 1 : at + 5]] == [
        ["seed", "16"], ["scale", "2.0"], ["rounding", "stochastic"], ["return_largest", "True"],
    ]  # fmt: skip
    assert "  largest  float32[8] strides [1]" in lines


# With arrays


class PropertiesOnly:
    """A driver that knows its device and can do nothing else: neither allocate nor launch."""

    name = "hip"
    exact_allocations = False

    def properties(self, device: int) -> DeviceProperties:
        return DeviceProperties("test", "gfx942", 304, 64, 65536, 1 << 30, "0")


def refuse_to_load(variant: records.Variant) -> int:
    raise AssertionError(f"{variant.symbol} would be loaded")


@pytest.fixture
def device() -> Device:
    return Device(PropertiesOnly(), 0)  # type: ignore[arg-type]


def test_a_call_with_arrays_is_explained_like_its_description(sample: records.Index, device: Device):
    planner = op_planner(sample, "reduce")
    function = build_op(planner, device, refuse_to_load)
    x = np.zeros((8, 256), np.float16)[:, ::2]  # packed when it is copied to the device
    text = explain_call(function, device, (x,), {"seed": 1, "total": np.zeros(8, np.float16)})
    decision = plan_call(sample, planner, changed(shapes={"total": (8,)}), 304)
    assert text == explain_decision(planner, decision)


def with_tensors(index: records.Index, *tensors: records.Tensor) -> records.Index:
    """The index with other tensors of `reduce`."""
    op = msgspec.structs.replace(index.ops[0], tensors=tensors)
    return msgspec.structs.replace(index, ops=(op, *index.ops[1:]))


def test_a_host_array_is_packed_as_the_contract_wants_it(sample: records.Index, device: Device):
    x, *others = sample.ops[0].tensors
    index = with_tensors(sample, msgspec.structs.replace(x, contiguous=(0,)), *others)
    function = build_op(op_planner(index, "reduce"), device, refuse_to_load)
    text = explain_call(function, device, (np.zeros((8, 128), np.float16),), {"seed": 1})
    assert "  x      float16[8, 128] strides [1, 8]" in text.splitlines()


def test_out_is_the_one_output_of_an_op_that_has_one(sample: records.Index, rows_bundle: Path, device: Device):
    one_output = with_tensors(sample, *sample.ops[0].tensors[:3])
    for index, op, output in ((read_index(rows_bundle), "softmax", "out"), (one_output, "reduce", "total")):
        function = build_op(op_planner(index, op), device, refuse_to_load)
        x = np.zeros((4, 200), np.float16)
        scalars = {"seed": 1} if op == "reduce" else {}
        with pytest.raises(ArgumentError, match=f"argument '{output}' has 3 dims"):
            explain_call(function, device, (x,), {"out": np.zeros((4, 200, 1), np.float16), **scalars})


def test_arguments_that_the_function_has_not(sample: records.Index, device: Device):
    function = build_op(op_planner(sample, "swap"), device, refuse_to_load)
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'c'"):
        explain_call(function, device, (1, 2), {"c": 1})
    with pytest.raises(ArgumentError, match="argument 'b' has 2 dims"):
        explain_call(function, device, (np.zeros(4, np.float32), np.zeros((4, 1), np.float32)), {})


def test_a_real_bundle(rows_bundle: Path):
    index = read_index(rows_bundle)
    lines = explained(index, CallSpec(dims={"rows": 3, "cols": 100_000}, dtypes={"T": "float32"}), 304, op="softmax")
    variant = next(
        v for v in index.variants
        if v.aligned and v.axis_values == {"T": "float32", "HAS_MASK": False, "BLOCK": 32768, "ONE_PASS": False}
    )  # fmt: skip
    assert f"launch 1: {variant.symbol} of {index.blobs[variant.code].file}" in lines
    assert f"  kernargs, {variant.kernarg_bytes} bytes:" in lines
