"""Calls described without arrays: refused ones and their errors."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import msgspec
import pytest

from aot_bundle.callspec import CallSpec, plan_call
from aot_runtime.call.choosing import Decision
from aot_runtime.call.planner import op_planner
from aot_runtime.contract import records
from aot_runtime.errors import ArgumentError
from tests.support.sample_index import sample_index

CALL = CallSpec(dims={"rows": 8, "cols": 128}, dtypes={"T": "float16"}, scalars={"seed": "1"})


def planned(index: records.Index, num_cus: int | None = 64, op: str = "reduce", **changes: Any) -> Decision:
    return plan_call(index, op_planner(index, op), dataclasses.replace(CALL, **changes), num_cus)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtypes": {}}, "reduce: the dtype of T is missing; allowed: float16, bfloat16"),
        ({"dtypes": {"T": "float15"}}, "reduce: unknown dtype 'float15'; did you mean 'float16'?"),
        ({"dtypes": {"T": "bfloat16", "total": "float16"}, "shapes": {"total": (8,)}}, "argument 'total' is float16"),
        ({"dims": {"rows": 8}}, "reduce: the extent of cols, a dim of 'x', is missing"),
        ({"dims": {"rows": 8, "colls": 1}}, "reduce has no dim 'colls'; did you mean 'cols'?"),
        ({"dims": {}}, "argument 'x' is missing"),
        ({"shapes": {"y": (1,)}}, "reduce has no tensor 'y'"),
        ({"strides": {"x": (1,)}}, "reduce: 'x' has 2 dims, but strides for 1"),
        ({"given": frozenset({"x"})}, "reduce has no optional tensor 'x'"),
        ({"scalars": {}}, "argument 'seed' is missing"),
        ({"scalars": {"seed": "1.5"}}, "argument 'seed' is '1.5'; an integer is allowed"),
        ({"scalars": {"seed": "1", "return_largest": "maybe"}}, "'return_largest' is 'maybe'; true or false is allow"),
    ],
)
def test_a_refused_call(sample: records.Index, changes: dict[str, Any], message: str):
    with pytest.raises(ArgumentError) as caught:
        planned(sample, **changes)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("extent", "shown"), [("'text'", "['text', 128]"), ("rows - 9", "[-1, 128]"), ("rows / 2", "[4.0, 128]")]
)
def test_a_shape_is_of_whole_numbers(sample: records.Index, extent: str, shown: str):
    """A contract does not demand it: an extent is an expression like others."""
    op = sample.ops[0]
    dims = (records.Dim("rows"), records.Dim("cols")), (records.Dim(extent), records.Dim("cols"))
    tensors = [
        msgspec.structs.replace(op.tensors[0], shape=shape, name=name) for shape, name in zip(dims, "xy", strict=True)
    ]
    changed = msgspec.structs.replace(op, tensors=(*tensors, *op.tensors[1:]))
    index = msgspec.structs.replace(sample, ops=(changed, *sample.ops[1:]))
    with pytest.raises(ArgumentError, match=re.escape(f"reduce: the shape of 'y' would be {shown}")):
        planned(index)


def test_a_dtype_is_given_by_its_variable_or_by_a_tensor(sample: records.Index):
    assert planned(sample, dtypes={"total": "float16"}) == planned(sample)


def test_compute_units_are_those_of_a_whole_gpu_where_that_is_known(sample: records.Index):
    assert planned(sample, None) == planned(sample, 304) != planned(sample, 38)
    with pytest.raises(ArgumentError, match="depends on the number of compute units: pass --num-cus"):
        planned(sample_index("gfx1153"), None)


def test_ops_that_do_not_ask_for_compute_units_need_none(sample: records.Index):
    assert planned(sample, None, "swap", dims={"n": 1000}, dtypes={}, scalars={}).launches[0].grid == (4, 1, 1)
