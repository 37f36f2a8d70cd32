"""Calls of a GPU API through its Python binding: names, statuses, null handles and the current device."""

from __future__ import annotations

import ctypes
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from aot_runtime.errors import DeviceError, DeviceMemoryError, DriverCallError

from . import Outcome

if TYPE_CHECKING:
    from .current import Selector

# Statuses on which HIP and CUDA agree.
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE = 0, 1, 2, 100

HERE = object()
"""Placeholder among a call's arguments for the address of its result."""
T = TypeVar("T")
_NOTHING = nullcontext()


def _as_c(value: Any) -> Any:
    """Convert an argument for ctypes. Integers become 64 bits wide, which also serves narrower parameters."""
    if isinstance(value, ctypes.c_void_p):
        return ctypes.byref(value)
    return ctypes.c_uint64(value) if isinstance(value, int) else value


class GpuApi(ABC):
    """A binding whose functions return `(status, result...)`, called by the names that CUDA gives them.

    HIP mirrors the CUDA driver API, so calls are named without a prefix (`StreamSynchronize`). A subclass defines the
    prefix and the few calls that its API names differently.
    """

    prefix: ClassVar[str]
    renamed: ClassVar[Mapping[str, str]]
    """CUDA's name of a call → full name, for calls that are not named by the prefix and CUDA's name."""
    symbols: ClassVar[Mapping[str, str]] = {}
    """Full name → symbol in the library, for functions whose symbol differs."""
    first_is_current: ClassVar[bool]
    """The first device is current in a new thread, so that the only device of a process always is."""

    def __init__(self, binding: Any, library: ctypes.PyDLL):
        self._binding, self._library = binding, library
        self._unlocked = ctypes.CDLL(None, handle=library._handle)
        self._lock = threading.RLock()
        self._selectors: dict[int, Selector] = {}
        self._count = self._count_devices()

    @abstractmethod
    def _describe(self, status: int) -> tuple[str, str]:
        """Return a status's name and meaning."""

    @abstractmethod
    def _selector(self, device: int) -> Selector:
        """Return the selector that makes a device current in the calling thread."""

    def _full_name(self, name: str) -> str:
        return self.renamed.get(name, self.prefix + name)

    def _error(self, name: str, status: int, meaning: str | None = None) -> DriverCallError:
        code, described = self._describe(status)
        kind = DeviceMemoryError if status == OUT_OF_MEMORY else DriverCallError
        return kind(self._full_name(name), status, code, meaning or described)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Make a call that needs no current device, or has it already. Return its result, if any."""
        function = self._full_name(name)
        try:
            status, *results = getattr(self._binding, function)(*arguments)
        except (RuntimeError, ValueError) as error:
            # The library lacks the function, or returned a status that is unknown to an older binding.
            raise DeviceError(f"{function} cannot be called through {self._binding.__name__}: {error}") from error
        if status:
            raise self._error(name, int(status))
        return results[0] if results else None

    def _on(self, device: int, name: str, *arguments: Any) -> Any:
        with self._current(device):
            return self._call(name, *arguments)

    def _create(self, device: int, name: str, *arguments: Any) -> int:
        """Make a call that returns a handle or an address. Null is an error whatever the status."""
        result = self._on(device, name, *arguments)
        return self._not_null(name, 0 if result is None else int(result))

    def _not_null(self, name: str, handle: int) -> int:
        if not handle:
            raise self._error(name, SUCCESS, "it returned a null handle")
        return handle

    # What an interrupt must not come into goes past the binding, which runs Python code after the call. A function of
    # the library is called by C code alone: it was made and its outcome is there, or neither is so.

    def _make(self, device: int, name: str, *arguments: Any, made: Outcome) -> int:
        """Create an object. The library writes its handle to `made`: the argument `HERE`, else the first one."""
        cell = ctypes.c_void_p()
        made = [] if made is None else made
        made += [cell]
        given = arguments if HERE in arguments else (HERE, *arguments)
        call = partial(self._function(name), *(_as_c(cell if item is HERE else item) for item in given))
        with self._current(device):
            status = call()
        if status:
            raise self._error(name, status)
        return self._not_null(name, cell.value or 0)

    def _give_back(self, device: int, name: str, *arguments: Any, gone: Outcome) -> None:
        gone = [] if gone is None else gone
        call = partial(self._function(name), *map(_as_c, arguments))
        with self._current(device):
            gone.extend(starmap(call, ((),)))
        if gone[-1]:
            raise self._error(name, gone[-1])

    def _function(self, name: str) -> Any:
        full = self._full_name(name)
        return getattr(self._unlocked, self.symbols.get(full, full))

    def _count_devices(self) -> int:
        try:
            return int(self._call("DeviceGetCount"))
        except DriverCallError as error:
            if error.status == NO_DEVICE:
                return 0
            raise

    def device_count(self) -> int:
        """Return the number of visible devices; 0 if the library is installed but there is no GPU."""
        return self._count

    def activate(self, device: int) -> None:
        """Make `device` current for the calling thread."""
        selector = self._selector_of(device)
        status = selector.set(selector.wanted)
        if status:
            raise self._select_error(status)

    def _current(self, device: int) -> AbstractContextManager[None]:
        """Return a context in which `device` is current in the calling thread. On exit, the previous one is again."""
        # The current device is not cached: other libraries in the process change it too.
        if self._is_always_current(device):
            return _NOTHING
        from .current import Current  # not needed by the only device of a process

        return Current(self._selector_of(device), self._select_error)

    def _is_always_current(self, device: int) -> bool:
        return self.first_is_current and self._count == 1 and device == 0

    def _select_error(self, status: int) -> DriverCallError:
        return self._error("CtxSetCurrent", status)

    def _selector_of(self, device: int) -> Selector:
        return self._once(self._selectors, device, self._selector)

    def _once(self, made: dict[int, T], device: int, make: Callable[[int], T]) -> T:
        value = made.get(device)
        if value is None:
            with self._lock:
                value = made[device] if device in made else made.setdefault(device, make(device))
        return value
