"""Arrays of other libraries, as tests need them: producers of DLPack capsules and of `__cuda_array_interface__`."""

from __future__ import annotations

from typing import Any

from aot_runtime import DeviceArray


class Exported:
    """An array of a library from before DLPack 1, over a device array's memory."""

    def __init__(self, array: DeviceArray):
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream: int | None = None) -> Any:
        return self.array.__dlpack__(stream=stream)


class Versioned(Exported):
    """An array of a library since DLPack 1, over a device array's memory."""

    def __dlpack__(self, stream: int | None = None, max_version: Any = None, **arguments: Any) -> Any:
        return self.array.__dlpack__(stream=stream, max_version=max_version, **arguments)


class OneCapsule:
    """A producer that hands out a capsule that it was given."""

    def __init__(self, capsule: Any, device: tuple[int, int] = (10, 0)):
        self.capsule, self.__dlpack_device__ = capsule, lambda: device

    def __dlpack__(self, stream: Any = None) -> Any:
        assert stream == -1
        return self.capsule


class Interface:
    """A producer of `__cuda_array_interface__` alone, as numba's and old cupy's arrays are."""

    def __init__(self, **interface: Any):
        self.__cuda_array_interface__ = interface


def alike(foreign: DeviceArray, own: DeviceArray) -> bool:
    """Return True if a wrapped array has the same memory and layout as an array of this library."""
    assert foreign.layout.foreign and not own.layout.foreign
    return (foreign.ptr, foreign.dtype, foreign.shape, foreign.strides) == (own.ptr, own.dtype, own.shape, own.strides)
