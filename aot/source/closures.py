"""The closure of a kernel: each function gets the globals that it reads, and no others, before Triton sees it.

Triton takes the globals of a jit function from a dictionary, where nothing can be loaded on demand. What a function
reads by its text is looked up here. What could not be evaluated is an error as soon as Triton reads it while it
compiles; `check` finds beforehand what every compilation reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aot.errors import KernelFileError, KernelFunctionError, described, is_interrupt

from .reads import Read, function_reads
from .source_module import ABSENT, SourceModule
from .unreadable import Members, SignatureOnly, Unreadable

if TYPE_CHECKING:
    from triton.runtime.jit import JITCallable


@dataclass(frozen=True)
class _Use:
    """A read of another function (`callee`), or of what could not be evaluated (`fault`)."""

    line: int
    certain: bool
    callee: JITCallable | None = None
    fault: str = ""


_Call = tuple["JITCallable", int]
"""A function, and the line in it of a call."""


class Closures:
    """The closures of a project's kernels.

    Args:
        module_of: the module of a dotted name; None for one that is not the project's.
        place: the place in the project that a traceback leads to.
    """

    def __init__(self, module_of: Callable[[str], SourceModule | None], place: Callable[[Any], str]):
        self.module_of, self._place = module_of, place
        self._uses: dict[int, tuple[_Use, ...]] = {}
        self._kept: list[JITCallable] = []

    def complete(self, kernel: JITCallable) -> None:
        """Load all that a kernel reads, as far as it can be evaluated."""
        self._bind(kernel)

    def check(self, kernel: JITCallable) -> None:
        """Raises `KernelFileError` for what a kernel surely reads and is not there, and `KernelFunctionError` for
        functions that surely call each other in a circle."""
        self._check(kernel, (), set())

    def circle(self, kernel: JITCallable) -> str:
        """Functions of a kernel's closure that call each other in a circle, whether surely or not, in words."""
        try:
            self._check(kernel, (), set(), certain=False)
        except KernelFunctionError as error:
            return error.reason
        return ""

    def _bind(self, function: JITCallable) -> None:
        module = self.module_of(function.fn.__module__)
        if id(function) in self._uses or module is None or function.fn.__globals__ is not module.module.__dict__:
            return
        self._uses[id(function)] = ()
        self._kept.append(function)  # the id is its own as long as it lives
        scope = _Scope(function, module, self)
        node = module.function_at(function.__name__, function.def_file_line_number)
        reads = function_reads(node or function.parse().body[0])
        uses = [use for read in reads for use in scope.uses(read)]
        scope.stand_in(reads)
        function.__globals__ = scope.names
        self._uses[id(function)] = tuple(uses)
        for use in uses:
            if use.callee is not None:
                self._bind(use.callee)

    def place(self, error: BaseException) -> str:
        """The place in the project where an exception came from."""
        return self._place(error.__traceback__)

    def _check(self, function: JITCallable, callers: tuple[_Call, ...], sound: set[int], certain: bool = True) -> None:
        """Hold a function with these callers, and all that it surely calls, to what they read; or else only, and with
        all that it may call, to having no circle."""
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
            f"a jit function cannot call itself, directly or not, as calls are replaced by what they call: {calls}"
        )

    def _where(self, function: JITCallable, line: int) -> str:
        module = self.module_of(function.fn.__module__)
        file = module.file if module else function.file_name
        return f"{file}:{function.def_file_line_number + line - 1}"


class _Scope:
    """The globals of one function, as they are found. A module of the project is there as one that has what the
    function reads of it."""

    def __init__(self, function: JITCallable, module: SourceModule, owner: Closures):
        self.names: dict[str, Any] = {}
        self._module, self._owner = module, owner
        self._copied: dict[int, tuple[SourceModule, Members]] = {}
        self._inner = inspect.getclosurevars(function.fn).nonlocals

    def uses(self, read: Read) -> Iterator[_Use]:
        name, *attributes = read.path
        value = self._inner[name] if name in self._inner else self._global(name)
        path = name
        for attribute in attributes:
            path = f"{path}.{attribute}"
            if id(value) in self._copied:
                value = self._member(value, attribute, path)
            elif isinstance(value, type):
                value = getattr(value, attribute, None)
            else:
                break
        if isinstance(value, Unreadable):
            yield _Use(read.line, read.certain, fault=value.text)
        for callee in _functions(value):
            yield _Use(read.line, read.certain and read.called and callee is value, callee)

    def stand_in(self, reads: Iterable[Read]) -> None:
        """Let what only a signature reads be there where it could not be evaluated, or Triton refuses to read it."""
        for name in {read.path[0] for read in reads if read.signature} & self.names.keys():
            value = self.names[name]
            if isinstance(value, Unreadable) or type(value).__module__ == "typing":
                paths = [read.path for read in reads if read.signature and read.path[0] == name]
                attributes = {part for path in paths for part in path[1:]}
                self.names[name] = SignatureOnly(attributes, getattr(value, "text", name))

    def _global(self, name: str) -> Any:
        if name not in self.names:
            value = self._found(name, lambda: self._module.lookup(name, core=True))
            if value is ABSENT:
                return None  # a builtin, or what Triton says is not defined
            self.names[name] = value
        return self.names[name]

    def _member(self, copied: ModuleType, name: str, path: str) -> Any:
        module, members = self._copied[id(copied)]
        if name not in members.found:

            def find() -> Any:
                value = module.lookup(name, core=True)
                return module.attribute(name) if value is ABSENT else value

            members.add(name, self._found(path, find))
        return members.found[name]

    def _found(self, path: str, find: Callable[[], Any]) -> Any:
        try:
            value = find()
        except BaseException as error:
            if is_interrupt(error):
                raise
            return Unreadable(f"{path!r}, which is not there: {described(error)}{self._owner.place(error)}")
        module = self._owner.module_of(value.__name__) if isinstance(value, ModuleType) else None
        if module is None or module.module is not value:
            return value
        members = Members(value.__name__)
        self._copied[id(members.module)] = (module, members)
        return members.module


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
