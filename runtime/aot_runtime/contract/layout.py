"""Interned array layouts: the properties by which calls are dispatched. Plans are looked up by identity."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from .dtypes import DTYPES, INT64
from .records import Op, Tensor

Shape = tuple[int, ...]

ALIGNMENT = 16
"""Bytes that addresses and strides must be multiples of to count as aligned: the widest load or store of a lane."""

RANGE_32 = 2**31
"""Reach of 32-bit offsets: in bytes for `tt.pointer_range`, in elements for kernels without 64-bit offsets."""


class Layout:
    """dtype, shape, strides and alignment of an array on one device. Make one with `make_layout`.

    Equal layouts are one object (until the intern table drops it), so hashing and comparing are by identity.

    Attributes:
        device: (driver name, device index).
        dtype: the dtype's name.
        shape: extents.
        strides: in elements.
        kernel_strides: the strides that are passed to kernels (see `strides_for`): 0 for dims of extent 1, which
            broadcasts them.
        aligned: the address is a multiple of 16 bytes.
        foreign: the memory belongs to another library, so overlap cannot be ruled out by comparing owners.
        writeable: the owner permits writes.
        low, high: range of element offsets from the address, `high` exclusive.
    """

    __slots__ = (
        "aligned", "device", "dtype", "foreign", "high", "itemsize", "kernel_strides", "low", "shape", "strides",
        "writeable",
    )  # fmt: skip

    def __init__(
        self, device: tuple[str, int], dtype: str, shape: Shape, strides: Shape, aligned: bool, foreign: bool,
        writeable: bool,
    ):  # fmt: skip
        self.device, self.dtype, self.shape, self.strides, self.aligned = device, dtype, shape, strides, aligned
        self.foreign, self.writeable = foreign, writeable
        self.itemsize = DTYPES[dtype].size
        self.kernel_strides = tuple(0 if extent == 1 else stride for extent, stride in zip(shape, strides, strict=True))
        reach = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
        empty = 0 in shape
        self.low = 0 if empty else sum(min(0, step) for step in reach)
        self.high = 0 if empty else sum(max(0, step) for step in reach) + 1

    @property
    def unit(self) -> int:
        """Number of elements in `ALIGNMENT` bytes."""
        return aligned_elements(self.itemsize)

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def fits_32_bits(self) -> bool:
        """True if all bytes lie less than 2**31 bytes behind the address, as `tt.pointer_range` of 32 takes it."""
        return self.low >= 0 and self.high * self.itemsize < RANGE_32

    @property
    def packed_order(self) -> Shape | None:
        """The dims from outermost to innermost if the array fills its memory without gaps or overlap, else None."""
        order = sorted(range(len(self.shape)), key=lambda dim: (-self.strides[dim], dim))
        step = 1
        if 0 in self.shape:
            return tuple(range(len(self.shape)))
        for dim in reversed(order):
            if self.shape[dim] != 1 and self.strides[dim] != step:
                return None
            step *= self.shape[dim]
        return tuple(order)

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)} strides {list(self.strides)}{'' if self.aligned else ' unaligned'}"


def aligned_elements(itemsize: int) -> int:
    """Return the number of elements of `itemsize` bytes in `ALIGNMENT` bytes, at least 1."""
    return max(1, ALIGNMENT // itemsize)


def divisors(op: Op, names: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers that extents of an op's dims are multiples of in aligned calls.

    Args:
        names: dtype variable → dtype.
    """
    units = {tensor.name: aligned_elements(DTYPES[names.get(tensor.dtype, tensor.dtype)].size) for tensor in op.tensors}
    return {item.dim: item.elements or max(units[name] for name in item.tensors) for item in op.divisible}


def allowed_dtypes(op: Op, tensor: Tensor) -> tuple[str, ...]:
    """Return the names of the dtypes that a tensor may have."""
    return (tensor.dtype, INT64.name) if tensor.also_int64 else op.dtypes.get(tensor.dtype, (tensor.dtype,))


def strides_for(tensor: Tensor, layout: Layout) -> Shape:
    """Return the strides that kernels get: those of the low halves if a tensor of int32 is passed as int64."""
    if tensor.also_int64 and layout.dtype == INT64.name:
        return tuple(2 * stride for stride in layout.kernel_strides)
    return layout.kernel_strides


def make_layout(
    device: tuple[str, int], dtype: str, shape: Shape, strides: Shape, aligned: bool, foreign: bool = False,
    writeable: bool = True,
) -> Layout:  # fmt: skip
    """Return the interned `Layout` with these properties."""
    return _interned(device, dtype, shape, strides, aligned, foreign, writeable)


_interned = lru_cache(maxsize=1 << 16)(Layout)  # always called with all arguments, so that keys are equal


def packed_strides(shape: Shape, order: Shape | None = None) -> Shape:
    """Return the strides in elements of an array without gaps. `order` lists the dims from outermost to innermost."""
    strides = [0] * len(shape)
    step = 1
    for dim in reversed(order if order is not None else range(len(shape))):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def innermost_dim(shape: Shape, strides: Shape, candidates: Shape) -> int | None:
    """Return the first of `candidates` that has stride 1, else the first of extent 1; None if there is none."""
    found = [dim for dim in candidates if strides[dim] == 1 and shape[dim] != 1]
    return next(iter(found or [dim for dim in candidates if shape[dim] == 1]), None)


def contiguous_order(rank: int, contiguous: Shape) -> Shape:
    """Return the order of dims (outermost first) that packs `contiguous` innermost and keeps the rest in place."""
    return (*(dim for dim in range(rank) if dim not in contiguous), *contiguous)


def packing_order(tensor: Tensor, rank: int, like: Shape = (), innermost: int | None = None) -> Shape | None:
    """Return the order of dims (outermost first) in which an array for a tensor is packed.

    Contiguous dims are innermost; the others stay in place. If several dims may be the innermost, it is `innermost`,
    else the one with the smallest stride in `like`. An array for a pointer keeps its order of dims. Returns None if
    `rank` differs from the tensor's.
    """
    if tensor.pointer:
        return tuple(sorted(range(rank), key=lambda dim: (-like[dim], dim))) if like else tuple(range(rank))
    if rank != len(tensor.shape):
        return None
    last = tensor.contiguous
    if tensor.innermost and innermost is not None:
        last = (innermost,)
    elif tensor.innermost:
        last = (min(tensor.innermost, key=lambda dim: abs(like[dim])) if like else tensor.innermost[0],)
    return contiguous_order(rank, last)
