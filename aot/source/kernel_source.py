"""Kernels as their files have them: their parameters, and a hash of everything that their code depends on."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from aot.errors import CompileError, described, is_interrupt
from aot.targets import Target
from aot_runtime.contract.dtypes import SCALAR_TYPES

from .autotuning import Autotuning, decorators_of
from .constants import dtype_of, layout_of
from .project import Project, project
from .tuple_uses import TupleUse, tuple_uses

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction


def load_kernel(root: Path | str, source: str, function: str) -> JITFunction:
    """The `@triton.jit` function of a file, with all that it reads; decorators around `@triton.jit` are taken off.

    Args:
        root: project root: `from kernels.attention.masks import …` finds modules from there.
        source: path of the file from `root`.

    Raises:
        KernelFileError, KernelFunctionError.
    """
    with project(root).active() as modules:
        return modules.load(source, function)


def split_function(path: str) -> tuple[str, str]:
    """(file, function) of a `path.py:function`."""
    source, _, function = path.rpartition(":")
    return source, function


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel, or a member of one that is a named tuple.

    Attributes:
        name: of a member its path, `<parameter>.<field>`.
        constexpr: whether it is annotated as a `tl.constexpr`.
        default: None unless `has_default`; `NotPlain` for what is no number, boolean, text, dtype or tuple.
        members: those of a parameter that is annotated with a `NamedTuple` class.
        type: the kernarg type that it is annotated with; empty without one.
        unpacked: what the kernel does with it as with a tuple; None: nothing that its text tells.
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
        """The name without the parameter that it is a member of."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class NotPlain:
    """A default that only the kernel's own process can have, in words."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class KernelSource:
    """What there is to know of a kernel, or of a function that is bound to one, before it is compiled; plain data.

    Attributes:
        digest: its `source_hash`.
        sources: (file from the root, SHA-256 of what was read) of each file that was read for it, at least.
        autotuning: what the decorators around it say.
        fault: what no compilation of it can do without and is not there; empty where all is.
        left_out: of each of these files what it needed and could not evaluate, in a line.
        is_gluon: whether it is a kernel of Gluon.
    """

    parameters: tuple[Parameter, ...]
    digest: str
    sources: tuple[tuple[str, str], ...]
    autotuning: Autotuning = field(default_factory=Autotuning)
    fault: str = ""
    left_out: tuple[str, ...] = ()
    is_gluon: bool = False


def inspect_kernel(root: Path | str, path: str, arch: str = "gfx942") -> KernelSource:
    """Read a `path.py:function`. Raises `CompileError`: there is no such kernel, or its file is at fault.

    Args:
        arch: what the file is told that there is, where it asks Triton.
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
    """The parameters of a kernel, in order."""
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
    """The kernarg type that Triton's name of an annotation means; empty for pointers, and for what is no type."""
    name = "i1" if name == "u1" else name  # Triton's boolean
    return name if name in SCALAR_TYPES else ""


def tuple_classes(kernel: JITFunction) -> dict[str, Any]:
    """The `NamedTuple` class of each parameter that is annotated with one."""
    found = {name: parameter.annotation for name, parameter in kernel.signature.parameters.items()}
    scope = kernel.get_capture_scope()
    # In a file with postponed annotations they are text.
    resolved = {name: _named(value, scope) if isinstance(value, str) else value for name, value in found.items()}
    return {name: value for name, value in resolved.items() if _is_tuple_class(value)}


def _named(text: str, scope: dict[str, Any]) -> Any:
    try:
        return _resolve(ast.parse(text, mode="eval").body, scope)
    except (SyntaxError, ValueError):
        return None


def _is_aggregate(value: Any) -> bool:
    return isinstance(value, type) and getattr(value, "__triton_aggregate__", False)


def _is_tuple_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")


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
            return NotPlain("a number of over 64 bits")
        case int():  # of an enumeration: its class is known to the kernel's process alone
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case str():
            return str.__str__(value)
        case tuple():
            return tuple(map(_plain, value))
    return NotPlain(repr(value))


@functools.lru_cache(maxsize=256)
def source_hash(kernel: JITFunction) -> str:
    """Hex digest of all the source that a kernel's code depends on; the same in whatever folder it lies.

    Triton's own `cache_key` covers the text of every function that the kernel reaches and the constants that they name.
    It leaves out constants reached through a module (`common.LOG2E`), the defaults of helpers' parameters, the fields
    of named tuples, Gluon's layouts, and what else functions read that run at compile time: lists, dicts, classes. Each
    of these changes the code; they are added here.
    """
    constants: list[str] = []
    seen: set[int] = set()
    _collect_constants(kernel, constants, seen)
    return hashlib.sha256("\n".join([kernel.cache_key, *sorted(set(constants))]).encode()).hexdigest()


def sources_hash(kernel: JITFunction, functions: Mapping[str, JITFunction]) -> str:
    """`source_hash` of a kernel and of the functions, by parameter, that its constexprs are."""
    return joined_hash(source_hash(kernel), {name: source_hash(function) for name, function in functions.items()})


def joined_hash(kernel: str, functions: Mapping[str, str]) -> str:
    """`sources_hash` from the `source_hash` of each."""
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
    for node in ast.walk(function.parse()):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        value = _resolve(node, scope)
        if _is_aggregate(value):
            # Its methods are functions of their own, which Triton's key covers; what they read it does not.
            constants.append(f"{value.__name__}: {_spelled(value.__aggregate_defaults__)}")
            for member in value.hash_attrs:
                if isinstance(member, JITCallable):
                    _collect_constants(member, constants, seen)
        elif _is_tuple_class(value):
            constants.append(f"{value.__name__}: {value._fields} {value._field_defaults}")
        elif isinstance(value, JITCallable):
            _collect_constants(value, constants, seen)
        elif spelling := _spelled(value):
            constants.append(f"{function.__name__}: {ast.unparse(node)}={spelling}")


def _resolve(node: ast.expr, scope: dict[str, Any]) -> Any:
    """What a dotted name means in `scope`: a global, or an attribute of a module; None for anything else."""
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    owner = _resolve(node.value, scope) if isinstance(node, ast.Attribute) else None
    return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None  # type: ignore[attr-defined]


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
    """What a constant holds. Of any other object only the type: its text may have an address."""
    from triton.runtime.jit import JITCallable

    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, FunctionType):
        return _text(value)
    return value.cache_key if isinstance(value, JITCallable) else _spelled(value) or type(value).__name__


def _class_spelled(value: type) -> str:
    """A class, if it is none of Triton's: what it holds, and the text of its methods."""
    if value.__module__.startswith("triton."):
        return ""
    own = {name: member for name, member in vars(value).items() if name not in ("__doc__", "__module__")}
    return f"{_spelled(own)} {''.join(map(_class_spelled, value.__bases__))}"


def _text(function: FunctionType) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # one that was made without text, as a dataclass's
        return function.__qualname__
