"""The grid of a launch, from the kernel's file, else from the dims that its program ids index."""

from __future__ import annotations

import ast

from . import values
from .host_values import size_text
from .workbench import Workbench


def add_grid(work: Workbench) -> None:
    """Propose the grid of an op's launch."""
    axes = max([*work.found.programs, -1]) + 1
    extents = work.launch.grid
    for axis in range(max(axes, len(extents), 1)):
        written = work.launch.final(size_text(extents[axis])) if axis < len(extents) else ""
        text = work.expression(work.with_blocks(written))
        if not text and extents and axis >= len(extents):
            text = "1"
        if not text:
            text = _counted(work, axis)
            if extents or not text:
                work.op.note("grid", str(axis), f"the number of programs along axis {axis}")
        bare = ast.unparse(ast.parse(text or "1", mode="eval"))
        work.op.grid.append(int(bare) if bare.isdigit() else bare)


def _counted(work: Workbench, axis: int) -> str:
    """Return the product of the numbers of blocks of the dims that an axis of the grid covers."""
    if axis in work.found.persistent:
        return "num_cus"
    counts: dict[str, str] = {}
    for tensor in work.tensors:
        shape = work.op.tensors[work.tensor_name(tensor.parameter)]["shape"]
        if len(shape) != len(tensor.dims):
            continue
        for dim, extent in zip(tensor.dims, shape, strict=True):
            for product in dim.index.terms:
                counting = [atom for atom in product if _from_program(atom, axis)]
                if not counting:
                    continue
                blocks = [atom.key for atom in product if atom.kind == values.ARGUMENT]
                usable = [block for block in blocks if block in work.usable()]
                if any(atom.kind == values.LOADED for item in counting for atom in item.below):
                    continue
                text = f"cdiv({extent}, {' * '.join(usable)})" if usable else str(extent)
                if str(extent) not in counts or usable:
                    counts[str(extent)] = text
    return " * ".join(counts.values())


def _from_program(atom: values.Atom, axis: int) -> bool:
    return any(part.kind == values.PROGRAM and part.key == str(axis) for part in atom.below)
