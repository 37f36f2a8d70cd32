"""Export a `DeviceArray`: by DLPack its own memory, or a copy if requested or needed; by `__cuda_array_interface__`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aot_runtime.contract.dtypes import numpy_dtype

from .dlpack import CPU, VERSION, Exchanged, export_capsule

if TYPE_CHECKING:
    from .protocol import ArrayLike


def dlpack_device(array: ArrayLike) -> tuple[int, int]:
    """Return DLPack's (device type, device id) of a default export. Emulated memory is exported to the CPU."""
    kind = array.device.driver.dlpack_device
    return CPU if kind is None else (kind, array.device.index)


def export_array(
    array: ArrayLike,
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


def _host_copy(array: ArrayLike) -> Exchanged:
    host = array.numpy()
    strides = tuple(stride // host.itemsize for stride in host.strides)
    return Exchanged(host.__array_interface__["data"][0], array.layout.dtype, host.shape, strides, host, CPU)


def array_interface(array: ArrayLike) -> dict[str, Any]:
    """Return the value of `__cuda_array_interface__`, version 3. Raises AttributeError if the array has none."""
    layout, dtype = array.layout, numpy_dtype(array.layout.dtype)
    if array.device.driver.dlpack_device is None:
        raise AttributeError(f"{array.device} has no GPU memory; use __dlpack__ or numpy(), which copy")
    if dtype.isbuiltin != 1:  # an ml_dtypes dtype, whose type string is misleading
        raise AttributeError(f"__cuda_array_interface__ does not support {layout.dtype}; use __dlpack__")
    return {
        "shape": layout.shape,
        "typestr": dtype.str,
        "data": (array.ptr, not layout.writeable),
        "strides": tuple(stride * layout.itemsize for stride in layout.strides),
        "version": 3,
    }
