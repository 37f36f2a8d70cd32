"""A minimal HIP binding by ctypes for these programs: device memory with a matrix, and 16-bit values."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Pointer = ctypes.c_void_p
TYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(np.uint16), "f32": np.dtype(np.float32)}
"""Element type → numpy dtype that holds it."""
_TO_DEVICE, _TO_HOST = 1, 2
_SCHEDULE_BLOCKING_SYNC = 4


class Hip:
    """The first GPU."""

    def __init__(self) -> None:
        self.library = _library()
        check(self.library.hipInit(0), "hipInit")
        check(self.library.hipSetDeviceFlags(_SCHEDULE_BLOCKING_SYNC), "hipSetDeviceFlags")

    def empty(self, nbytes: int) -> Pointer:
        found = Pointer()
        check(self.library.hipMalloc(ctypes.byref(found), ctypes.c_size_t(max(nbytes, 16))), "hipMalloc")
        return found

    def array(self, host: Array) -> Pointer:
        found = self.empty(host.nbytes)
        given = host.ctypes.data_as(Pointer)
        check(self.library.hipMemcpy(found, given, ctypes.c_size_t(host.nbytes), _TO_DEVICE), "hipMemcpy")
        return found

    def read(self, host: Array, device: Pointer) -> Array:
        target = host.ctypes.data_as(Pointer)
        check(self.library.hipMemcpy(target, device, ctypes.c_size_t(host.nbytes), _TO_HOST), "hipMemcpy")
        return host

    def synchronize(self) -> None:
        check(self.library.hipDeviceSynchronize(), "hipDeviceSynchronize")


def _library() -> ctypes.CDLL:
    """Load libamdhip64 of either release."""
    try:
        return ctypes.CDLL("libamdhip64.so.6")
    except OSError:
        return ctypes.CDLL("libamdhip64.so.7")


def check(status: int, what: str) -> None:
    if status:
        raise SystemExit(f"{what} fails with status {status}")


def encoded(values: Array, kind: str) -> Array:
    """Return float32 as elements of a type."""
    if kind != "bf16":
        return values.astype(TYPES[kind])
    bits = values.view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)


def decoded(elements: Array, kind: str) -> Array:
    """Return elements of a type as float64."""
    if kind != "bf16":
        return elements.astype(np.float64)
    return (elements.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def relative_error(got: Array, wanted: Array) -> float:
    """Return the norm of the difference of two matrices, relative to the norm."""
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
