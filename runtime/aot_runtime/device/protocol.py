"""Protocols of objects that modules of this folder use: `Device`, `DeviceArray`, captures and code.

Only type checkers import this module.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from aot_runtime.contract.layout import Layout

from .drivers.protocol import Driver
from .holdings import Holdings
from .memory import DeviceMemory


class DeviceLike(Protocol):
    """See `Device`."""

    driver: Driver
    index: int
    key: tuple[str, int]
    memory: DeviceMemory
    holdings: Holdings

    def handle(self, stream: Any) -> int:
        """Return the handle of a stream: a `Stream`, an integer, None (the default stream), or a foreign stream."""

    def write(self, address: int, host: np.ndarray[Any, Any], stream: int) -> None:
        """Copy a packed numpy array to an address."""

    def read(self, host: np.ndarray[Any, Any], address: int, stream: int) -> None:
        """Copy memory at an address to a packed numpy array."""

    def array(self, host: Any) -> Any:
        """Copy a numpy array to the device, packed."""


class ArrayLike(Protocol):
    """See `DeviceArray`."""

    ptr: int
    layout: Layout

    @property
    def device(self) -> DeviceLike:
        """The array's device."""

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a copy in host memory."""


class Capture(Protocol):
    """A capture in progress."""

    is_over: bool
    """True if the capture only remains to be ended."""

    def end(self) -> None:
        """End it. Call again after an interrupt."""

    def workspace(self, nbytes: int) -> int:
        """Allocate memory that lives as long as the captured graph. Returns its address."""

    def need(self, thing: Any) -> None:
        """Keep an object alive as long as the captured graph."""


class LaunchedOn(Protocol):
    """An object that records the handles of streams that it launched kernels on."""

    streams: set[int]
