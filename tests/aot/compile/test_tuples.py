"""Parameters that are named tuples, from a compile job to its code object."""

import dataclasses

import pytest

from aot.compile.compiler import compile_job
from aot.compile.kernargs import kernarg_layout
from aot.errors import CompileError
from tests.support.building import jobs

SOURCE = "kernels/tuples.py"
TYPES = {
    "a.ptr": "*fp32", "a.stride_rows": "i64", "a.stride_columns": "constexpr", "out.ptr": "*fp32",
    "out.stride_rows": "i32", "out.stride_columns": "constexpr", "mod.function": "constexpr", "mod.operands.0": "*fp32",
    "mod.operands.1": "i32", "n": "i32", "BLOCK": "constexpr",
}  # fmt: skip
CONSTANTS = {"a.stride_columns": 1, "out.stride_columns": 1, "BLOCK": 256}
HINTED = ("a.ptr", "out.ptr", "mod.operands.0")
DIVISIBLE = tuple((name, 16) for name in HINTED)
NESTED = jobs.job(
    "nested", "gfx942", tuple(TYPES.items()), CONSTANTS, source=SOURCE, divisible=DIVISIBLE, pointer_range_32=HINTED,
    functions=(("mod.function", f"{SOURCE}:plus_table"),),
)  # fmt: skip


def test_members_are_kernargs_and_their_hints_reach_the_code():
    layout = kernarg_layout(NESTED.signature)
    assert [field.name for field in layout[:2]] == ["a.ptr", "a.stride_rows"]
    kernel = compile_job(NESTED)  # it is held to the layout
    bare = dataclasses.replace(NESTED, divisible=(), pointer_range_32=())
    assert compile_job(bare).image != kernel.image and jobs.key(bare) != jobs.key(NESTED)


def test_an_absent_function_leaves_no_code():
    signature = tuple(item for item in NESTED.signature if not item[0].startswith("mod.operands"))
    constants = (*NESTED.constants, ("mod.function", None))
    absent = dataclasses.replace(
        NESTED, signature=signature, constants=constants, functions=(), divisible=DIVISIBLE[:2], pointer_range_32=()
    )
    assert compile_job(absent).metadata.code_bytes < compile_job(NESTED).metadata.code_bytes


MEMBERS = r"\['ptr', 'stride_rows', 'stride_columns'\]"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a.stride_rows", "a.stride_row", f"'nested' names 'a.stride_row', but the members of 'a' are {MEMBERS}"),
        ("n", "n.1", "'nested' names members of 'n', which is not annotated with a NamedTuple class"),
        ("n", "n.ptr", "'nested' names members of 'n', which is not annotated with a NamedTuple class"),
        ("mod.operands.0", "mod.operands.first", r"names 'mod.operands.first', but the members of 'mod' are"),
        ("out.ptr", "b.ptr", "'nested' names .*, but the kernel's parameters are"),
        ("a.ptr", "a.stride_columns", "has its members out of order"),
    ],
)
def test_wrong_members(old: str, new: str, message: str):
    swapped = {old: new, new: old}
    signature = tuple((swapped.get(name, name), type_name) for name, type_name in NESTED.signature)
    with pytest.raises(CompileError, match=message):
        compile_job(dataclasses.replace(NESTED, signature=signature))
