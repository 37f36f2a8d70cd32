"""Bindings of members of kernel parameters that are named tuples."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot.plan.bind_parameters import bound_functions
from aot.plan.bound_parameter import BoundParameter
from tests.support.building.bindings import Bindings, binding, with_bind
from tests.support.building.projects import EVERYTHING, check_fault, edit, rows

X, MOD = "x: ptr stride_rows stride_cols", "mod: function operands"
SHIFTED = "mod: {function: 'kernels/mods.py:shifted', operands: [bias, 'stride(x, rows)', cols, factor]}"
KERNEL = "op 'scale', kernel 'k.py:scale_rows': "


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Bindings:
    return Bindings(tmp_path_factory.mktemp("everything"))


def given(bound: list[BoundParameter]) -> dict[str, Any]:
    """Return member, without its parameter → the expression or constant bound to it."""
    return {item.name.partition(".")[2]: item.constant if item.type == "constexpr" else item.value for item in bound}


@pytest.mark.parametrize("point", [{"BIASED": True}, {"BIASED": False}, {"TOP": True}, {"aligned": False, "BLOCK": 64}])
def test_the_members_of_a_tensor_are_those_of_separate_parameters(everything: Bindings, point: dict[str, Any]):
    """This holds for every tensor, whether or not it is present."""
    for name, dims in (("x", ("rows", "cols")), ("bias", ("0", "cols")), ("out", ("rows", "1")), ("top", ("rows",))):
        fields = ("ptr", *(f"stride_{dim}" for dim in dims))
        separate = everything.bind(name, *(f"stride_{name}_{dim}" for dim in dims), **point)
        named = [replace(item, name=f"{name}.{field}") for item, field in zip(separate, fields, strict=True)]
        assert everything.bind(f"{name}: {' '.join(fields)}", **point) == named


def test_a_tensor_that_the_op_has_not(everything: Bindings):
    assert given(everything.bind("y=None: ptr stride_rows")) == {"ptr": None, "stride_rows": 0}
    assert given(everything.bind("y=None: left=0 bottom=False rest")) == {"left": 0, "bottom": False, "rest": None}
    assert given(everything.bind(f"{MOD.replace(':', '=None:')}")) == {"function": None}


def test_strides_by_order(everything: Bindings):
    """A tuple may serve tensors whose dims have different names."""
    found = everything.bind("x: ptr stride_outer stride_inner")
    assert given(found) == {"ptr": "x", "stride_outer": "stride(x, 0)", "stride_inner": 1}


@pytest.mark.parametrize(
    ("bind", "parameter", "expected"),
    [
        ("x: {dims: [none, 1, rows]}", "x: ptr stride_a stride_b stride_c", ["x", 0, 1, "stride(x, 0)"]),
        ("x.stride_a: 0, x.ptr: out", "x: ptr stride_a stride_rows", ["out", 0, "stride(x, 0)"]),
        ("a: x", "a: ptr stride_rows stride_cols", ["x", "stride(x, 0)", 1]),
        ("a: {value: x, dims: [cols, rows]}", "a: ptr stride_a stride_b", ["x", 1, "stride(x, 0)"]),
        ("a.depth: rows * 2", "a: rows depth factor BLOCK extra=3", ["rows", "rows * 2", "factor", 16, 3]),
    ],
)
def test_by_bind(tmp_path: Path, bind: str, parameter: str, expected: list[Any]):
    assert list(given(Bindings(tmp_path, with_bind(bind)).bind(parameter)).values()) == expected


def test_a_function_and_what_it_captures(tmp_path: Path):
    bindings = Bindings(tmp_path, with_bind(SHIFTED))
    function, *operands = bindings.bind(MOD, BIASED=True)
    assert function == BoundParameter("mod.function", "constexpr", function="kernels/mods.py:shifted")
    assert [(item.name, item.type, item.value) for item in operands] == [
        ("mod.operands.0", "*fp16", "bias"),
        ("mod.operands.1", "i32", "stride(x, 0)"),
        ("mod.operands.2", "i32", "cols"),
        ("mod.operands.3", "fp32", "factor"),
    ]
    assert bound_functions(bindings.launch) == {"kernels/mods.py:shifted": "mod"}
    job = bindings.job(X, MOD, "BLOCK", BIASED=True)
    assert [name for name, _ in job.signature] == [*(f"x.{field}" for field in X.split()[1:]), function.name,
                                                   *(item.name for item in operands), "BLOCK"]  # fmt: skip
    assert [name for name, _ in job.divisible] == ["x.ptr", "x.stride_rows", *(f"mod.operands.{i}" for i in range(3))]
    assert job.constants == (("x.stride_cols", 1), ("BLOCK", 16))
    assert job.functions == (("mod.function", "kernels/mods.py:shifted"),)
    general = dict(bindings.job(X, MOD, "BLOCK", BIASED=True, aligned=False).signature)
    assert general["mod.operands.1"] == general["x.stride_rows"] == "i64"


# An entry of `bind`, with an @ where the fault is; the kernel's parameter; what is said.
BIND_FAULTS = r"""
@x: {function: 'k.py:f'} -> X -> parameter 'x' is bound to 'k.py:f', which only a tuple of function and operands can
 take; it is a tuple of ptr, stride_rows, stride_cols
@x: rows -> X -> parameter 'x' is a tuple of ptr, stride_rows, stride_cols, and 'rows' is not a tensor: bind it to a
 tensor or a function, or bind its members one by one
@x: {dims: [rows]} -> X -> parameter 'x': 1 dims for its 2 strides rows, cols
@x.stride_cosl: 3 -> X -> kernel has no parameter 'x.stride_cosl'; did you mean 'x.stride_cols'?
@x.stride_rows: 'stride(x, row)' -> X
 -> parameter 'x.stride_rows': stride(x, row): 'row' is not a single dim of 'x' [rows, cols]
@x.stride_rows: 'k.py:f' -> X -> 'k.py:f' is a function, but 'x.stride_rows' is not a constexpr
@mod: {function: 'k.py:f', operands: [fator]} -> mod: function operands
 -> parameter 'mod.operands.0': 'fator' uses undefined name 'fator'; did you mean 'factor'?
"""


@pytest.mark.parametrize(("bind", "parameter", "message"), rows(BIND_FAULTS))
def test_binds_that_are_refused(tmp_path: Path, bind: str, parameter: str, message: str):
    check_fault(tmp_path, with_bind(bind), KERNEL + message, binding(X if parameter == "X" else parameter))


FAULTS = """
y: ptr stride_rows -> member 'ptr' of parameter 'y' is not bound: the op has nothing with this name, and `bind` does not
 list 'y.ptr'
x: ptr stride_cols stride_inner -> member 'stride_inner' of parameter 'x' is not a stride of 'x' [rows, cols], and its
 strides cols, inner cannot be matched to the dims by position: list their dims, `bind: {x: {dims: [...]}}`
x: ptr stride_batch stride_rows stride_cols -> member 'stride_batch' of parameter 'x' is not a stride of 'x' [rows,
 cols], and its strides batch, rows, cols cannot be matched to the dims by position: list their dims,
 `bind: {x: {dims: [...]}}`
"""


@pytest.mark.parametrize(("parameter", "message"), rows(FAULTS))
def test_members_that_nothing_binds(tmp_path: Path, parameter: str, message: str):
    check_fault(tmp_path, edit(EVERYTHING, ("- kernel:", "- @kernel:")), KERNEL + message, binding(parameter))
