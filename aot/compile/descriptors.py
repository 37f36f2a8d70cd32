"""Tensor descriptors made by the host (`TensorDescriptor`), as kernels take them.

A Gluon kernel for hardware that copies boxes of tensors takes a tensor map, which the runtime makes, then shape and
strides. Any other kernel takes a pointer and numbers: shape and strides as Triton's loads and stores use them, two
flags, and shape and strides again as the kernel's own text reads them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from aot_runtime.contract.records import TENSOR_MAP
from aot_runtime.contract.tensor_maps import MAX_BOX

_TYPE = re.compile(r"tensordesc<(\w+)\[([\d,]+)\](?:,(.+))?>")
_LAYOUT = "NVMMASharedLayout"


class DescriptorField(NamedTuple):
    """An argument that a descriptor is passed as.

    Attributes:
        kind: `map`, `ptr`, `shape`, `stride`, `nan` or `tf32`.
        dim: the dim of a shape or stride.
        is_one: this is the stride of the last dim.
    """

    name: str
    type: str
    kind: str
    dim: int = 0
    is_one: bool = False


class MapLayout(NamedTuple):
    """Layout of a box in shared memory, as kernels state it by Gluon's `NVMMASharedLayout`.

    Attributes:
        swizzle: bytes of the swizzle pattern of a row; 0: none.
        bits: size of an element.
        rank: dims of a box.
    """

    swizzle: int
    bits: int
    rank: int

    @property
    def text(self) -> str:
        """The layout as it is written in types of descriptors."""
        return f"{_LAYOUT}(swizzle_byte_width={self.swizzle}, element_bitwidth={self.bits}, rank={self.rank})"

    def box(self, block: Sequence[int]) -> tuple[int, ...]:
        """Shape of one copy of a block: the hardware limits it, and rows are at most as long as the pattern."""
        row = self.swizzle * 8 // self.bits or MAX_BOX
        return (*(min(extent, MAX_BOX) for extent in block[:-1]), min(block[-1], row, MAX_BOX))


def widest_layout(block: Sequence[int], bits: int) -> MapLayout:
    """Return the layout with the widest pattern that rows of a block fill, as Gluon's `get_default_for` does."""
    rows, row = 1, block[-1] * bits // 8
    for extent in block[:-1]:
        rows *= extent
    widths = (width for width in (128, 64, 32) if row % width == 0 and len(block) > 1 and rows >= 8)
    return MapLayout(next(widths, 0), bits, len(block))


def parse_layout(text: str) -> MapLayout:
    """Parse a call of Gluon's layout class with constant arguments. Raises ValueError for anything else."""
    names = ("swizzle_byte_width", "element_bitwidth", "rank", "transposed", "fp4_padded", "cga_layout")
    plain = {"rank": 2, "transposed": False, "fp4_padded": False, "cga_layout": []}
    match ast.parse(text, mode="eval").body:
        case ast.Call(ast.Name(id=name), given, keywords) if name == _LAYOUT and len(given) <= len(names):
            values = dict(zip(names, map(ast.literal_eval, given), strict=False))
            values |= {str(key.arg): ast.literal_eval(key.value) for key in keywords}
        case _:
            raise ValueError(f"'{text}': the layout of a tensor map must be {_LAYOUT}")
    if missing := [name for name in names[:2] if name not in values]:
        raise ValueError(f"'{text}' lacks {missing[0]}")
    if other := [name for name, value in values.items() if name not in names[:3] and value != plain.get(name, value)]:
        raise ValueError(f"'{text}' has {other[0]}, which is not supported in the layout of a tensor map")
    if unknown := values.keys() - set(names):
        raise ValueError(f"unknown key {min(unknown)} of {_LAYOUT}")
    return MapLayout(*(values.get(name, plain.get(name)) for name in names[:3]))


def descriptor_type(element: str, block: Iterable[int], layout: MapLayout | None = None) -> str:
    """Triton's name of a descriptor's type.

    Args:
        element: a Triton type.
        block: extents of the blocks that it describes.
        layout: of a tensor map; None: the descriptor is passed as a pointer.
    """
    return f"tensordesc<{element}[{','.join(map(str, block))}]{f',{layout.text}' if layout else ''}>"


def is_descriptor(type_name: str) -> bool:
    """Tell if a type is a tensor descriptor's."""
    return type_name.startswith("tensordesc<")


def is_map(type_name: str) -> bool:
    """Tell if a type is that of a descriptor passed as a tensor map."""
    return is_descriptor(type_name) and _LAYOUT in type_name


def map_box(type_name: str) -> tuple[MapLayout, tuple[int, ...]]:
    """Return the layout of a tensor map, and the box that its copies take."""
    _, block, layout = _parts(type_name)
    found = parse_layout(layout)
    return found, found.box(block)


def _parts(type_name: str) -> tuple[str, tuple[int, ...], str]:
    found = _TYPE.fullmatch(type_name)
    if found is None:
        raise ValueError(f"invalid type of a tensor descriptor: {type_name!r}")
    return found[1], tuple(map(int, found[2].split(","))), found[3] or ""


def descriptor_fields(name: str, type_name: str) -> Iterator[DescriptorField]:
    """Yield the arguments that a descriptor is passed as, in order."""
    element, block, layout = _parts(type_name)
    last = len(block) - 1
    dims = range(last + 1)
    if layout:
        yield DescriptorField(f"{name}.map", TENSOR_MAP, "map")
        yield from (DescriptorField(f"{name}.shape.{dim}", "i32", "shape", dim) for dim in dims)
        yield from (DescriptorField(f"{name}.stride.{dim}", "i64", "stride", dim, dim == last) for dim in dims)
        return
    yield DescriptorField(f"{name}.ptr", f"*{element}", "ptr")
    yield from (DescriptorField(f"{name}.shape.{dim}", "i64", "shape", dim) for dim in dims)
    yield from (DescriptorField(f"{name}.stride.{dim}", "i64", "stride", dim, dim == last) for dim in dims)
    yield DescriptorField(f"{name}.nan", "i1", "nan")
    yield DescriptorField(f"{name}.tf32", "i1", "tf32")
    yield from (DescriptorField(f"{name}.read_shape.{dim}", "i32", "shape", dim) for dim in dims)
    yield from (DescriptorField(f"{name}.read_stride.{dim}", "i64", "stride", dim, dim == last) for dim in dims)


def run_time_arguments(signature: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield (name, type) of each run-time argument of a signature, in order."""
    for name, type_name in signature:
        if is_descriptor(type_name):
            yield from ((field.name, field.type) for field in descriptor_fields(name, type_name))
        elif type_name != "constexpr":
            yield name, type_name
