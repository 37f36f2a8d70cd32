"""Captured functions as Python files that the builder reads like any kernel file.

Functions of one module share a file, as they share their global names. Where the captured values of a name differ, as
for closures, another file is begun. A file's imports and values stand in front of the function that needs them.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aot_capture.records import Capture, Function
from aot_capture.values import BUILTINS, IMPORTABLE

Json = Any
PREFIX = "captured_"
"""Start of the names of the files, so that they hide no installed module."""
_DECORATORS = {
    "jit": "triton.jit", "gluon": "gluon.jit", "constexpr": "triton.constexpr_function",
    "builtin": "triton.language.core.builtin",
}  # fmt: skip


class UnsupportedError(ValueError):
    """A captured function or value that cannot be written as source, and why."""


@dataclass
class _File:
    """A file to write: its global names with their values, its lines, and the files that it imports."""

    bound: dict[str, Json] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)

    def takes(self, bindings: Mapping[str, _Binding]) -> bool:
        """Return True if none of the names is bound to anything else here."""
        return all(self.bound.get(name, item.value) == item.value for name, item in bindings.items())

    def imported(self, bindings: Mapping[str, _Binding]) -> frozenset[str]:
        """Return the files that it would import for these names."""
        return frozenset().union(*(item.imports for name, item in bindings.items() if name not in self.bound))

    def bind(self, bindings: Mapping[str, _Binding]) -> None:
        self.imports |= self.imported(bindings)
        for name, item in bindings.items():
            if name not in self.bound:
                self.bound[name] = item.value
                self.lines += item.lines


@dataclass(frozen=True)
class _Binding:
    """A global name's value, the statements that bind it, and the files that these import."""

    value: Json
    lines: tuple[str, ...]
    imports: frozenset[str] = frozenset()


class KernelFiles:
    """Files of captured functions.

    Args:
        capture: the records.
    """

    def __init__(self, capture: Capture):
        self._capture = capture
        self._files: dict[str, _File] = {}
        self._places: dict[str, tuple[str, str] | None] = {}

    def texts(self) -> dict[str, str]:
        """Return the name of each file → its text."""
        return {f"{name}.py": "\n".join(file.lines).strip("\n") + "\n" for name, file in self._files.items()}

    def place(self, function: str) -> tuple[str, str]:
        """Write a function, and those that it calls. Return its (module, name). Raises `UnsupportedError`."""
        if function not in self._places:
            self._places[function] = None
            try:
                self._places[function] = self._write(self._capture.functions[function])
            except UnsupportedError:
                del self._places[function]
                raise
        found = self._places[function]
        if found is None:
            raise UnsupportedError(f"function '{self._capture.functions[function].name}' calls itself")
        return found

    def _write(self, function: Function) -> tuple[str, str]:
        if function.source is None:
            raise UnsupportedError(f"the source of '{function.name}' was not recorded (--no-source)")
        bindings = {"triton": _Binding({"module": "triton"}, ("import triton",))}
        if function.type == "gluon":
            gluon = {"module": "triton.experimental.gluon"}
            bindings["gluon"] = _Binding(gluon, ("from triton.experimental import gluon",))
        for name, value in function.refers.items():
            if value != {"import": ["builtins", name]}:
                bindings |= self._binding(name, value, function)
        name = self._file_for(function, bindings)
        file = self._files[name]
        file.bind(bindings)
        file.bound[function.name] = {"function": function.id}
        file.lines += ["", "", *_definition(function, function.source), ""]
        return name, function.name

    def _file_for(self, function: Function, bindings: Mapping[str, _Binding]) -> str:
        """Return a file whose names allow the function, and that none of its imports imports in turn."""
        base = PREFIX + re.sub(r"\W+", "_", function.module).strip("_").lower()
        number = 1
        while True:
            name = base if number == 1 else f"{base}_{number}"
            file = self._files.setdefault(name, _File())
            is_free = function.name not in file.bound and function.name not in bindings
            if is_free and file.takes(bindings) and name not in self._reached(file.imported(bindings)):
                return name
            if function.name in bindings:
                raise UnsupportedError(f"'{function.name}' reads a global of its own name that has another value")
            number += 1

    def _reached(self, names: frozenset[str]) -> set[str]:
        reached, left = set[str](), [*names]
        while left:
            name = left.pop()
            if name not in reached:
                reached.add(name)
                left += self._files[name].imports
        return reached

    # Values

    def _binding(self, name: str, value: Json, function: Function) -> Mapping[str, _Binding]:
        """Bind a global name. An opaque value is left out: the builder says so where a kernel reads it."""
        if isinstance(value, dict) and "opaque" in value:
            return {}
        try:
            return {name: _Binding(value, *self._statements(name, value))}
        except UnsupportedError as error:
            raise UnsupportedError(f"'{function.name}' reads '{name}': {error}") from None

    def _statements(self, name: str, value: Json) -> tuple[tuple[str, ...], frozenset[str]]:
        match value:
            case {"module": str(module)}:
                return (_import(module, name),), frozenset()
            case {"function": str(function)}:
                module, found = self.place(function)
                return (_import_from(module, found, name),), frozenset({module})
            case {"import": [str(module), str(qualname)]} if _is_importable(module) and qualname.isidentifier():
                return (_import_from(".".join(map(_identifier, module.split("."))), qualname, name),), frozenset()
            case {"namespace": [str(origin), dict(attributes)]}:
                module = self._namespace(origin, attributes)
                return (_import(module, name),), frozenset({module})
        needed: set[str] = set()
        text = self.expression(value, needed)
        return (*sorted(f"import {module}" for module in needed), f"{name} = {text}"), frozenset()

    def _namespace(self, origin: str, attributes: Mapping[str, Json]) -> str:
        """Write the captured attributes of a module or class as a separate module."""
        bindings = {}
        for name, value in attributes.items():
            if not (isinstance(value, dict) and "opaque" in value):
                bindings[name] = _Binding(value, *self._statements(name, value))
        base = f"{PREFIX}names_" + re.sub(r"\W+", "_", origin).strip("_").lower()
        number = 1
        while True:
            name = base if number == 1 else f"{base}_{number}"
            file = self._files.setdefault(name, _File())
            if file.takes(bindings):
                file.bind(bindings)
                return name
            number += 1

    def expression(self, value: Json, needed: set[str]) -> str:
        """Return a Python expression of a value; the modules that it names are added to `needed`."""
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        match value:
            case {"float": str(text)}:
                return f"float({text!r})"
            case {"constexpr": inner}:
                needed.add("triton.language")
                return f"triton.language.constexpr({self.expression(inner, needed)})"
            case {"dtype": str(name)}:
                needed.add("triton.language")
                return f"triton.language.dtype({name!r})"
            case {"tuple": list(items)}:
                return f"({''.join(self.expression(item, needed) + ', ' for item in items)})"
            case {"list": list(items)}:
                return f"[{', '.join(self.expression(item, needed) for item in items)}]"
            case {"dict": list(items)}:
                pairs = (f"{self.expression(k, needed)}: {self.expression(v, needed)}" for k, v in items)
                return f"{{{', '.join(pairs)}}}"
            case {"import": [str(module), str(qualname)]}:
                return _dotted(module, qualname, needed)
            case {"enum": [str(module), str(qualname), str(name), inner, str(base)]}:
                if _is_importable(module):
                    return f"{_dotted(module, qualname, needed)}.{_identifier(name)}"
                needed.add("enum")
                members = f"{{{name!r}: {self.expression(inner, needed)}}}"
                return f"enum.{_identifier(base)}({qualname.split('.')[-1]!r}, {members})[{name!r}]"
            case {"dataclass": [str(module), str(qualname), dict(fields), _]} if _is_importable(module):
                given = (f"{_identifier(name)}={self.expression(item, needed)}" for name, item in fields.items())
                return f"{_dotted(module, qualname, needed)}({', '.join(given)})"
            case {"namedtuple": [_, str(qualname), list(fields), list(values)]}:
                needed.add("collections")
                texts = ", ".join(self.expression(item, needed) for item in values)
                return f"collections.namedtuple({qualname.split('.')[-1]!r}, {fields!r})({texts})"
        tag = next(iter(value)) if isinstance(value, dict) and value else str(value)[:40]
        raise UnsupportedError(f"a value of kind '{tag}' is not supported")


def _definition(function: Function, source: str) -> list[str]:
    lines = source.rstrip().splitlines()
    if function.type == "marked":
        return [*lines, "", "", f"{function.name}.__triton_builtin__ = True"]
    return [f"@{_DECORATORS[function.type]}{'(noinline=True)' * function.noinline}", *lines]


def _is_importable(module: str) -> bool:
    return module.split(".")[0] in IMPORTABLE


def _identifier(name: str) -> str:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise UnsupportedError(f"{name!r} is not a name")
    return name


def _dotted(module: str, qualname: str, needed: set[str]) -> str:
    """Return the path of an object of Triton, `math` or Python itself."""
    if module == "builtins" and qualname in BUILTINS:
        return qualname
    if not _is_importable(module):
        raise UnsupportedError(f"{module}.{qualname} is neither Triton's nor math's")
    needed.add(".".join(map(_identifier, module.split("."))))
    return ".".join([module, *map(_identifier, qualname.split("."))])


def _import(module: str, name: str) -> str:
    head, _, last = ".".join(map(_identifier, module.split("."))).rpartition(".")
    if not module.startswith(PREFIX) and not _is_importable(module):
        raise UnsupportedError(f"module '{module}' is neither Triton's nor math")
    if not head:
        return f"import {last}" + f" as {_identifier(name)}" * (name != last)
    return f"from {head} import {last}" + f" as {_identifier(name)}" * (name != last)


def _import_from(module: str, found: str, name: str) -> str:
    return f"from {module} import {_identifier(found)}" + f" as {_identifier(name)}" * (name != found)
