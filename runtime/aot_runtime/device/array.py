"""`DeviceArray`: a strided array in GPU memory, with views, copies and the exchange protocols."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from aot_runtime.contract.dtypes import numpy_dtype
from aot_runtime.contract.layout import ALIGNMENT, Layout, Shape, make_layout
from aot_runtime.errors import ArgumentError

from .uncopyable import OneOfAKind

if TYPE_CHECKING:
    from .protocol import DeviceLike


class DeviceArray(OneOfAKind):
    """An array in the memory of one GPU.

    Created by `Device.array`, `empty`, `zeros`, `full` or `wrap`. Views share memory. As in numpy, `strides` are in
    bytes; `layout.strides` are in elements. Arrays are hashed by identity. Comparing them, or taking their truth
    value, raises `TypeError`, since their values are on the device.
    """

    __slots__ = ("__weakref__", "device", "layout", "owner", "ptr")
    _instead = "; copy its content with x.numpy() and device.array(…)"

    def __init__(self, device: DeviceLike, ptr: int, layout: Layout, owner: Any):
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
        from .views import indexed

        return self._view(*indexed(self.layout, key if isinstance(key, tuple) else (key,)))

    def __iter__(self) -> Iterator[DeviceArray]:
        """Iterate over views along the first dim."""
        return (self[i] for i in range(len(self)))

    def transpose(self, *axes: int) -> DeviceArray:
        """Return a view with permuted dims; reversed if no axes are given."""
        from .views import transposed

        return self._view(*transposed(self.layout, axes))

    @property
    def T(self) -> DeviceArray:
        return self.transpose()

    def reshape(self, *shape: int) -> DeviceArray:
        """Return a view of another shape. One extent may be -1. Raises `ArgumentError` if a copy would be needed."""
        from .views import reshaped

        return self._view(*reshaped(self.layout, shape))

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
        from .exporting import array_interface

        return array_interface(self)

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
