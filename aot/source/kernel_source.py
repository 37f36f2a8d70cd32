"""Read kernels from their files: parameters, decorators and sources."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.errors import CompileError, described, is_interrupt
from aot.targets import Target
from aot_runtime.contract.dtypes import SCALAR_TYPES

from .autotuning import Autotuning, decorators_of
from .constants import dtype_of, layout_of
from .project import Project, project
from .source_hash import is_tuple_class, resolve, source_hash
from .statements import function_tree

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction


def split_function(path: str) -> tuple[str, str]:
    """Split a `path.py:function` into (file, function)."""
    source, _, function = path.rpartition(":")
    return source, function


@dataclass(frozen=True)
class TupleUse:
    """A kernel's use of a parameter as a tuple.

    Attributes:
        least: minimum number of elements.
        most: maximum number of elements; None: no limit.
        text: the line of the kernel with this use.
    """

    least: int
    most: int | None
    text: str


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel, or a member of one that is a named tuple.

    Attributes:
        name: the parameter's name, or a member's path, `<parameter>.<field>`.
        constexpr: it is annotated as a `tl.constexpr`.
        default: None unless `has_default`; `NotPlain` unless it is a number, boolean, text, dtype or tuple.
        members: the fields of a parameter that is annotated with a `NamedTuple` class.
        type: the kernarg type in its annotation; empty if there is none.
        unpacked: the kernel's use of it as a tuple, if any is found.
    """

    name: str
    constexpr: bool
    has_default: bool = False
    default: Any = None
    members: tuple[Parameter, ...] = ()
    type: str = ""
    unpacked: TupleUse | None = None

    @property
    def field(self) -> str:
        """The name of a member, without its parameter."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class NotPlain:
    """Description of a default that cannot leave the kernel's process."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class KernelSource:
    """A kernel, or a function that is bound to a parameter of one, as plain data.

    Attributes:
        digest: its `source_hash`.
        sources: (path from the root, SHA-256) of all files that were read for it, possibly with others.
        autotuning: the decorators around it.
        fault: description of a missing value that every compilation reads; empty if there is none.
        left_out: a line for each file with statements that were needed and failed.
        is_gluon: it is a Gluon kernel.
    """

    parameters: tuple[Parameter, ...]
    digest: str
    sources: tuple[tuple[str, str], ...]
    autotuning: Autotuning = field(default_factory=Autotuning)
    fault: str = ""
    left_out: tuple[str, ...] = ()
    is_gluon: bool = False


def inspect_kernel(root: Path | str, path: str, arch: str = "gfx942") -> KernelSource:
    """Read a `path.py:function`.

    Args:
        arch: the architecture that Triton reports to the file.

    Raises:
        CompileError: there is no such kernel, or its file is faulty.
    """
    source, function = split_function(path)
    with project(root).active(target=Target(arch)) as modules:
        kernel = modules.load(source, function)
        try:
            parameters, digest = kernel_parameters(kernel), source_hash(kernel)
            autotuning = decorators_of(modules, source, function)
        except BaseException as error:
            if is_interrupt(error):
                raise
            reason = f"{function!r} in {source} cannot be read: {described(error)}{modules.place(error.__traceback__)}"
            raise CompileError(reason, traceback.format_exc()) from error
        sources = tuple(sorted(modules.digests.items()))
        fault, left_out = _fault(modules, kernel), modules.left_out()
        return KernelSource(parameters, digest, sources, autotuning, fault, left_out, kernel.is_gluon())


def _fault(modules: Project, kernel: JITFunction) -> str:
    try:
        modules.check(kernel)
    except CompileError as error:
        return error.reason
    return ""


def kernel_parameters(kernel: JITFunction) -> tuple[Parameter, ...]:
    """Return the parameters of a kernel, in order."""
    classes, uses = tuple_classes(kernel), tuple_uses(kernel)
    return tuple(
        Parameter(
            param.name,
            param.is_constexpr,
            param.has_default,
            _plain(param.default) if param.has_default else None,
            _members(param.name, classes[param.name]) if param.name in classes else (),
            _annotated_type(param.annotation_type),
            uses.get(param.name),
        )
        for param in kernel.params
    )


def _annotated_type(name: str) -> str:
    """Return the kernarg type for Triton's name of an annotation; empty for pointers and other annotations."""
    name = "i1" if name == "u1" else name  # Triton's boolean
    return name if name in SCALAR_TYPES else ""


def tuple_classes(kernel: JITFunction) -> dict[str, Any]:
    """Return parameter → `NamedTuple` class, for parameters that are annotated with one."""
    found = {name: parameter.annotation for name, parameter in kernel.signature.parameters.items()}
    scope = kernel.get_capture_scope()
    # In a file with postponed annotations they are text.
    resolved = {name: _named(value, scope) if isinstance(value, str) else value for name, value in found.items()}
    return {name: value for name, value in resolved.items() if is_tuple_class(value)}


def _named(text: str, scope: dict[str, Any]) -> Any:
    try:
        return resolve(ast.parse(text, mode="eval").body, scope)
    except (SyntaxError, ValueError):
        return None


def _members(name: str, tuple_class: Any) -> tuple[Parameter, ...]:
    kinds, defaults = tuple_class.__annotations__, tuple_class._field_defaults
    return tuple(
        Parameter(
            f"{name}.{field}", "constexpr" in str(kinds.get(field)), field in defaults, _plain(defaults.get(field))
        )
        for field in tuple_class._fields
    )


def _plain(default: Any) -> Any:
    value = getattr(default, "value", default)
    if constant := dtype_of(value) or layout_of(value):
        return constant
    match value:
        case None | bool():
            return value
        case int() if value.bit_length() > 64:
            return NotPlain("a number of more than 64 bits")
        case int():  # of an enumeration: its class is known to the kernel's process alone
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case str():
            return str.__str__(value)
        case tuple():
            return tuple(map(_plain, value))
    return NotPlain(repr(value))


def tuple_uses(kernel: Any) -> Mapping[str, TupleUse]:
    """Return parameter → use, for parameters that are unpacked (`a, b = strides`) or indexed (`strides[1]`).

    Parameters that are assigned to are left out, as their values may change.
    """
    tree = function_tree(kernel.src)
    parameters = {parameter.name for parameter in kernel.params}
    parameters -= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    found: dict[str, TupleUse] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Name(id=name)):
                starred = any(isinstance(part, ast.Starred) for part in parts)
                use = TupleUse(len(parts) - starred, None if starred else len(parts), ast.unparse(node))
            case ast.Subscript(value=ast.Name(id=name), slice=index) if (number := _number(index)) is not None:
                use = TupleUse(number + 1 if number >= 0 else -number, None, ast.unparse(node))
            case _:
                continue
        before = found.get(name)
        if name in parameters and (before is None or (before.most is None and use.least > before.least)):
            found[name] = use
    return found


def _number(index: ast.expr) -> int | None:
    match index:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
    return None
