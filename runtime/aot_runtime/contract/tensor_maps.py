"""Tensor maps: which tensors the hardware can copy boxes of, and the numbers that a map of one is made of.

The limits are those of `cuTensorMapEncodeTiled`; extents are held to 32 bits with a sign, as kernels get them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from .dtypes import DTYPES
from .layout import Layout
from .records import Op, Tensor, TensorMap

MAP_DTYPES: Mapping[str, int] = {
    **dict.fromkeys(("int8", "uint8", *(name for name in DTYPES if name.startswith("float8"))), 0),
    **dict.fromkeys(("int16", "uint16"), 1),
    "uint32": 2,
    "int32": 3,
    "float16": 6,
    "float32": 7,
    "bfloat16": 9,
}
"""Dtypes of the elements of tensor maps → CUDA's `CUtensorMapDataType`; bytes go by the unsigned type of their size."""
MAX_RANK, MAX_BOX, MAX_EXTENT, MAX_STRIDE = 5, 256, 2**31 - 1, 2**40 - 1
"""Dims of a map, elements of a box along one of them, elements of a tensor along one, and bytes of a stride."""
STEP = 16
"""Bytes that addresses, strides and rows of a box are multiples of."""
SWIZZLES = (0, 32, 64, 128)
"""Bytes of a pattern, in the order of `CUtensorMapSwizzle`."""


class Mapped(msgspec.Struct, frozen=True):
    """What a map of an array has besides the address, by dims from outermost to innermost: extents in elements, and
    strides in bytes without that of the last dim."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


def mapped(tensor_map: TensorMap, layout: Layout) -> Mapped:
    """The map's numbers for an array in which `unmappable` finds no fault."""
    # A dim of one element may have any stride, also one that no map has.
    steps = (STEP if layout.shape[dim] == 1 else layout.strides[dim] * layout.itemsize for dim in tensor_map.dims[:-1])
    return Mapped(tuple(layout.shape[dim] for dim in tensor_map.dims), tuple(steps))


def unmappable(name: str, layout: Layout, innermost: int | None) -> Iterator[str]:
    """Why there is no map of an array; nothing if there is one.

    Args:
        name: of its tensor.
        innermost: the dim that the contract holds to a stride of 1.
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
    """Why a kernarg cannot be a map of a tensor of an op; empty if it can."""
    rank = len(tensor_map.box)
    if tensor_map.dtype not in MAP_DTYPES or tensor_map.dtype not in op.dtypes.get(tensor.dtype, (tensor.dtype,)):
        return f"its elements are {tensor_map.dtype}"
    if not 1 <= rank <= MAX_RANK or not sorted(tensor_map.dims) == [*range(len(tensor.shape))] == [*range(rank)]:
        return f"its dims are {list(tensor_map.dims)}, and its box is {list(tensor_map.box)}"
    row = tensor_map.box[-1] * DTYPES[tensor_map.dtype]
    if not all(1 <= extent <= MAX_BOX for extent in tensor_map.box) or row % STEP:
        return f"its box is {list(tensor_map.box)} of {tensor_map.dtype}"
    if tensor_map.swizzle not in SWIZZLES or 0 < tensor_map.swizzle < row:
        return f"rows of {row} bytes are swizzled by {tensor_map.swizzle}"
    return ""
