"""Memory that a call writes to, and that another argument lies in too: allowed only where the contract says so.

A result would otherwise depend on which program writes first. `in_place` of a tensor lists the inputs that it may be:
one array, element by element at the same place. Inputs that are only read may overlap as they like.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from aot_runtime.contract.layout import Layout, disjoint
from aot_runtime.contract.records import Op, Tensor
from aot_runtime.device.array import DeviceArray
from aot_runtime.errors import ArgumentError

_MAX_WORK: Any = 1 << 16
"""Effort that `numpy.shares_memory` may make for strided arrays; what takes more counts as overlapping."""


def overlap_lines(op: Op, layouts: Mapping[str, Layout], given: frozenset[str], namespace: dict[str, Any]) -> list[str]:
    """Lines of a plan that hold the arrays of a call apart.

    Of arrays of this library's own memory it is enough to compare owners: each owns memory that no other one has. Those
    of other libraries' memory are compared by address. What looks like an overlap is then examined by `hold_apart`.

    Args:
        layouts: of all tensors that are there.
        given: what the caller passes; the others are allocated for the call, apart from everything.
        namespace: of the lines; it is added to.
    """
    lines = []
    present = [name for name, layout in layouts.items() if name in given and layout.size]
    for tensor, others in _written(op, present):
        conditions = []
        for other in others:
            if layouts[tensor.name].foreign or layouts[other].foreign:
                conditions.append(_by_address(tensor.name, other, layouts, namespace))
            else:
                conditions.append(f"_owner_of is {other}.owner")
        if any("_owner_of" in condition for condition in conditions):
            lines.append(f"    _owner_of = {tensor.name}.owner")
        check = f"_hold_apart_{tensor.name}"
        namespace[check] = partial(hold_apart, op, tensor, others)
        lines += [f"    if {' or '.join(conditions)}:", f"        {check}({', '.join((tensor.name, *others))})"]
    return lines


def _written(op: Op, present: list[str]) -> Iterator[tuple[Tensor, tuple[str, ...]]]:
    """Each tensor that is written to, with the others that it is held apart from; each two tensors once."""
    done: set[str] = set()
    for tensor in op.tensors:
        if tensor.role != "input" and tensor.name in present:
            done.add(tensor.name)
            others = tuple(name for name in present if name not in done)
            if others:
                yield tensor, others


def _by_address(name: str, other: str, layouts: Mapping[str, Layout], namespace: dict[str, Any]) -> str:
    """The condition that the address ranges of two arrays overlap. Extents are names: one source serves all shapes."""
    one, two = layouts[name], layouts[other]
    number = len(namespace)  # joined, the names of two pairs may be one: a and b_c, a_b and c
    low, high = f"_low{number}", f"_high{number}"
    namespace[low] = two.low * two.itemsize - one.high * one.itemsize
    namespace[high] = two.high * two.itemsize - one.low * one.itemsize
    return f"{low} < {name}.ptr - {other}.ptr < {high}"


def hold_apart_on_host(op: Op, tensors: Mapping[str, Any]) -> None:
    """The same for the numpy arrays of a call, whose results are copied back into them. Raises `ArgumentError`."""
    present = [name for name, value in tensors.items() if isinstance(value, np.ndarray) and value.size]
    for tensor in op.tensors:
        value = tensors[tensor.name]
        if (
            tensor.role != "input"
            and tensor.name in present
            and not disjoint(value.shape, value.strides, value.itemsize)
        ):
            raise ArgumentError(
                f"{op.name}: argument '{tensor.name}' is written to, but overlaps itself: strides {value.strides}"
            )
    for tensor, others in _written(op, present):
        hold_apart(op, tensor, others, tensors[tensor.name], *(tensors[name] for name in others))


def hold_apart(op: Op, tensor: Tensor, names: tuple[str, ...], written: Any, *others: Any) -> None:
    """Raise `ArgumentError` where an array that is written to shares an element's memory with another one.

    Args:
        names: of the tensors `others`.
        written, others: numpy arrays, or device arrays.
    """
    target = _addresses(written)
    roles = {item.name: item for item in op.tensors}
    for name, other in zip(names, map(_addresses, others), strict=True):
        in_place = name in tensor.in_place or tensor.name in roles[name].in_place
        if (in_place and _same(target, other)) or not _overlap(target, other):
            continue
        itself = f", or '{name}' itself (the same address, shape and strides)" if in_place else ""
        raise ArgumentError(
            f"{op.name}: arguments '{tensor.name}' and '{name}' overlap in memory, and '{tensor.name}' is written to; "
            f"allowed: memory of its own{itself}"
        )


def _addresses(array: Any) -> np.ndarray[Any, Any]:
    """An array whose memory is nowhere read: numpy's arithmetic of addresses, for memory of a device too."""
    if not isinstance(array, DeviceArray):
        return array
    itemsize = array.layout.itemsize
    data = {"data": (array.ptr, False), "shape": array.shape, "strides": array.strides, "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__={**data, "typestr": f"|V{itemsize}"}))


def _same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    start, end = (array.__array_interface__["data"][0] for array in (one, other))
    strides = (tuple(s for s, n in zip(a.strides, a.shape, strict=True) if n > 1) for a in (one, other))
    return bool(start == end) and one.shape == other.shape and len({*strides}) == 1 and one.itemsize == other.itemsize


def _overlap(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    try:
        return np.shares_memory(one, other, max_work=_MAX_WORK)
    except np.exceptions.TooHardError:
        return True
