"""Explanations of a call's variants, without a device and with arrays."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from aot_bundle.callspec import CallSpec, plan_call
from aot_runtime.call.explanation import decision_data, explain_call, explain_decision
from aot_runtime.call.op import build_op
from aot_runtime.call.planner import op_planner
from aot_runtime.contract import records
from aot_runtime.device.code import Code
from aot_runtime.device.device import Device
from aot_runtime.device.drivers import DeviceProperties
from aot_runtime.errors import ArgumentError
from tests.support.contracts import contract, decide, launch, layout, planner

CALL = CallSpec(dims={"rows": 8, "cols": 128}, dtypes={"T": "float16"}, scalars={"seed": "1"})


def explained(index: records.Index, num_cus: int | None = 64, **changes: Any) -> list[str]:
    planner, call = op_planner(index, "reduce"), dataclasses.replace(CALL, **changes)
    return explain_decision(planner, plan_call(index, planner, call, num_cus), index.blobs).splitlines()


def test_every_step_of_a_decision_is_said(sample: records.Index):
    assert explained(sample) == """\
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
launch 1: add_partial is left out: splits > 1 does not hold (splits=1)""".splitlines()  # fmt: skip


def test_why_a_config_is_chosen_or_passed_over(sample: records.Index):
    lines = explained(sample, 304)
    why = "as num_cus > 100 and cols > 64 (cols=128, num_cus=304): BLOCK=64, "
    assert any(line.startswith(f"  config 1 'wide', {why}") for line in lines)
    assert not any("not config 1" in line for line in lines)
    (passed_over,) = (line for line in explained(sample, 304, dtypes={"T": "bfloat16"}) if "config 1" in line)
    assert passed_over.endswith(
        "'wide': it serves this call, but no variant of it is in the bundle for these axis values"
    )


def test_the_costs_of_configs_and_alternatives_are_said():
    configs = tuple(
        records.Config(name, {}, {}, when, f"{factor} * n / parts")
        for name, factor, when in (("a", 2, ""), ("b", 1, "n < 9"), ("c", 1, "n > 9"))
    )
    parts = records.Alternatives("parts", ("1", "2", "4"))
    axis = records.Axis("FOUR", (False, True), "parts == 4")
    made = contract("x: float32[n]", alternatives=(parts,), axes=(axis,), launches=(launch("1", configs=configs),))
    there = planner(made, keep=lambda variant: not variant.axis_values["FOUR"])
    decision = decide(there, x=layout(16))
    lines = explain_decision(there, decision, {}).splitlines()
    at = lines.index("alternatives, by cost:")
    assert lines[at + 1 : at + 4] == ["  parts=1  16.00 us", "  parts=2  8.00 us, taken", "  parts=4  not built"]
    at = next(i for i, line in enumerate(lines) if line.startswith("launch 0"))
    assert lines[at + 1 : at + 4] == [
        "  not config 0 'a': it takes 16.00 us",
        "  not config 1 'b': n < 9 does not hold (n=16)",
        "  config 2 'c' at 8.00 us, as n > 9 (n=16): all default",
    ]
    data = decision_data(there, decision, {decision.launches[0].variant.code: records.Blob("", 0, "")})
    assert [item["us"] for item in (*data["alternatives"], *data["launches"])] == [16, 8, None, 8]


def test_why_a_call_is_not_aligned(sample: records.Index):
    lines = explained(sample, strides={"x": (129, 1)}, unaligned=frozenset({"x"}))
    address, stride = (f"  {what} of 'x' " for what in ("the address", "stride 129"))
    at = lines.index("specialisation: general, because")
    assert lines[at + 1].startswith(address) and lines[at + 2].startswith(stride)
    assert "      56  stride_x_rows     i64       129 = stride(x, 0)" in lines
    general = tuple(variant for variant in sample.variants if not variant.aligned)
    lines = explained(msgspec.structs.replace(sample, variants=general))
    assert "specialisation: general, because no aligned variant of this call is in the bundle" in lines


def test_scratch_scalars_and_a_second_launch(sample: records.Index):
    scalars = {"seed": "0x10", "scale": "2", "rounding": "stochastic", "return_largest": "TRUE"}
    lines = explained(sample, dims={"rows": 64, "cols": 10000}, given=frozenset({"weight"}), scalars=scalars)
    assert "  weight   float16[64, 10000] strides [10000, 1]" in lines
    assert "  largest  float32[64] strides [1]" in lines
    at = lines.index("scalars:")
    shown = dict(line.split() for line in lines[at + 1 : at + 5])
    assert shown == {"seed": "16", "scale": "2.0", "rounding": "stochastic", "return_largest": "True"}
    assert "  grid 2 x 3 x 1 (cdiv(rows, BLOCK), splits, 1)" in lines
    assert "      56  .global_scratch   *int8     address of 384 bytes of scratch memory" in lines
    assert any(line.startswith("launch 1: add_partial of code/") for line in lines)


# A driver that knows its device and can do nothing else: neither allocate nor launch.
PROPERTIES = DeviceProperties("test", "gfx942", 304, 64, 65536, 1 << 30, "0")
DRIVER = SimpleNamespace(name="hip", exact_allocations=False, properties=lambda device: PROPERTIES)
DEVICE = Device(DRIVER, 0)  # type: ignore[arg-type]


def explained_with(index: records.Index, op: str, *arguments: Any, **keywords: Any) -> str:
    code = Code(DEVICE, lambda name: pytest.fail(f"code object {name} would be loaded"), Path)
    function = build_op(op_planner(index, op), DEVICE, code)
    return explain_call(function, DEVICE, index.blobs, arguments, keywords)


def with_tensors(index: records.Index, *tensors: records.Tensor) -> records.Index:
    """Return the index with other tensors of `reduce`."""
    op = msgspec.structs.replace(index.ops[0], tensors=tensors)
    return msgspec.structs.replace(index, ops=(op, *index.ops[1:]))


def test_a_call_with_arrays_is_explained_like_its_description(sample: records.Index):
    wide = np.zeros((8, 256), np.float16)
    text = explained_with(sample, "reduce", wide[:, ::2], seed=1, total=np.zeros(8, np.float16))
    planner = op_planner(sample, "reduce")
    decision = plan_call(sample, planner, dataclasses.replace(CALL, shapes={"total": (8,)}), 304)
    assert text == explain_decision(planner, decision, sample.blobs)
    x, *others = sample.ops[0].tensors  # a host array is packed as the contract wants it
    text = explained_with(
        with_tensors(sample, msgspec.structs.replace(x, contiguous=(0,)), *others), "reduce", wide, seed=1
    )
    assert "  x      float16[8, 256] strides [1, 8]\n" in text


def test_wrong_arguments_are_those_of_the_call(sample: records.Index):
    vector, x = np.zeros(4, np.float32), np.zeros((4, 200), np.float16)
    with pytest.raises(ArgumentError, match="argument 'b' has 2 dims"):
        explained_with(sample, "swap", vector, vector[:, None])
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'c'"):
        explained_with(sample, "swap", vector, vector, c=1)
    one_output = with_tensors(sample, *sample.ops[0].tensors[:3])
    with pytest.raises(ArgumentError, match="argument 'total' has 2 dims"):
        explained_with(one_output, "reduce", x, seed=1, out=x)
