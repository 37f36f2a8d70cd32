"""The closure of a kernel: the functions that it calls, and the globals that they read.

Triton takes the globals of a jit function from a dictionary. The functions of a module get a copy of its namespace. If
Triton reads a missing global while it compiles, the error has the cause. `check` finds beforehand the missing globals
that every compilation reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from aot.errors import KernelFileError, KernelFunctionError, described, is_interrupt

from .missing import Missing
from .source_module import SourceModule, without_tuners
from .statements import Read, body_reads, function_tree, signature_reads

if TYPE_CHECKING:
    from triton.runtime.jit import JITCallable


@dataclass(frozen=True)
class _Use:
    """A read of another function (`callee`) or of a missing global (`fault`)."""

    line: int
    certain: bool
    callee: JITCallable | None = None
    fault: str = ""


_Call = tuple["JITCallable", int]
"""A function, and the line in it of a call."""


class Closures:
    """The closures of a project's kernels.

    Args:
        module_of: returns the module of a dotted name; None if it is not the project's.
        place: returns the place in the project that a traceback leads to.
    """

    def __init__(self, module_of: Callable[[str], SourceModule | None], place: Callable[[TracebackType | None], str]):
        self._module_of, self._place = module_of, place
        self._uses: dict[int, tuple[_Use, ...]] = {}
        self._kept: list[JITCallable] = []

    def complete(self, function: JITCallable) -> None:
        """Run the statements that a function depends on, and set its globals and those of its callees."""
        module = self._module_of(function.fn.__module__)
        if id(function) in self._uses or module is None or function.fn.__globals__ is not module.names:
            return
        self._uses[id(function)] = ()
        self._kept.append(function)  # the id is its own as long as it lives
        node = function_tree(function.src)
        reads, signature = body_reads(node), signature_reads(node)
        module.demand([*(read.path[0] for read in reads), *signature])
        self._fill_scope(module, signature)
        function.__globals__ = module.scope
        scope = {**module.scope, **inspect.getclosurevars(function.fn).nonlocals}
        defaults = [parameter.default for parameter in function.signature.parameters.values()]
        uses = [use for read in reads for use in self._uses_of(read, scope)]
        self._uses[id(function)] = tuple(uses)
        for callee in (*_functions(defaults), *filter(None, (use.callee for use in uses))):
            self.complete(callee)

    def check(self, kernel: JITCallable) -> None:
        """Check a kernel's closure, as far as every compilation reads it.

        Raises:
            KernelFileError: a global is missing.
            KernelFunctionError: the call graph has a cycle.
        """
        self._check(kernel, (), set())

    def circle(self, kernel: JITCallable) -> str:
        """Describe a cycle in the call graph of a kernel's closure, also one that may not be taken."""
        try:
            self._check(kernel, (), set(), certain=False)
        except KernelFunctionError as error:
            return error.reason
        return ""

    def _fill_scope(self, module: SourceModule, signature: Mapping[str, frozenset[str]]) -> None:
        """Update the globals of a module's jit functions, for one whose signature reads these attributes."""
        for name, value in module.names.items():
            known = type(value).__module__ != "typing"  # Triton refuses to read what annotations are made of
            module.scope[name] = without_tuners(value) if known else Missing(name, frozenset())
        for name, error in module.missing.items():
            before = module.scope.get(name)
            taken = before.attributes if isinstance(before, Missing) else None
            if name in signature:
                taken = signature[name] | (taken or frozenset())
            module.scope[name] = Missing(self._text(name, error), taken)

    def _text(self, name: str, error: BaseException) -> str:
        return f"{name!r}, which is not available: {described(error)}{self._place(error.__traceback__)}"

    def _uses_of(self, read: Read, scope: dict[str, Any]) -> Iterator[_Use]:
        value = scope.get(read.path[0])
        for depth, attribute in enumerate(read.path[1:], 2):
            module = self._module_of(value.__name__) if isinstance(value, ModuleType) else None
            if module is not None and module.module is value:
                try:
                    value = without_tuners(module.attribute(attribute))
                except BaseException as error:
                    if is_interrupt(error):
                        raise
                    value = Missing(self._text(".".join(read.path[:depth]), error))
            elif isinstance(value, type):
                value = getattr(value, attribute, None)
            else:
                break
        if isinstance(value, Missing):
            yield _Use(read.line, read.certain, fault=value.text)
        for callee in _functions(value):
            yield _Use(read.line, read.certain and read.called and callee is value, callee)

    def _check(self, function: JITCallable, callers: tuple[_Call, ...], sound: set[int], certain: bool = True) -> None:
        """Check a function with these callers: for missing globals in code that is always reached, and for cycles in
        everything that it may call.
        """
        for use in self._uses.get(id(function), ()):
            if certain and use.certain and use.fault:
                raise KernelFileError(f"{self._where(function, use.line)}: {function.__name__!r} reads {use.fault}")
            if (certain and not use.certain) or use.callee is None or id(use.callee) in sound:
                continue
            steps = (*callers, (function, use.line))
            if any(caller is use.callee for caller, _ in steps):
                self._refuse_circle(steps, use.callee)
            self._check(use.callee, steps, sound, certain)
        sound.add(id(function))

    def _refuse_circle(self, steps: tuple[_Call, ...], last: JITCallable) -> None:
        first = next(index for index, (caller, _) in enumerate(steps) if caller is last)
        calls = ", ".join(f"{caller.__name__!r} at {self._where(caller, line)}" for caller, line in steps[first:])
        raise KernelFunctionError(
            f"a jit function cannot call itself, directly or indirectly, because all calls are inlined: {calls}"
        )

    def _where(self, function: JITCallable, line: int) -> str:
        module = self._module_of(function.fn.__module__)
        file = module.file if module else function.file_name
        return f"{file}:{function.def_file_line_number + line - 1}"


def _functions(value: Any) -> Iterator[JITCallable]:
    from triton.language.core import constexpr
    from triton.runtime.jit import JITCallable

    match value:
        case JITCallable():
            yield value
        case constexpr():
            yield from _functions(value.value)
        case tuple() | list():
            for item in value:
                yield from _functions(item)
        case type():
            for base in value.__mro__:
                members = (getattr(item, "__func__", item) for item in vars(base).values())
                yield from (item for item in members if isinstance(item, JITCallable))
