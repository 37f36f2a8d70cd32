"""Arrays of other libraries as `DeviceArray`s, with no copy: DLPack and `__cuda_array_interface__`."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.layout import ALIGNMENT, make_layout, packed_strides
from aot_runtime.errors import AotError, ArgumentError, DriverCallError

from .array import ArrayDevice, DeviceArray
from .dlpack import DLPACK_DEVICES, import_capsule


def wrap_foreign(device: ArrayDevice, foreign: Any) -> DeviceArray:
    """A `DeviceArray` over another library's array. Raises `ArgumentError` when it is not on this device."""
    if isinstance(foreign, type):
        raise ArgumentError(f"{foreign.__name__} is a class, not an array")
    try:
        return _wrapped(device, foreign)
    except (AotError, MemoryError):
        raise
    except Exception as error:  # of the library: a tensor with gradients, a protocol half fulfilled
        reason = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"{type(foreign).__name__} does not let itself be taken: {reason}") from error


def _wrapped(device: ArrayDevice, foreign: Any) -> DeviceArray:
    if hasattr(foreign, "__dlpack__") and hasattr(foreign, "__dlpack_device__"):
        kind, index = foreign.__dlpack_device__()
        if (int(kind), int(index)) != (DLPACK_DEVICES[device.driver.name], device.index):
            raise ArgumentError(f"the array is on DLPack device {(int(kind), int(index))}, not on {device}")
        capsule = foreign.__dlpack__(stream=-1 if int(kind) != 1 else None)
        return DeviceArray(device, *import_capsule(capsule, device.key))
    interface = getattr(foreign, "__cuda_array_interface__", None)
    if interface is None:
        raise ArgumentError(
            f"{type(foreign).__name__} is no array: a numpy array, a DeviceArray, or an object with __dlpack__ or "
            "__cuda_array_interface__ is allowed"
        )
    return _from_interface(device, foreign, interface)


def _from_interface(device: ArrayDevice, foreign: Any, interface: dict[str, Any]) -> DeviceArray:
    dtype = np.dtype(interface["typestr"])
    name = dtype.name
    if name not in DTYPES or not dtype.isnative:
        raise ArgumentError(f"dtype {interface['typestr']} is not supported; allowed: {', '.join(DTYPES)}")
    itemsize = dtype.itemsize
    shape = tuple(map(int, interface["shape"]))
    given = interface.get("strides")
    if given and any(stride % itemsize for stride in given):
        raise ArgumentError(f"strides {given} are not multiples of the {itemsize}-byte element")
    strides = tuple(int(stride) // itemsize for stride in given) if given else packed_strides(shape)
    ptr = interface["data"][0] or 0
    try:
        owner = device.driver.device_of(ptr) if ptr else device.index
    except DriverCallError as error:
        raise ArgumentError(f"address {ptr:#x} is not memory of {device}: {error}") from None
    if owner != device.index:
        raise ArgumentError(f"the array is on {device.driver.name}:{owner}, not on {device}")
    return DeviceArray(device, ptr, make_layout(device.key, name, shape, strides, ptr % ALIGNMENT == 0), foreign)
