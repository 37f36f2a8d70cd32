"""Layout of a kernel's arguments in its kernarg segment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aot_runtime.contract.dtypes import SCALAR_TYPES
from aot_runtime.contract.records import TENSOR_MAP, TENSOR_MAP_ALIGNMENT, TENSOR_MAP_BYTES

from .descriptors import run_time_arguments

SCRATCH_POINTERS = (".global_scratch", ".profile_scratch")
"""Pointers that Triton appends to every kernel's parameters. The dot keeps them apart from parameters' names."""


class KernargField(NamedTuple):
    name: str
    type: str
    """Triton's name of the type: `*fp16`, `i64`, …"""
    offset: int
    size: int


def type_bytes(type_name: str) -> int:
    """Size of an argument of a Triton type. Raises ValueError if the type cannot be an argument."""
    if type_name.startswith("*"):
        return 8
    if type_name == TENSOR_MAP:
        return TENSOR_MAP_BYTES
    if type_name not in SCALAR_TYPES:
        allowed = ", ".join(SCALAR_TYPES)
        raise ValueError(f"kernel argument type {type_name!r}: allowed are pointers (*…) and {allowed}")
    return SCALAR_TYPES[type_name].size


def kernarg_layout(signature: Sequence[tuple[str, str]], start: int = 0) -> tuple[KernargField, ...]:
    """Return the fields of the kernarg segment: the run-time arguments, then Triton's two scratch pointers.

    Args:
        signature: (parameter, Triton type or `constexpr`) in parameter order.
        start: address of the segment modulo its alignment, which decides the alignment of large arguments.
    """
    arguments = run_time_arguments(signature)
    fields: list[KernargField] = []
    end = 0
    for name, type_name in [*arguments, *((pointer, "*i8") for pointer in SCRATCH_POINTERS)]:
        size = type_bytes(type_name)
        step = TENSOR_MAP_ALIGNMENT if type_name == TENSOR_MAP else size
        offset = -(-(start + end) // step) * step - start
        fields.append(KernargField(name, type_name, offset, size))
        end = offset + size
    return tuple(fields)


def kernarg_bytes(layout: tuple[KernargField, ...]) -> int:
    """Size of the segment: it ends with its last field, which is a pointer."""
    return layout[-1].offset + layout[-1].size
