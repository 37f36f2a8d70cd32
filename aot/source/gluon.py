"""Sources of Gluon kernels, with errors for instructions that the target does not have.

Imports Triton.
"""

from __future__ import annotations

import re
from typing import Any

from triton._C.libtriton import amd, nvidia
from triton.experimental.gluon._runtime import GluonASTSource

from aot_runtime.contract.arch import CUDA, HIP

_OWNERS = {"amdg": HIP, "ttng": CUDA}
"""Dialect → the backend that compiles its operations."""


class GluonSource(GluonASTSource):
    """A Gluon kernel for `triton.compile`. Raises `ValueError` for an instruction of another vendor's GPUs."""

    def make_ir(self, target: Any, options: Any, codegen_fns: Any, module_map: Any, context: Any) -> Any:
        # An operation of a dialect that is not loaded would end the process.
        amd.load_dialects(context)
        nvidia.load_dialects(context)
        module = super().make_ir(target, options, codegen_fns, module_map, context)
        if names := _foreign_operations(module, target.backend):
            name = names[0]
            maker = _OWNERS[name.partition(".")[0]].vendor
            raise ValueError(
                f"{_place(str(module), name)}error: '{name}' is an operation of {maker} GPUs, and this target is not "
                "one"
            )
        return module


def _foreign_operations(module: Any, backend: str) -> list[str]:
    names: list[str] = []
    module.walk(lambda op: names.append(op.get_name()))
    owners = {name: _OWNERS.get(name.partition(".")[0]) for name in names}
    return [name for name in names if (owner := owners[name]) is not None and owner.name != backend]


def _place(text: str, operation: str) -> str:
    """Return `file:line:column: ` of an operation in a module's text; empty if it has no location."""
    found = re.search(rf"^.*\b{re.escape(operation)}\b.* loc\((#\w+)\)$", text, re.MULTILINE)
    name = found[1] if found else ""
    while name:
        definition = re.search(rf"^{name} = loc\((.*)\)$", text, re.MULTILINE)
        inner = definition[1] if definition else ""
        if place := re.match(r'"(.+)":(\d+):(\d+)$', inner):
            return f"{place[1]}:{place[2]}:{place[3]}: "
        # `callsite(#loc1 at #loc2)`: the first is where the operation is; `"name"(#loc1)`
        first = re.search(r"#\w+", inner)
        name = first[0] if first else ""
    return ""
