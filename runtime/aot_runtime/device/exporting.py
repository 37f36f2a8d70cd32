"""Export a `DeviceArray` by DLPack: its own memory, or a copy if requested or needed."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from aot_runtime.contract.layout import Layout

from .dlpack import CPU, VERSION, Exchanged, export_capsule
from .drivers.base import Driver
from .memory import DeviceMemory


class ExportDevice(Protocol):
    """The interface that an export needs of an array's device."""

    driver: Driver
    index: int
    memory: DeviceMemory

    def array(self, host: Any) -> Exportable:
        """Copy a numpy array to the device, packed."""

    def handle(self, stream: Any) -> int:
        """Return the handle of a stream. Raises `ArgumentError`."""


class Exportable(Protocol):
    """The interface that an export needs of an array. See `DeviceArray`."""

    ptr: int
    layout: Layout

    @property
    def device(self) -> ExportDevice:
        """The array's device."""

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a copy in host memory."""


def dlpack_device(array: Exportable) -> tuple[int, int]:
    """Return DLPack's (device type, device id) of a default export. Emulated memory is exported to the CPU."""
    kind = array.device.driver.dlpack_device
    return CPU if kind is None else (kind, array.device.index)


def export_array(
    array: Exportable,
    stream: int | None,
    max_version: tuple[int, int] | None,
    dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> Any:
    """Export an array with the arguments and errors of `__dlpack__` in the Python array API standard.

    Raises:
        BufferError: a copy is needed but `copy` is false, or `dl_device` is a different device.
    """
    versioned = max_version is not None and tuple(max_version) >= VERSION
    here = dlpack_device(array)
    wanted = here if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
    if wanted == CPU:
        if copy is False:
            raise BufferError(f"memory of {array.device} is exported to the CPU by a copy, which copy=False forbids")
        return export_capsule(_host_copy(array), versioned, copied=True)
    if wanted != here:
        raise BufferError(f"an array on {array.device}, DLPack device {here}, has no export on DLPack device {wanted}")
    if copy:
        array = array.device.array(array.numpy())
    later = 0 if stream is None or stream == -1 else array.device.handle(stream)  # -1: no synchronisation
    if later > 2:  # 0, 1 and 2: default streams
        array.device.memory.order_after(later, 0)
    layout = array.layout
    own = Exchanged(array.ptr, layout.dtype, layout.shape, layout.strides, array, here, layout.writeable)
    return export_capsule(own, versioned, copied=bool(copy))


def _host_copy(array: Exportable) -> Exchanged:
    host = array.numpy()
    strides = tuple(stride // host.itemsize for stride in host.strides)
    return Exchanged(host.__array_interface__["data"][0], array.layout.dtype, host.shape, strides, host, CPU)
