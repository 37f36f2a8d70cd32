"""The grid of a launch: as the kernel's file has it, else by what the kernel counts with its program ids."""

from __future__ import annotations

import ast

from . import values
from .workbench import Workbench


def add_grid(work: Workbench) -> None:
    """Propose the grid of an op's launch."""
    axes = max([*work.found.programs, -1]) + 1
    written = [_written(work, node) for node in work.launch.grid]
    for axis in range(max(axes, 1)):
        text = written[axis] if axis < len(written) else ""
        if not text and work.launch.grid and axis >= len(written):
            text = "1"
        text = text or _counted(work, axis)
        if not text:
            text = "1"
            work.op.notes["grid", str(axis)] = f"how many programs there are along axis {axis}"
        bare = ast.unparse(ast.parse(text, mode="eval"))
        work.op.grid.append(int(bare) if bare.isdigit() else bare)


def _written(work: Workbench, node: ast.expr) -> str:
    """An extent of the launch's grid as an expression; empty where it is of things that the op does not have."""
    text = expression_of(work, node)
    if not text:
        return ""
    names = {item.id for item in ast.walk(ast.parse(text)) if isinstance(item, ast.Name)}
    return text if names <= _usable(work) else ""


def expression_of(work: Workbench, node: ast.expr) -> str:
    """What an expression of the launch's function is in the op; empty where it is nothing there."""
    return work.launch.expression(node, lambda item: _known(work, item))


def _usable(work: Workbench) -> set[str]:
    tuned = {name for config in work.kernel.autotuning.configs[:1] for name, _ in config.blocks}
    known = {*work.op.dims(), *work.op.scalars, *work.op.constexprs, *work.op.blocks, *tuned}
    return {*known, "cdiv", "min", "max", "next_pow2", "num_cus"}


def _known(work: Workbench, node: ast.expr) -> str:
    """What a name, or a tensor's size, in the launch's function is in the op."""
    if isinstance(node, ast.Constant):
        return ""
    text = ast.unparse(node)
    dims = set(work.op.dims())
    for name, parameter in work.parameters.items():
        if name in work.launch.arguments and work.launch.text(name) == text:
            if name in work.dim_names:
                return work.dim_names[name]
            if name in work.op.constexprs or name in work.op.blocks or name in work.op.scalars:
                return name
            if parameter.constexpr and isinstance(node, ast.Name):
                return name
    place = work.launch.size(node)
    if place and (tensor := work.tensor_of(place[0])):
        shape = work.op.tensors[work.tensor_name(tensor.parameter)]["shape"]
        if place[1] < len(shape) and place[2] in (0, len(shape)):
            return str(shape[place[1]])
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr="numel"), args=[]) if tensor := work.tensor_of(
            ast.unparse(owner)
        ):
            return " * ".join(map(str, work.op.tensors[work.tensor_name(tensor.parameter)]["shape"]))
    return text if text in dims else ""


def _counted(work: Workbench, axis: int) -> str:
    """The product of what the dims that an axis of the grid goes over have, in blocks."""
    if axis in work.found.persistent:
        return "num_cus"
    counts: dict[str, str] = {}
    for tensor in work.tensors:
        shape = work.op.tensors[work.tensor_name(tensor.parameter)]["shape"]
        for dim, extent in zip(tensor.dims, shape, strict=True):
            for product in dim.index.terms:
                counting = [atom for atom in product if _from_program(atom, axis)]
                if not counting:
                    continue
                blocks = [atom.key for atom in product if atom.kind == values.ARGUMENT]
                usable = [block for block in blocks if block in _usable(work)]
                if any(atom.kind == values.LOADED for item in counting for atom in item.below):
                    continue
                text = f"cdiv({extent}, {' * '.join(usable)})" if usable else str(extent)
                if str(extent) not in counts or usable:
                    counts[str(extent)] = text
    return " * ".join(counts.values())


def _from_program(atom: values.Atom, axis: int) -> bool:
    return any(part.kind == values.PROGRAM and part.key == str(axis) for part in atom.below)
