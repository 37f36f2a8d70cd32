"""Parameters that are named tuples, from a compile job to its code object."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from aot.compile.compiler import compile_job
from aot.compile.jobs import CompiledKernel, CompileJob
from aot.compile.kernargs import kernarg_layout
from aot.compile.kernel_source import Parameter, kernel_parameters, load_kernel, sources_hash, split_function
from aot.compile.keys import job_key
from aot.compile.project import CompileError
from aot_runtime.bundle.elf import Elf
from tests.support.building import jobs

SOURCE = "kernels/tuples.py"
TABLE = f"{SOURCE}:plus_table"
POINTERS, STRIDES = ("a", "out", "table"), ("stride_a_rows", "stride_out_rows")
PATHS = {
    "a": "a.ptr",
    "stride_a_rows": "a.stride_rows",
    "stride_a_columns": "a.stride_columns",
    "out": "out.ptr",
    "stride_out_rows": "out.stride_rows",
    "stride_out_columns": "out.stride_columns",
    "table": "mod.operands.0",
    "stride_table": "mod.operands.1",
}


def flat(arch: str, stride: str = "i32", aligned: bool = True) -> CompileJob:
    """Unit strides are folded, and the table is there."""
    signature = (
        ("a", "*fp32"), ("stride_a_rows", stride), ("stride_a_columns", "constexpr"),
        ("out", "*fp32"), ("stride_out_rows", stride), ("stride_out_columns", "constexpr"),
        ("table", "*fp32"), ("stride_table", "i32"), ("n", "i32"), ("BLOCK", "constexpr"),
    )  # fmt: skip
    constants = {"stride_a_columns": 1, "stride_out_columns": 1, "BLOCK": 1024}
    hints = {"divisible_by_16": (*POINTERS, *STRIDES), "pointer_range_32": POINTERS} if aligned else {}
    return jobs.job("flat", arch, signature, constants, source=SOURCE, **hints)


def nested(plain: CompileJob) -> CompileJob:
    """The same with members for numbers."""

    def paths(names):
        return tuple(PATHS.get(name, name) for name in names)

    signature = [(PATHS.get(name, name), type_name) for name, type_name in plain.signature]
    signature.insert(6, ("mod.function", "constexpr"))
    return dataclasses.replace(
        plain,
        function="nested",
        signature=tuple(signature),
        constants=tuple((PATHS.get(name, name), value) for name, value in plain.constants),
        divisible_by_16=paths(plain.divisible_by_16),
        pointer_range_32=paths(plain.pointer_range_32),
        functions=(("mod.function", TABLE),),
    )


def key(work: CompileJob) -> str:
    functions = {name: load_kernel(work.root, *split_function(path)) for name, path in work.functions}
    return job_key(work, sources_hash(load_kernel(work.root, work.source, work.function), functions))


def text(kernel: CompiledKernel) -> bytes:
    """The machine code of a code object: all of it but for names and notes."""
    elf = Elf(kernel.image)
    (section,) = (item for item in elf.sections if item.name in (".text", f".text.{kernel.symbol}"))
    return elf.data(section)[: kernel.metadata.code_bytes]


@pytest.mark.parametrize(("stride", "aligned"), [("i32", True), ("i64", False)])
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100", "sm_90"])
def test_the_code_is_that_of_separate_parameters(arch: str, stride: str, aligned: bool):
    separate = flat(arch, stride, aligned)
    tuples = nested(separate)
    layouts = [kernarg_layout(work.signature) for work in (separate, tuples)]
    assert [field[1:] for field in layouts[0]] == [field[1:] for field in layouts[1]]
    assert [field.name for field in layouts[1]][:2] == ["a.ptr", "a.stride_rows"]
    plain, other = compile_job(separate), compile_job(tuples)
    assert text(plain) == text(other)
    resources = ("vgprs", "sgprs", "vgpr_spills", "sgpr_spills", "kernarg_bytes")
    assert [getattr(plain.metadata, name) for name in resources] == [
        getattr(other.metadata, name) for name in resources
    ]
    assert [(arg.offset, arg.size) for arg in plain.metadata.args] == [
        (arg.offset, arg.size) for arg in other.metadata.args
    ]


def test_hints_of_members_reach_the_code():
    hinted = nested(flat("gfx942"))
    bare = dataclasses.replace(hinted, divisible_by_16=(), pointer_range_32=())
    assert text(compile_job(hinted)) != text(compile_job(bare))
    assert key(hinted) != key(bare)


def test_an_absent_function_leaves_no_code():
    work = nested(flat("gfx942"))
    absent = dataclasses.replace(
        work,
        signature=tuple(item for item in work.signature if not item[0].startswith("mod.operands")),
        constants=(*work.constants, ("mod.function", None)),
        functions=(),
        divisible_by_16=tuple(name for name in work.divisible_by_16 if not name.startswith("mod")),
        pointer_range_32=tuple(name for name in work.pointer_range_32 if not name.startswith("mod")),
    )
    without = dataclasses.replace(
        flat("gfx942"),
        signature=tuple((n, "constexpr" if "table" in n else t) for n, t in flat("gfx942").signature),
        constants=(*flat("gfx942").constants, ("table", None), ("stride_table", 0)),
        divisible_by_16=tuple(name for name in flat("gfx942").divisible_by_16 if name != "table"),
        pointer_range_32=("a", "out"),
    )
    assert text(compile_job(absent)) == text(compile_job(without))


def test_parameters_and_their_members():
    a, mod = kernel_parameters(load_kernel(jobs.ROOT, SOURCE, "postponed"))
    assert a == Parameter(
        "a", False, members=tuple(Parameter(f"a.{name}", False) for name in ("ptr", "stride_rows", "stride_columns"))
    )
    assert mod == Parameter(
        "mod", False, True, None, (Parameter("mod.function", True), Parameter("mod.operands", False))
    )
    assert [member.field for member in mod.members] == ["function", "operands"]


def test_the_fields_of_a_tuple_are_part_of_the_key(tmp_path):
    root = tmp_path / "project"
    shutil.copytree(jobs.ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))
    work = dataclasses.replace(nested(flat("gfx942")), root=str(root))
    before = key(work)
    path = root / SOURCE
    swapped = path.read_text().replace("    function: tl.constexpr\n    operands: tl.tuple\n",
                                       "    operands: tl.tuple\n    function: tl.constexpr\n")  # fmt: skip
    assert swapped != path.read_text()
    path.write_text(swapped)
    assert key(work) != before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a.stride_rows", "a.stride_row",
         r"'nested' names 'a.stride_row', but the members of 'a' are \['ptr', 'stride_rows', 'stride_columns'\]"),
        ("n", "n.ptr", "'nested' names members of 'n', which is not annotated with a NamedTuple class"),
        ("mod.operands.0", "mod.operands.first", r"names 'mod.operands.first', but the members of 'mod' are"),
        ("out.ptr", "b.ptr", "'nested' names .*, but its parameters are"),
    ],
)  # fmt: skip
def test_wrong_members(old: str, new: str, message: str):
    work = nested(flat("gfx942"))
    signature = tuple((new if name == old else name, type_name) for name, type_name in work.signature)
    with pytest.raises(CompileError, match=message):
        compile_job(dataclasses.replace(work, signature=signature))


def test_members_out_of_order():
    work = nested(flat("gfx942"))
    first, second, *rest = work.signature
    with pytest.raises(CompileError, match="has its members out of order"):
        compile_job(dataclasses.replace(work, signature=(second, first, *rest)))
