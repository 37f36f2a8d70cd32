"""`DeviceArray`: a strided array in GPU memory, with views, copies and the exchange protocols."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

import numpy as np

from aot_runtime.contract.dtypes import numpy_dtype
from aot_runtime.contract.layout import ALIGNMENT, Layout, Shape, make_layout, packed_strides
from aot_runtime.errors import ArgumentError
from aot_runtime.texts import shown

from .drivers.base import Driver
from .identity import OneOfAKind
from .memory import DeviceMemory


class ArrayDevice(Protocol):
    """The interface that an array needs of its device."""

    driver: Driver
    index: int
    key: tuple[str, int]
    memory: DeviceMemory

    def handle(self, stream: Any) -> int:
        """Return the handle of a stream: a `Stream`, an integer, None (the default stream), or a foreign stream."""

    def write(self, address: int, host: np.ndarray[Any, Any], stream: int) -> None:
        """Copy a packed numpy array to an address."""

    def read(self, host: np.ndarray[Any, Any], address: int, stream: int) -> None:
        """Copy memory at an address to a packed numpy array."""

    def array(self, host: Any) -> DeviceArray:
        """Copy a numpy array to the device, packed."""


class DeviceArray(OneOfAKind):
    """An array in the memory of one GPU.

    Created by `Device.array`, `empty`, `zeros`, `full` or `wrap`. Views share memory. As in numpy, `strides` are in
    bytes; `layout.strides` are in elements. Arrays are hashed by identity. Comparing them, or taking their truth
    value, raises `TypeError`, since their values are on the device.
    """

    __slots__ = ("__weakref__", "device", "layout", "owner", "ptr")
    _instead = "; copy its content with x.numpy() and device.array(…)"

    def __init__(self, device: ArrayDevice, ptr: int, layout: Layout, owner: Any):
        self.device, self.ptr, self.layout, self.owner = device, ptr, layout, owner

    @property
    def shape(self) -> Shape:
        return self.layout.shape

    @property
    def strides(self) -> Shape:
        return tuple(stride * self.layout.itemsize for stride in self.layout.strides)

    @property
    def dtype(self) -> np.dtype[Any]:
        return numpy_dtype(self.layout.dtype)

    @property
    def ndim(self) -> int:
        return len(self.layout.shape)

    @property
    def size(self) -> int:
        return self.layout.size

    @property
    def nbytes(self) -> int:
        return self.layout.size * self.layout.itemsize

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dims")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray({self.layout!r} elements on {self.device})"

    def _repr_html_(self) -> str:
        facts = {"shape": self.shape, "dtype": self.dtype, "device": self.device, "bytes": self.nbytes}
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in facts.items())
        return f"<table>{rows}</table>"

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be compared on the device: compare the results of numpy(), or identity with `is`"
        )

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__
    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise TypeError(f"the truth value of {self!r} depends on its content: test numpy(), its size, or `is None`")

    # Views

    def __getitem__(self, key: Any) -> DeviceArray:
        """Return a view by numpy's basic indexing: integers, slices, `...` and None (a new dim)."""
        keys = key if isinstance(key, tuple) else (key,)
        shape, strides, offset = _index(self.layout, keys)
        return self._view(shape, strides, offset)

    def __iter__(self) -> Iterator[DeviceArray]:
        """Iterate over views along the first dim."""
        return (self[i] for i in range(len(self)))

    def transpose(self, *axes: int) -> DeviceArray:
        """Return a view with permuted dims; reversed if no axes are given."""
        rank = self.ndim
        order = tuple(axis + rank if axis < 0 else axis for axis in axes or reversed(range(rank)))
        if sorted(order) != list(range(rank)):
            raise ArgumentError(f"transpose{shown(axes)} is not a permutation of {rank} dims")
        shape = tuple(self.shape[axis] for axis in order)
        return self._view(shape, tuple(self.layout.strides[axis] for axis in order))

    @property
    def T(self) -> DeviceArray:
        return self.transpose()

    def reshape(self, *shape: int) -> DeviceArray:
        """Return a view of another shape. One extent may be -1. Raises `ArgumentError` if a copy would be needed."""
        wanted = [int(extent) for extent in shape]
        if wanted.count(-1) == 1:
            rest = math.prod(extent for extent in wanted if extent != -1)
            wanted[wanted.index(-1)] = self.size // rest if rest else -1
        if math.prod(wanted) != self.size or min(wanted, default=0) < 0:
            raise ArgumentError(f"an array of shape {self.shape} has no view of shape {shown(shape)}: sizes differ")
        strides = _reshape(self.layout, tuple(wanted))
        if strides is None:
            raise ArgumentError(f"reshaping {self.layout} to {tuple(wanted)} would need a copy")
        return self._view(tuple(wanted), strides)

    def _view(self, shape: Shape, strides: Shape, offset: int = 0) -> DeviceArray:
        old = self.layout
        ptr = self.ptr + offset * old.itemsize
        layout = make_layout(old.device, old.dtype, shape, strides, ptr % ALIGNMENT == 0, old.foreign, old.writeable)
        return DeviceArray(self.device, ptr, layout, self.owner)

    # Copies

    def numpy(self, stream: Any = None) -> np.ndarray[Any, Any]:
        """Return a C-contiguous copy in host memory, made after all earlier work of `stream`."""
        layout = self.layout
        # Viewed as integers: numpy cannot make strided views of every ml_dtypes dtype.
        span = np.empty((layout.high - layout.low,), f"u{layout.itemsize}")
        if span.nbytes:
            address = self.ptr + layout.low * layout.itemsize
            self.device.read(span, address, self.device.handle(stream))
        view = np.lib.stride_tricks.as_strided(span[-layout.low :], layout.shape, self.strides) if self.size else span
        return np.ascontiguousarray(view).view(self.dtype).reshape(layout.shape)

    def copy_from(self, host: np.ndarray[Any, Any], stream: Any = None) -> None:
        """Overwrite an array without gaps by a numpy array of the same shape and dtype."""
        order = self._writeable_order()
        if host.shape != self.shape or host.dtype != self.dtype:
            raise ArgumentError(f"cannot copy {host.dtype}{list(host.shape)} to {self.dtype}{list(self.shape)}")
        if host.size:
            packed = np.ascontiguousarray(host.transpose(order))
            self.device.write(self.ptr, packed, self.device.handle(stream))

    def fill(self, byte: int, stream: Any = None) -> None:
        """Set every byte of an array without gaps."""
        self._writeable_order()
        if self.nbytes:
            self.device.driver.fill(self.device.index, self.ptr, byte, self.nbytes, self.device.handle(stream))

    def _writeable_order(self) -> Shape:
        order = self.layout.packed_order
        if order is None or not self.layout.writeable:
            what = "an array with gaps or overlap" if order is None else "a read-only array"
            raise ArgumentError(f"cannot write to {what}: {self.layout}")
        return order

    # Exchange

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array interface, version 3. HIP builds of torch and cupy read it, too."""
        if self.device.driver.dlpack_device is None:
            raise AttributeError(f"{self.device} has no GPU memory; use __dlpack__ or numpy(), which copy")
        if self.dtype.isbuiltin != 1:  # an ml_dtypes dtype, whose type string is misleading
            raise AttributeError(f"__cuda_array_interface__ does not support {self.layout.dtype}; use __dlpack__")
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.ptr, not self.layout.writeable),
            "strides": self.strides,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's (device type, device id). For emulated devices it is the CPU, to which exports copy."""
        from .exporting import dlpack_device

        return dlpack_device(self)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export the array as a DLPack capsule, versioned if `max_version` allows it.

        The consumer's `stream` is made to wait for this device's default stream. The memory is shared, unless `copy`
        is true or `dl_device` is (1, 0), the CPU. Emulated arrays are always copied to the CPU.

        Raises:
            BufferError: a copy is needed but `copy` is false, or `dl_device` is a different device.
        """
        from .exporting import export_array

        return export_array(self, stream, max_version, dl_device, copy)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return a copy in host memory, for numpy. Raises `TypeError` if `copy` is false."""
        if copy is False:
            raise TypeError(f"an array on {self.device} becomes a numpy array by a copy, which copy=False forbids")
        return self.numpy().astype(self.dtype if dtype is None else dtype, copy=False)


def _index(layout: Layout, keys: tuple[Any, ...]) -> tuple[Shape, Shape, int]:
    named = sum(key is not None and key is not Ellipsis for key in keys)
    if sum(key is Ellipsis for key in keys) > 1 or named > len(layout.shape):
        raise ArgumentError(f"index {shown(keys)} does not fit an array of {len(layout.shape)} dims")
    if not any(key is Ellipsis for key in keys):
        keys = (*keys, Ellipsis)
    shape: list[int] = []
    strides: list[int] = []
    offset = dim = 0
    for key in keys:
        if key is None:
            shape.append(1)
            strides.append(0)
            continue
        count = len(layout.shape) - named if key is Ellipsis else 1
        for _ in range(count):
            extent, stride = layout.shape[dim], layout.strides[dim]
            if key is Ellipsis or isinstance(key, slice):
                start, _, step = (slice(None) if key is Ellipsis else key).indices(extent)
                length = len(range(extent)[slice(None) if key is Ellipsis else key])
                offset += start * stride if length else 0
                shape.append(length)
                strides.append(stride * step)
            elif isinstance(key, int | np.integer) and not isinstance(key, bool) and -extent <= key < extent:
                offset += (int(key) % extent) * stride
            else:
                raise ArgumentError(
                    f"index {shown(key)} is not an integer or slice inside dim {dim} of extent {extent}"
                )
            dim += 1
    return tuple(shape), tuple(strides), offset


def _reshape(layout: Layout, shape: Shape) -> Shape | None:
    """Return the strides of a view of `shape`, which has the same size, or None if a copy is needed (numpy's rule).

    A run is a sequence of equally spaced elements, possibly across several dims. Each dim of a view lies in one run.
    So, starting with the innermost dim, each consumes its extent from the current run.
    """
    if layout.size == 0:
        return packed_strides(shape)
    runs = _runs(layout)
    left, stride = runs.pop()
    strides: list[int] = []
    for extent in reversed(shape):
        if extent > 1 and left == 1:
            left, stride = runs.pop()
        if left % extent:
            return None
        strides.append(stride)
        left //= extent
        stride *= extent
    return tuple(reversed(strides))


def _runs(layout: Layout) -> list[tuple[int, int]]:
    """Return (elements, stride) of each run of a non-empty array, outermost first. Dims of extent 1 are skipped.

    A single element is a run of length 1.
    """
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(layout.shape, layout.strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * stride:
            extent *= runs.pop()[0]
        runs.append((extent, stride))
    return runs or [(1, 1)]
