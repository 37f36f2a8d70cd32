"""The scalars of an op, with their types: arguments of the kernel other than tensors, strides and sizes."""

from __future__ import annotations

import re
from collections.abc import Collection

from aot.source.kernel_source import Parameter
from aot_runtime.contract.dtypes import BOOL, FLOAT32, INT32

from .host_values import Const, HostTensor
from .sizes import names_of
from .workbench import Workbench, clean, free

_FRACTION = re.compile(
    r"(?i)eps|scale|alpha|beta|gamma|prob|drop|temp|momentum|factor|mult|decay|smooth|softcap|^lr$|^p$|rate|weight"
)
_INTEGER = re.compile(
    r"(?i)index|idx|seed|start|^n_|num|_len|size|count|vocab|stride|^n[a-z]$|offset_?[a-z]$|pos|bs$|sl$"
)
_ANNOTATED = {int.__name__: INT32.triton, float.__name__: FLOAT32.triton, bool.__name__: BOOL.triton}


class Scalars:
    """Declares scalars, and binds sizes."""

    def __init__(self, work: Workbench, strides: Collection[str]):
        self.work, self.op = work, work.op
        self._strides = strides
        self._own: list[str] = []
        found = work.found
        self._limits = {atom.key for bound in found.bounds for atom in bound.limit.below}
        self._indices = {atom.key for access in found.accesses for atom in access.pointer.below}

    def add(self) -> None:
        """Declare the parameters that are neither tensors nor constexprs."""
        tensors = {tensor.parameter for tensor in self.work.tensors}
        for name, parameter in self.work.parameters.items():
            if parameter.constexpr or name in tensors or name in self._strides or parameter.members:
                continue
            if name not in self.op.bind and not self._is_size(name) and not parameter.has_default:
                self._add(name, parameter)

    def put_last(self) -> None:
        """Sort scalars that decide variants before those that are only passed to the kernel."""
        plain = {name: self.op.scalars.pop(name) for name in self._own}
        self.op.scalars |= plain

    def _is_size(self, name: str) -> bool:
        """Return True if a parameter is a size that the op already has, and bind it to that."""
        text = self.work.symbolic(name)
        constant = self.work.launch.constant(name)
        if type(constant) is int and self._is_counted(name):
            self.op.bind[name] = constant
            return True
        if not any("__" in symbol or symbol == "num_cus" for symbol in names_of(text)):
            return False
        expression = self.work.expression(text)
        if expression and expression != name:
            self.op.bind[name] = int(expression) if expression.isdigit() else expression
        return bool(expression)

    def _is_counted(self, name: str) -> bool:
        return name in self._limits or name in self._indices

    def _add(self, name: str, parameter: Parameter) -> None:
        scalar = free(clean(name), {*self.op.tensors, *self.op.dims(), "T"})
        if scalar != name:
            self.op.bind[name] = scalar
        kind, is_known = (parameter.type, True) if parameter.type else self._type(name)
        item: dict[str, object] = {"type": kind}
        value = self.work.launch.arguments.get(name)
        if isinstance(value, HostTensor):
            self.work.scalar_names[value.key] = scalar
            value = value.default
        if isinstance(value, Const) and type(value.value) in (int, float, bool):
            item["default"] = value.value if kind != "fp32" else float(value.value)  # type: ignore[arg-type]
        self.op.scalars[scalar] = item
        self._own.append(scalar)
        if not is_known:
            self.op.note("scalars", scalar, "its type")

    def _type(self, name: str) -> tuple[str, bool]:
        value = self.work.launch.arguments.get(name)
        if isinstance(value, HostTensor):
            if value.annotation in _ANNOTATED:
                return _ANNOTATED[value.annotation], True
            value = value.default
        passed = value.value if isinstance(value, Const) else None
        if isinstance(passed, bool):
            return "i1", True
        if isinstance(passed, float):
            return "fp32", True
        if self._is_counted(name):
            return "i32", True
        mixed = self.work.found.mixed.get(name, set())
        kinds = {str(self.work.spec(tensor)["dtype"]) for tensor in self.work.tensors if tensor.parameter in mixed}
        is_certain = not any(("tensors", self.work.tensor_name(parameter)) in self.op.notes for parameter in mixed)
        if name in self.work.found.floats or (kinds and all(k == "T" or "float" in k for k in kinds) and is_certain):
            return "fp32", True
        if type(passed) is int:
            return ("fp32", False) if _FRACTION.search(name) else ("i32", True)
        if kinds and all("int" in kind for kind in kinds):
            return "i32", is_certain
        if name in self.work.found.integers:
            return "i32", not kinds
        return "i32" if _INTEGER.search(name) and not _FRACTION.search(name) else "fp32", False
