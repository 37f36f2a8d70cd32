"""The code objects of a bundle on one device, loaded on first use and unloaded after the last use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from aot_runtime.contract.records import Variant
from aot_runtime.errors import DeviceError, DriverCallError
from aot_runtime.logs import log

from .drivers import handle_of
from .holdings import Holding

if TYPE_CHECKING:
    from .protocol import DeviceLike


class Code:
    """Loads kernels and returns their driver handles. Thread-safe.

    Ops, and graphs with launches, keep a reference. After the last one is dropped, the code objects are unloaded as
    soon as launched work is done.

    Args:
        read: function that returns the content of a code object. If it raises, the next call retries.
        path: function that returns its path, for errors.

    Attributes:
        streams: streams that kernels were launched on, besides the default stream.
    """

    def __init__(self, device: DeviceLike, read: Callable[[str], bytes], path: Callable[[str], object]):
        self.streams: set[int] = set()
        self._device, self._read, self._path = device, read, path
        self._lock = threading.RLock()
        self._modules: dict[str, _Module] = {}
        self._functions: dict[tuple[str, str, int], int] = {}
        with device.holdings.lock:
            device.memory.launched_on.add(self)

    def __len__(self) -> int:
        """Return the number of loaded kernels."""
        return len(self._functions)

    def __call__(self, variant: Variant) -> int:
        """Return the handle of a variant's kernel."""
        key = (variant.code, variant.symbol, variant.lds_bytes)
        function = self._functions.get(key)
        if function is None:
            with self._lock:
                function = self._functions.get(key) or self._load(key)
        return function

    def _load(self, key: tuple[str, str, int]) -> int:
        code, symbol, lds_bytes = key
        driver, index = self._device.driver, self._device.index
        if code not in self._modules:
            image = self._read(code)
            try:
                self._modules[code] = _Module(self._device, image, self.streams)
            except DeviceError as error:
                error.args = (f"{error} (code object {self._path(code)})",)
                raise
        self._functions[key] = driver.get_function(index, self._modules[code].handle, symbol, lds_bytes)
        log("loaded %s of code object %s on %s", symbol, code, self._device)
        return self._functions[key]


class _Module:
    """The owner of one code object."""

    def __init__(self, device: DeviceLike, image: bytes, streams: set[int]):
        holding = device.holdings.hold(_ModuleHolding, self)
        holding.owner_device, holding.streams = device, streams
        self.handle = device.driver.load_module(device.index, image, device.holdings.add(holding))


class _ModuleHolding(Holding):
    __slots__ = ("owner_device", "streams")
    owner_device: DeviceLike
    streams: set[int]

    def give_back(self) -> None:
        """Unload the code object after the work on all its streams is done."""
        module, device = handle_of(self.made), self.owner_device
        if module and not self.gone:
            for stream in (0, *self.streams):
                with contextlib.suppress(DriverCallError):  # a destroyed stream, or failed work
                    device.driver.synchronize(device.index, stream)
            device.driver.unload_module(device.index, module, self.gone)
