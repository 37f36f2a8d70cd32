"""Import arrays of other libraries without copies: DLPack and `__cuda_array_interface__`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from aot_runtime.contract.dtypes import DTYPES, numpy_dtype
from aot_runtime.contract.layout import ALIGNMENT, make_layout, packed_strides
from aot_runtime.errors import AotError, ArgumentError, DriverCallError

from .array import DeviceArray
from .dlpack import HOST_DEVICES, VERSION, import_capsule

if TYPE_CHECKING:
    from .protocol import DeviceLike


def wrap_foreign(device: DeviceLike, foreign: Any) -> DeviceArray:
    """Return a `DeviceArray` over another library's array. Raises `ArgumentError` if it is not on this device."""
    if isinstance(foreign, DeviceArray) and foreign.layout.device == device.key:
        return foreign
    with _library_errors(foreign):
        return _wrapped(device, foreign)


def _wrapped(device: DeviceLike, foreign: Any) -> DeviceArray:
    if hasattr(foreign, "__dlpack__") and hasattr(foreign, "__dlpack_device__"):
        return _from_dlpack(device, foreign)
    interface = getattr(foreign, "__cuda_array_interface__", None)
    if interface is None:
        raise ArgumentError(
            f"{type(foreign).__name__} is not an array: a numpy array, a DeviceArray, or an object with __dlpack__ or "
            "__cuda_array_interface__ is allowed"
        )
    return _from_interface(device, foreign, interface)


def host_array(foreign: Any) -> np.ndarray[Any, Any] | None:
    """Return a numpy array over another library's host array, or None for any other object."""
    if isinstance(foreign, type) or not (hasattr(foreign, "__dlpack__") and hasattr(foreign, "__dlpack_device__")):
        return None
    with _library_errors(foreign):
        if _device_of(foreign)[0] not in HOST_DEVICES:
            return None
        taken = import_capsule(_capsule(foreign))
    size = DTYPES[taken.dtype].size
    memory = {
        "data": (taken.ptr, not taken.writeable),
        "shape": taken.shape,
        "strides": tuple(stride * size for stride in taken.strides),
        "typestr": f"|u{size}",  # dtypes of ml_dtypes have no type string
        "version": 3,
    }
    return np.asarray(SimpleNamespace(__array_interface__=memory, owner=taken.owner)).view(numpy_dtype(taken.dtype))


def _from_dlpack(device: DeviceLike, foreign: Any) -> DeviceArray:
    where = _device_of(foreign)
    if where[0] in HOST_DEVICES:
        raise ArgumentError(f"the array is in host memory, not on {device}; Device.array makes a copy of it")
    if where != (device.driver.dlpack_device, device.index):
        raise ArgumentError(f"the array is on DLPack device {where}, not on {device}")
    taken = import_capsule(_capsule(foreign, stream=-1))
    if taken.device != where:
        raise ArgumentError(f"the array is said to be on DLPack device {where}, but is on {taken.device}")
    aligned = taken.ptr % ALIGNMENT == 0
    layout = make_layout(device.key, taken.dtype, taken.shape, taken.strides, aligned, True, taken.writeable)
    return DeviceArray(device, taken.ptr, layout, taken.owner)


def _device_of(foreign: Any) -> tuple[int, int]:
    kind, index = foreign.__dlpack_device__()
    return int(kind), int(index)


def _capsule(foreign: Any, **stream: int) -> Any:
    try:
        return foreign.__dlpack__(**stream, max_version=VERSION)
    except TypeError:  # a library without DLPack 1
        return foreign.__dlpack__(**stream)


@contextmanager
def _library_errors(foreign: Any) -> Iterator[None]:
    """Convert another library's exceptions to `ArgumentError`, such as torch's refusal of tensors with gradients."""
    if isinstance(foreign, type):
        raise ArgumentError(f"{foreign.__name__} is a class, not an array")
    try:
        yield
    except (AotError, MemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ArgumentError(f"{type(foreign).__name__} cannot be imported: {reason}") from error


def _from_interface(device: DeviceLike, foreign: Any, interface: dict[str, Any]) -> DeviceArray:
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
    if interface.get("mask") is not None:
        raise ArgumentError("the array has a mask; arrays without one are allowed")
    readonly = bool(interface["data"][1])
    layout = make_layout(device.key, name, shape, strides, ptr % ALIGNMENT == 0, True, not readonly)
    return DeviceArray(device, ptr, layout, foreign)
