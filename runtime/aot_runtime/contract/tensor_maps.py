"""Tensor maps of CUDA: validation, and the extents and strides to encode.

The limits are those of `cuTensorMapEncodeTiled`, except that extents must fit in signed 32 bits, as kernels get them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from .dtypes import DTYPES
from .layout import Layout
from .records import Op, Tensor, TensorMap

MAX_RANK, MAX_BOX, MAX_EXTENT, MAX_STRIDE = 5, 256, 2**31 - 1, 2**40 - 1
"""Limits of a map: dims, extent of a box, extent of the tensor, and bytes of a stride."""
STEP = 16
"""Alignment in bytes of addresses, strides and rows of a box."""
SWIZZLES = (0, 32, 64, 128)
"""Width in bytes of the swizzle patterns, in the order of `CUtensorMapSwizzle`."""


class Mapped(msgspec.Struct, frozen=True):
    """The values of an array's tensor map besides the address, outermost dim first.

    Attributes:
        shape: extents in elements.
        strides: strides in bytes of all dims but the last.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]


def mapped(tensor_map: TensorMap, layout: Layout) -> Mapped:
    """Return the map's extents and strides for an array that `unmappable` accepts."""
    # A dim of extent 1 may have any stride, even one that is not valid in a map.
    steps = (STEP if layout.shape[dim] == 1 else layout.strides[dim] * layout.itemsize for dim in tensor_map.dims[:-1])
    return Mapped(tuple(layout.shape[dim] for dim in tensor_map.dims), tuple(steps))


def unmappable(name: str, layout: Layout, innermost: int | None) -> Iterator[str]:
    """Yield the reasons why an array cannot have a tensor map.

    Args:
        name: name of the tensor.
        innermost: the dim that the contract requires to have stride 1.
    """
    if not layout.aligned:
        yield f"the address of '{name}' is not a multiple of {STEP}, as that of a tensor map is"
    for dim, (extent, stride) in enumerate(zip(layout.shape, layout.strides, strict=True)):
        if not 1 <= extent <= MAX_EXTENT:
            yield f"dim {dim} of '{name}' is {extent}; a tensor map has 1 to {MAX_EXTENT}"
        step = stride * layout.itemsize
        if extent != 1 and dim != innermost and not (0 <= step <= MAX_STRIDE and step % STEP == 0):
            yield (
                f"stride {stride} of '{name}' in dim {dim} is {step} bytes; a tensor map has multiples of {STEP} "
                "from 0 to 2**40"
            )


def map_fault(tensor_map: TensorMap, tensor: Tensor, op: Op) -> str:
    """Return the reason why a kernarg cannot be a map of an op's tensor; empty if it can."""
    rank = len(tensor_map.box)
    dtype = DTYPES.get(tensor_map.dtype)
    is_of_tensor = tensor_map.dtype in op.dtypes.get(tensor.dtype, (tensor.dtype,))
    if dtype is None or dtype.tensor_map is None or not is_of_tensor:
        return f"its elements are {tensor_map.dtype}"
    if not 1 <= rank <= MAX_RANK or not sorted(tensor_map.dims) == [*range(len(tensor.shape))] == [*range(rank)]:
        return f"its dims are {list(tensor_map.dims)}, and its box is {list(tensor_map.box)}"
    row = tensor_map.box[-1] * dtype.size
    if not all(1 <= extent <= MAX_BOX for extent in tensor_map.box) or row % STEP:
        return f"its box is {list(tensor_map.box)} of {tensor_map.dtype}"
    if tensor_map.swizzle not in SWIZZLES or 0 < tensor_map.swizzle < row:
        return f"rows of {row} bytes are swizzled by {tensor_map.swizzle}"
    return ""
