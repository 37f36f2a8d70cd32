"""The hash of all source text and values that a kernel's code depends on."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from .statements import dotted, function_tree, global_paths

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction


@functools.lru_cache(maxsize=256)
def source_hash(kernel: JITFunction) -> str:
    """Return the hex digest of all source that a kernel's code depends on, independent of its folder.

    Triton's `cache_key` covers the text of all functions that the kernel reaches and the constants that they name. This
    hash adds values that change the code, too: constants reached through a module (`common.LOG2E`), defaults of
    helpers' parameters, fields of named tuples, Gluon's layouts, and other values that compile-time functions read
    (lists, dicts, classes).
    """
    constants: list[str] = []
    seen: set[int] = set()
    _collect_constants(kernel, constants, seen)
    return hashlib.sha256("\n".join([kernel.cache_key, *sorted(set(constants))]).encode()).hexdigest()


def sources_hash(kernel: JITFunction, functions: Mapping[str, JITFunction]) -> str:
    """Return the hash of a kernel and of the functions that are its constexprs, by parameter."""
    return joined_hash(source_hash(kernel), {name: source_hash(function) for name, function in functions.items()})


def joined_hash(kernel: str, functions: Mapping[str, str]) -> str:
    """Return `sources_hash`, given the `source_hash` of each function."""
    if not functions:
        return kernel
    digests = [kernel, *(f"{name}: {functions[name]}" for name in sorted(functions))]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _collect_constants(function: Any, constants: list[str], seen: set[int]) -> None:
    from triton.runtime.jit import JITCallable

    if id(function) in seen or function.__module__.startswith("triton."):
        return
    seen.add(id(function))
    for name, parameter in function.signature.parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            constants.append(f"{function.__name__}({name}={parameter.default!r})")
    scope = function.get_capture_scope()
    for path in global_paths(function_tree(function.src)):
        value = _at(path, scope)
        if _is_aggregate(value):
            # Its methods are functions of their own, which Triton's key covers; what they read it does not.
            constants.append(f"{value.__name__}: {_spelled(value.__aggregate_defaults__)}")
            for member in value.hash_attrs:
                if isinstance(member, JITCallable):
                    _collect_constants(member, constants, seen)
        elif is_tuple_class(value):
            constants.append(f"{value.__name__}: {value._fields} {value._field_defaults}")
        elif isinstance(value, JITCallable):
            _collect_constants(value, constants, seen)
        elif spelling := _spelled(value):
            constants.append(f"{function.__name__}: {'.'.join(path)}={spelling}")


def resolve(node: ast.expr, scope: dict[str, Any]) -> Any:
    """Return the value of a dotted name in `scope`: a global, or an attribute of a module; None for anything else."""
    path = dotted(node)
    return _at(path, scope) if path else None


def _at(path: tuple[str, ...], scope: dict[str, Any]) -> Any:
    value = scope.get(path[0])
    for attribute in path[1:]:
        value = getattr(value, attribute, None) if isinstance(value, ModuleType) else None
    return value


def _spelled(value: Any) -> str:
    import triton.language as tl

    if isinstance(value, bool | int | float | str | tl.dtype):
        return repr(value)
    if isinstance(value, tl.constexpr):
        return f"constexpr[{_part_spelled(value.value)}]"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(_part_spelled, value))})"
    if isinstance(value, dict):
        return f"dict({', '.join(f'{_part_spelled(key)}: {_part_spelled(item)}' for key, item in value.items())})"
    if isinstance(value, type):
        return _class_spelled(value)
    if dataclasses.is_dataclass(value):  # as Gluon's layouts are
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return f"{type(value).__name__} {_spelled(fields)}"
    return ""


def _part_spelled(value: Any) -> str:
    """Return the text of a part of a constant. For other objects it is the type: their text may have an address."""
    from triton.runtime.jit import JITCallable

    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, FunctionType):
        return _text(value)
    return value.cache_key if isinstance(value, JITCallable) else _spelled(value) or type(value).__name__


def _class_spelled(value: type) -> str:
    """Return the text of a class that is not Triton's: its attributes, and the source of its methods."""
    if value.__module__.startswith("triton."):
        return ""
    own = {name: member for name, member in vars(value).items() if name not in ("__doc__", "__module__")}
    return f"{_spelled(own)} {''.join(map(_class_spelled, value.__bases__))}"


def _text(function: FunctionType) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # one that was made without text, as a dataclass's
        return function.__qualname__


def _is_aggregate(value: Any) -> bool:
    return isinstance(value, type) and getattr(value, "__triton_aggregate__", False)


def is_tuple_class(value: Any) -> bool:
    """Return True if a value is a `NamedTuple` class."""
    return isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")
