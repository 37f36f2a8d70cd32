"""The closure of a kernel: each function gets the globals that it reads, and no others, before Triton sees it.

Triton takes the globals of a jit function from a dictionary, where nothing can be loaded on demand. What a function
reads by its text is looked up here; what could not be evaluated is an error if the kernel surely reads it, else it
becomes one as soon as Triton reads it while it compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import KernelFileError, KernelFunctionError, described, is_interrupt
from .reads import Read, function_reads
from .source_module import ABSENT, SourceModule

if TYPE_CHECKING:
    from triton.runtime.jit import JITCallable


@dataclass(frozen=True)
class _Use:
    """A read of another function (`callee`), or of what could not be evaluated (`fault`)."""

    line: int
    certain: bool
    callee: JITCallable | None = None
    fault: str = ""


class Unreadable:
    """What a jit function has for a global that could not be evaluated. Triton hashes it as nothing; to read it when it
    compiles is an error."""

    __triton_aggregate__ = True
    __annotations__: dict[str, Any] = {}
    hash_attrs = ()

    def __init__(self, text: str):
        self.text = text

    @property
    def __triton_builtin__(self) -> bool:
        raise UnreadableError(self.text)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self.text)


class UnreadableError(KernelFileError):
    """A jit function reads a global that could not be evaluated."""

    def __repr__(self) -> str:
        return self.reason


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
        """Load all that a kernel reads. Raises `KernelFileError` for what it surely reads and is not there, and
        `KernelFunctionError` for functions that surely call each other in a circle."""
        self._bind(kernel)
        self._check(kernel, (), set())

    def _bind(self, function: JITCallable) -> None:
        module = self.module_of(function.fn.__module__)
        if id(function) in self._uses or module is None or function.fn.__globals__ is not module.module.__dict__:
            return
        self._uses[id(function)] = ()
        self._kept.append(function)  # the id is its own as long as it lives
        scope = _Scope(function, module, self)
        uses = [use for read in function_reads(function.parse().body[0]) for use in scope.uses(read)]
        function.__globals__ = scope.names
        self._uses[id(function)] = tuple(uses)
        for use in uses:
            if use.callee is not None:
                self._bind(use.callee)

    def place(self, error: BaseException) -> str:
        """The place in the project where an exception came from."""
        return self._place(error.__traceback__)

    def _check(self, function: JITCallable, callers: tuple[tuple[JITCallable, int], ...], sound: set[int]) -> None:
        """Hold a function, called by those at these lines, and all that it surely calls to what they read."""
        for use in self._uses.get(id(function), ()):
            if use.certain and use.fault:
                raise KernelFileError(f"{self._where(function, use.line)}: {function.__name__!r} reads {use.fault}")
            if not use.certain or use.callee is None or id(use.callee) in sound:
                continue
            steps = (*callers, (function, use.line))
            if any(caller is use.callee for caller, _ in steps):
                self._refuse_circle(steps, use.callee)
            self._check(use.callee, steps, sound)
        sound.add(id(function))

    def _refuse_circle(self, steps: tuple[tuple[JITCallable, int], ...], last: JITCallable) -> None:
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
        self._copied: dict[int, SourceModule] = {}
        cells = zip(function.fn.__code__.co_freevars, function.fn.__closure__ or (), strict=True)
        self._inner = {name: cell.cell_contents for name, cell in cells}

    def uses(self, read: Read) -> Iterator[_Use]:
        """Look a name up, and its attributes as far as it is a module or a class."""
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
            yield _Use(read.line, read.certain and callee is value, callee)

    def _global(self, name: str) -> Any:
        if name not in self.names:
            value = self._found(name, lambda: self._module.lookup(name, core=True))
            if value is ABSENT:
                return None  # a builtin, or what Triton says is not defined
            self.names[name] = value
        return self.names[name]

    def _member(self, copied: ModuleType, name: str, path: str) -> Any:
        if name not in vars(copied):
            module = self._copied[id(copied)]

            def find() -> Any:
                value = module.lookup(name, core=True)
                return module.attribute(name) if value is ABSENT else value

            setattr(copied, name, self._found(path, find))
        return getattr(copied, name)

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
        copied = ModuleType(value.__name__)
        self._copied[id(copied)] = module
        return copied


def _functions(value: Any) -> Iterator[JITCallable]:
    """The functions in a value that Triton may call."""
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
