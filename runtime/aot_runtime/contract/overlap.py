"""Conservative test for arrays whose elements share memory. `aot/c/support/overlap.h` has the same rule in C.

It misses no overlap, but reports some arrays that share nothing.

- **Two arrays** are disjoint if their address ranges are. They are also disjoint if memory can be divided into rows in
  which they take different columns, such as `qkv[:, :64]` and `qkv[:, 64:]`, or `x[::2]` and `x[1::2]`. A stride that
  is a multiple of the row length stays in its columns. The strides and the common divisors of two strides are tried as
  row lengths. So parts of one array that differ along a dim are told apart, except for alternate elements of rows of
  odd length.
- **One array** does not overlap itself if its strides are nested, see `is_nested`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement

import msgspec


class Strided(msgspec.Struct, frozen=True):
    """The positions of an array's elements relative to its address.

    Attributes:
        itemsize: bytes of an element.
        dims: (extent, stride in bytes) of each dim.
    """

    itemsize: int
    dims: tuple[tuple[int, int], ...]

    def reach(self, period: int = 0) -> tuple[int, int]:
        """Return (first byte, end) along the dims whose strides are not multiples of `period`.

        Both are 0 if the array is empty.
        """
        low, high = 0, self.itemsize
        for extent, stride in self.dims:
            if extent == 0:
                return 0, 0
            if period == 0 or stride % period:
                low += min(0, (extent - 1) * stride)
                high += max(0, (extent - 1) * stride)
        return low, high


@dataclass(frozen=True)
class Distances:
    """The distances from the address of one array to that of another at which the two may overlap."""

    one: Strided
    other: Strided

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """(low, high): the address ranges overlap if low < distance < high."""
        (low, high), (other_low, other_high) = self.one.reach(), self.other.reach()
        if low == high or other_low == other_high:
            return 0, 0
        return low - other_high, high - other_low

    @cached_property
    def columns(self) -> tuple[tuple[int, int, int, int], ...]:
        """(row length, offset, first, last): the arrays are in different columns if the distance and the offset, modulo
        the row length, are from `first` to `last`."""
        strides = [stride for extent, stride in (*self.one.dims, *self.other.dims) if extent > 1]
        found = []
        for row in sorted({math.gcd(*pair) for pair in combinations_with_replacement(strides, 2)} - {0}):
            (low, high), (other_low, other_high) = self.one.reach(row), self.other.reach(row)
            first, last = high - low, row - (other_high - other_low)
            if first <= last:
                found.append((row, other_low - low, first, last))
        return tuple(found)

    def may_overlap(self, distance: int) -> bool:
        """Return True if arrays at this distance may share memory."""
        low, high = self.bounds
        if not low < distance < high:
            return False
        return not any(first <= (distance + offset) % row <= last for row, offset, first, last in self.columns)


def is_nested(shape: Sequence[int], strides: Sequence[int], itemsize: int = 1) -> bool:
    """Return True if each stride is larger than the reach of all smaller ones, so that no two elements share memory.

    Slices, transposes and reshapes of packed arrays are nested. Shape (2, 3) with strides (3, 2) is not, though its
    elements are distinct: the test is conservative.

    Args:
        itemsize: size of an element, in the unit of the strides.
    """
    reach = 0
    for step, extent in sorted((abs(step), extent) for step, extent in zip(strides, shape, strict=True) if extent != 1):
        if step < reach + itemsize:
            return 0 in shape
        reach += step * (extent - 1)
    return True
