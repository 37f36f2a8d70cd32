"""From what is known of a kernel to the op that is proposed for it."""

from __future__ import annotations

from collections.abc import Sequence

from .arguments import Arguments
from .constexprs import Constexprs
from .draft import OpDraft
from .grid import add_grid
from .texts import KernelText
from .workbench import Workbench


def propose(kernel: KernelText, path: str) -> OpDraft:
    """The op that is proposed for a kernel, which is at `path`, `file.py:function`."""
    work = Workbench(kernel, path)
    arguments = Arguments(work)
    arguments.add_tensors()
    Constexprs(work).add()
    arguments.add_scalars()
    arguments.give_dims_to_inputs()
    add_grid(work)
    arguments.add_divisible()
    return work.op


def with_own_names(ops: Sequence[OpDraft]) -> list[OpDraft]:
    """The ops, each with a name of its own."""
    seen: dict[str, int] = {}
    for op in ops:
        seen[op.name] = seen.get(op.name, 0) + 1
        if seen[op.name] > 1:
            op.name = f"{op.name}_{seen[op.name]}"
    return list(ops)
