"""The text of a kernel and of the functions that it calls, as plain data, read where kernel files run."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot.errors import KernelFunctionError
from aot.source.autotuning import Autotuning, decorators_of
from aot.source.kernel_source import Parameter, kernel_parameters, split_function
from aot.source.project import project
from aot.source.statements import jit_names
from aot.targets import Target


@dataclass(frozen=True)
class FunctionText:
    """A function that is compiled.

    Attributes:
        source: its `def`, without decorators.
        calls: name in the source → key of the called function.
        constants: name in the source, also `module.NAME` → its value.
    """

    source: str
    calls: Mapping[str, str]
    constants: Mapping[str, Any]


@dataclass(frozen=True)
class KernelText:
    """A kernel as its file has it.

    Attributes:
        functions: by key; the kernel's own key is empty.
        module: the text of its file.
    """

    name: str
    file: str
    parameters: tuple[Parameter, ...]
    autotuning: Autotuning
    functions: Mapping[str, FunctionText]
    module: str


def read_kernel(root: Path | str, path: str) -> KernelText:
    """Read a `path.py:function`. Raises `CompileError`: there is no such kernel, or its file is at fault."""
    source, function = split_function(path)
    with project(root).active(target=Target("gfx942")) as modules:
        kernel = modules.load(source, function)
        functions: dict[str, FunctionText] = {}
        _collect(kernel, "", functions)
        module = modules.read(Path(root) / source).decode("utf-8", "replace")
        if (count := jit_names(ast.parse(module)).count(function)) > 1:
            raise KernelFunctionError(f"file {source} has {count} functions named '{function}'")
        autotuning = decorators_of(modules, source, function)
        return KernelText(function, source, kernel_parameters(kernel), autotuning, functions, module)


def _collect(function: Any, key: str, found: dict[str, FunctionText]) -> None:
    from triton.runtime.jit import JITCallable

    found[key] = FunctionText("", {}, {})
    tree = function.parse()
    node = tree.body[0]
    node.decorator_list = []
    scope = function.get_capture_scope()
    calls: dict[str, str] = {}
    constants: dict[str, Any] = {}
    for item in ast.walk(node):
        if not isinstance(item, ast.Name | ast.Attribute):
            continue
        text = ast.unparse(item)
        value = _resolved(text, scope)
        if isinstance(value, JITCallable) and not value.__module__.startswith("triton."):
            calls[text] = f"{value.__module__}.{value.__name__}"
            if calls[text] not in found:
                _collect(value, calls[text], found)
        elif value is not None:
            plain = getattr(value, "value", value)
            if isinstance(plain, bool | int | float | str):
                constants[text] = plain
    found[key] = FunctionText(textwrap.dedent(ast.unparse(node)), calls, constants)


def _resolved(text: str, scope: Mapping[str, Any]) -> Any:
    name, *attributes = text.split(".")
    value = scope.get(name)
    for attribute in attributes:
        value = getattr(value, attribute, None)
    return value
