"""Reject calls whose written tensors share memory with another argument.

A result would otherwise depend on which program writes first. Pairs that the contract lists as `in_place` may be the
same array, element by element.

Inputs may overlap each other. `contract/overlap.py` decides what overlaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np

from aot_runtime.contract.layout import Layout
from aot_runtime.contract.overlap import Distances, Strided, is_nested
from aot_runtime.contract.records import Op, Tensor
from aot_runtime.errors import ArgumentError


class Pair(msgspec.Struct, frozen=True):
    """A tensor that a call writes to, and another one that it must not share memory with.

    Attributes:
        distances: from the address of the written tensor to that of the other.
        in_place: the contract allows both to be the same array.
        is_same: they have the same shape and strides, so they are the same array if their addresses are equal.
    """

    written: str
    other: str
    distances: Distances
    in_place: bool
    is_same: bool

    def may_overlap(self, distance: int) -> bool:
        """Return True if the tensors may overlap at this distance, other than as the contract allows."""
        if self.in_place and self.is_same and distance == 0:
            return False
        return self.distances.may_overlap(distance)


def overlap_lines(op: Op, layouts: Mapping[str, Layout], given: frozenset[str], namespace: dict[str, Any]) -> list[str]:
    """Return the lines of a plan that reject overlapping arrays.

    The runtime's own arrays cannot overlap if their owners differ, so a call compares owners first. Arrays of other
    libraries have no owner, so their addresses are compared.

    Args:
        layouts: layouts of all tensors of the call.
        given: the tensors that the caller passes; the others are allocated for the call.
        namespace: globals of the lines, which are extended.
    """
    lines = []
    pointers = {tensor.name for tensor in op.tensors if tensor.pointer}  # a kernel's own arguments say how they lie
    places = {name: _of_layout(layout) for name, layout in layouts.items() if name in given - pointers}
    for tensor, pairs in _pairs(op, places):
        conditions = []
        for pair in pairs:
            if layouts[pair.written].foreign or layouts[pair.other].foreign:
                conditions.append(_by_address(pair, namespace))
            else:
                conditions.append(f"_owner_of is {pair.other}.owner")
        if any("_owner_of" in condition for condition in conditions):
            lines.append(f"    _owner_of = {tensor.name}.owner")
        check = f"_require_apart_{tensor.name}"
        namespace[check] = partial(require_apart, op.name, pairs)
        addresses = ", ".join(f"{name}.ptr" for name in (tensor.name, *(pair.other for pair in pairs)))
        lines += [f"    if {' or '.join(conditions)}:", f"        {check}({addresses})"]
    return lines


def require_apart_on_host(op: Op, tensors: Mapping[str, Any]) -> None:
    """Check the numpy arrays of a call, whose results are copied back into them. Raises `ArgumentError`."""
    arrays = {name: value for name, value in tensors.items() if isinstance(value, np.ndarray)}
    for tensor in op.tensors:
        value = arrays.get(tensor.name)
        if tensor.role != "input" and value is not None:
            require_distinct_elements(op.name, tensor.name, value.shape, value.strides, value.itemsize)
    places = {name: _of_numpy(value) for name, value in arrays.items()}
    for tensor, pairs in _pairs(op, places):
        addresses = (arrays[name].__array_interface__["data"][0] for name in (p.other for p in pairs))
        require_apart(op.name, pairs, arrays[tensor.name].__array_interface__["data"][0], *addresses)


def require_distinct_elements(
    op: str, tensor: str, shape: Sequence[int], strides: Sequence[int], itemsize: int = 1
) -> None:
    """Raise `ArgumentError` if a written array may overlap itself.

    Args:
        itemsize: size of an element, in the unit of the strides.
    """
    if not is_nested(shape, strides, itemsize):
        in_elements = [stride // itemsize for stride in strides]
        raise ArgumentError(
            f"{op}: argument '{tensor}' is written to, but may overlap itself: strides {in_elements} for shape "
            f"{list(shape)} are not nested; pass a contiguous array"
        )


def require_apart(op: str, pairs: Sequence[Pair], written: int, *others: int) -> None:
    """Raise `ArgumentError` for the first pair that may overlap.

    Args:
        pairs: the pairs of one written tensor.
        written, others: address of the written tensor, and addresses of the other tensor of each pair.
    """
    for pair, address in zip(pairs, others, strict=True):
        if pair.may_overlap(address - written):
            itself = f", or '{pair.other}' itself (the same address, shape and strides)" if pair.in_place else ""
            raise ArgumentError(
                f"{op}: arguments '{pair.written}' and '{pair.other}' may overlap in memory, and '{pair.written}' is "
                f"written to; pass an array with memory of its own{itself}"
            )


def _pairs(op: Op, places: Mapping[str, Strided]) -> Iterator[tuple[Tensor, tuple[Pair, ...]]]:
    """Yield each written tensor with each tensor that it must not overlap, without repeating pairs."""
    present = [name for name, place in places.items() if place.reach() != (0, 0)]
    tensors = {tensor.name: tensor for tensor in op.tensors}
    done: set[str] = set()
    for tensor in op.tensors:
        if tensor.role != "input" and tensor.name in present:
            done.add(tensor.name)
            others = (tensors[name] for name in present if name not in done)
            if pairs := tuple(_pair(tensor, other, places) for other in others):
                yield tensor, pairs


def _pair(tensor: Tensor, other: Tensor, places: Mapping[str, Strided]) -> Pair:
    one, two = places[tensor.name], places[other.name]
    in_place = other.name in tensor.in_place or tensor.name in other.in_place
    return Pair(tensor.name, other.name, Distances(one, two), in_place, _same(one) == _same(two))


def _same(place: Strided) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return itemsize, shape and strides. Arrays that agree in these and in the address are the same array."""
    return place.itemsize, tuple((extent, stride if extent > 1 else 0) for extent, stride in place.dims)


def _by_address(pair: Pair, namespace: dict[str, Any]) -> str:
    """Return the condition that the address ranges of two arrays overlap. Bounds are names, so one source serves all
    shapes."""
    number = len(namespace)  # joined, the names of two pairs may be one: a and b_c, a_b and c
    low, high = f"_low{number}", f"_high{number}"
    namespace[low], namespace[high] = pair.distances.bounds
    return f"{low} < {pair.other}.ptr - {pair.written}.ptr < {high}"


def _of_layout(layout: Layout) -> Strided:
    strides = (stride * layout.itemsize for stride in layout.strides)
    return Strided(layout.itemsize, tuple(zip(layout.shape, strides, strict=True)))


def _of_numpy(array: np.ndarray[Any, Any]) -> Strided:
    return Strided(array.itemsize, tuple(zip(array.shape, array.strides, strict=True)))
