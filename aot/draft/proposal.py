"""Propose an op for a kernel, from its body and its launch."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from .constexprs import Constexprs
from .draft import OpDraft
from .grid import add_grid
from .roles import give_dims_to_inputs
from .scalars import Scalars
from .shapes import Shapes
from .sizes import names_of
from .strides import Strides
from .tensor_specs import add_tensors
from .texts import KernelText
from .workbench import Workbench


def propose(kernel: KernelText, path: str) -> OpDraft:
    """Propose an op for the kernel at `path`, `file.py:function`."""
    work = Workbench(kernel, path)
    shapes = Shapes(work)
    shapes.find()
    add_tensors(work, shapes)
    strides = Strides(work, shapes)
    strides.bind()
    give_dims_to_inputs(work)
    scalars = Scalars(work, strides.bound)
    scalars.add()
    Constexprs(work).add()
    scalars.put_last()
    give_dims_to_inputs(work)
    add_grid(work)
    _add_requirements(work)
    _require_whole_parts(work)
    _add_divisible(work)
    _note_launches(work)
    return work.op


def with_own_names(ops: Sequence[OpDraft]) -> list[OpDraft]:
    """Return the ops with distinct names."""
    seen: dict[str, int] = {}
    for op in ops:
        seen[op.name] = seen.get(op.name, 0) + 1
        if seen[op.name] > 1:
            op.name = f"{op.name}_{seen[op.name]}"
    return list(ops)


def _add_requirements(work: Workbench) -> None:
    """Add the launching function's assertions about dims and scalars to `require`."""
    for text in work.launch.facts.required:
        final = work.launch.final(text)
        names = names_of(final)
        if not names or not all("__" in name or name in work.scalar_names for name in names):
            continue
        found = work.expression(final)
        if found and found not in work.op.require and not re.fullmatch(r"\w+ (> 0|!= 0|>= 1)", found):
            work.op.require.append(found)


def _require_whole_parts(work: Workbench) -> None:
    """Require that a divided size is a multiple of its divisor, as the remainder would be left out."""
    op = work.op
    made = [item for item in op.tensors.values() if item.get("role", "input") != "input"]
    for text in [str(extent) for extent in (*(dim for item in made for dim in item["shape"]), *op.grid)]:
        for node in ast.walk(ast.parse(text, mode="eval")):
            match node:
                case ast.BinOp(left=ast.Name(id=size), op=ast.FloorDiv(), right=ast.Name() | ast.Constant() as by):
                    rest = f"{size} % {ast.unparse(by)} == 0"
                    if size in op.dims() and rest not in op.require:
                        op.require.append(rest)
                        op.note(
                            "require",
                            rest,
                            f"{rest}, unless the kernel computes the remainder, which {text} leaves out",
                        )


def _add_divisible(work: Workbench) -> None:
    last = [item["shape"][-1] for item in work.op.tensors.values() if item["shape"]]
    plain = {name for name, parameter in work.parameters.items() if not parameter.constexpr}
    names = [dim for dim in last if dim in plain & set(work.op.dims())]
    work.op.divisible = list(dict.fromkeys(names))


def _note_launches(work: Workbench) -> None:
    if not work.launch.is_there:
        work.op.note("kernel", "", "everything that is not in the kernel's body, since its file does not launch it")
    elif work.launch.others:
        work.op.note("kernel", "", f"the file launches it {work.launch.others + 1} times; this is the first")
