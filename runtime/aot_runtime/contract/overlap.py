"""The rule that decides whether the elements of arrays may share memory. `aot/c/support/overlap.h` has the same in C.

No overlap is ever missed, but some arrays that share nothing are said to overlap.

- **Two arrays** are apart if their ranges of addresses are, or if memory can be divided into rows in which they have
  different columns, as `qkv[:, :64]` and `qkv[:, 64:]` have, or `x[::2]` and `x[1::2]`. Strides that are multiples of
  the length of a row stay in their columns. The lengths that are tried are the strides, and common divisors of two. So
  parts of one array are told apart wherever they differ along a dim, but for every other element of rows of odd length.
- **One array** has each element once if its strides are nested: each steps over all that the smaller ones reach. All
  views that slicing, transposing and reshaping give are; shape (2, 3) with strides (3, 2) is not.
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
        """The first byte, and the one after the last, along the dims whose strides are not multiples of `period`.

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
        """The ranges of addresses overlap at distances between these two."""
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
        """Tell whether arrays at this distance may share memory."""
        low, high = self.bounds
        if not low < distance < high:
            return False
        return not any(first <= (distance + offset) % row <= last for row, offset, first, last in self.columns)


def is_nested(shape: Sequence[int], strides: Sequence[int], itemsize: int = 1) -> bool:
    """Tell whether each stride steps over all that the smaller ones reach, so that no two elements share memory.

    Args:
        itemsize: of an element, in the unit of the strides.
    """
    reach = 0
    for step, extent in sorted((abs(step), extent) for step, extent in zip(strides, shape, strict=True) if extent != 1):
        if step < reach + itemsize:
            return 0 in shape
        reach += step * (extent - 1)
    return True
