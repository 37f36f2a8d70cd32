"""Tensor descriptors that the host makes (`TensorDescriptor`), as kernels take them that use pointers in their place.

Triton passes such a parameter as a pointer and numbers: shape and strides as its loads and stores use them, two flags,
and once more shape and strides as the kernel's own text reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

_TYPE = re.compile(r"tensordesc<(\w+)\[([\d,]+)\]>")


class DescriptorField(NamedTuple):
    """An argument that a descriptor is passed as: `kind` is `ptr`, `shape`, `stride`, `nan` or `tf32`; of a dim.

    is_one: it is the stride of the last dim.
    """

    name: str
    type: str
    kind: str
    dim: int = 0
    is_one: bool = False


def descriptor_type(element: str, block: Iterable[int]) -> str:
    """Triton's name of the type of a descriptor of blocks of these extents, its elements of a Triton type."""
    return f"tensordesc<{element}[{','.join(map(str, block))}]>"


def is_descriptor(type_name: str) -> bool:
    """Whether a type is that of a descriptor."""
    return type_name.startswith("tensordesc<")


def descriptor_fields(name: str, type_name: str) -> Iterator[DescriptorField]:
    """The arguments that a descriptor is passed as, in order."""
    found = _TYPE.fullmatch(type_name)
    if found is None:
        raise ValueError(f"{type_name!r} is no type of a tensor descriptor")
    last = found[2].count(",")
    dims = range(last + 1)
    yield DescriptorField(f"{name}.ptr", f"*{found[1]}", "ptr")
    yield from (DescriptorField(f"{name}.shape.{dim}", "i64", "shape", dim) for dim in dims)
    yield from (DescriptorField(f"{name}.stride.{dim}", "i64", "stride", dim, dim == last) for dim in dims)
    yield DescriptorField(f"{name}.nan", "i1", "nan")
    yield DescriptorField(f"{name}.tf32", "i1", "tf32")
    yield from (DescriptorField(f"{name}.read_shape.{dim}", "i32", "shape", dim) for dim in dims)
    yield from (DescriptorField(f"{name}.read_stride.{dim}", "i64", "stride", dim, dim == last) for dim in dims)


def run_time_arguments(signature: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(name, type) of all that a kernel of a signature takes at run time, in order."""
    for name, type_name in signature:
        if is_descriptor(type_name):
            yield from ((field.name, field.type) for field in descriptor_fields(name, type_name))
        elif type_name != "constexpr":
            yield name, type_name
