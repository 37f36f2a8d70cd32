"""Shadow memory: the last reader and writer of each part of an array.

The unit is a cell. Cells start at the largest access size and are split as smaller accesses occur, so that no access
covers part of a cell. Each kind of record is a uint32 array with an element per cell, allocated on first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from aot_emulator.state.arrays import Array
from aot_emulator.state.device_memory import gather, scatter

Record = Literal["write_time", "writer", "read_time", "reader"]
_LARGEST = 16


@dataclass(frozen=True, eq=False)
class Span:
    """The cells of some accesses.

    Attributes:
        first: int64 [accesses], first cell of each access.
        count: cells per access.
    """

    first: Array
    count: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.count, len(self.first)

    @property
    def every(self) -> Array:
        """All cells, int64 [cells of an access, accesses]."""
        return self.first + np.arange(self.count)[:, None]


class Cells:
    """The records of an array of `nbytes` bytes, by cell."""

    def __init__(self, nbytes: int):
        self._nbytes, self._unit = -(-nbytes // _LARGEST) * _LARGEST, _LARGEST
        self._records: dict[Record, Array] = {}

    def span(self, offsets: Array, nbytes: int, low_bits: int) -> Span:
        """Return the cells of accesses, splitting cells if necessary.

        low_bits: bitwise OR of all offsets and the size.
        """
        self._cut_to(low_bits & -low_bits)
        return Span(offsets >> (self._unit.bit_length() - 1), nbytes // self._unit)

    def _cut_to(self, unit: int) -> None:
        if unit < self._unit:
            times = self._unit // unit
            self._records = {name: np.repeat(record, times) for name, record in self._records.items()}
            self._unit = unit

    def get(self, record: Record, span: Span) -> Array | None:
        """Return the records of a span, uint32 of its shape, or None if nothing has been recorded."""
        found = self._records.get(record)
        if found is None:
            return None
        if span.count == 1:
            return found.take(span.first)[None]
        data, places = found.view(np.uint8), pieces(span.first << 2, 4 * span.count)
        return np.concatenate([gather(data, at, size) for at, size in places])

    def put(self, record: Record, span: Span, values: Array | int) -> None:
        """Record values, broadcast to the span's shape. For overlapping accesses, the last value wins."""
        found = self._record(record)
        if span.count == 1:
            found[span.first] = values if isinstance(values, int) or values.ndim < 2 else values[0]
            return
        spread = np.broadcast_to(np.asarray(values, np.uint32), span.shape)
        first = 0
        for at, size in pieces(span.first << 2, 4 * span.count):
            scatter(found.view(np.uint8), at, size, spread[first : first + size // 4])
            first += size // 4

    def _record(self, record: Record) -> Array:
        if record not in self._records:
            self._records[record] = np.zeros(self._nbytes // self._unit, np.uint32)
        return self._records[record]


def pieces(offsets: Array, nbytes: int) -> Iterator[tuple[Array, int]]:
    """Split accesses into pieces of at most 16 bytes, yielding (offsets, bytes) of each."""
    for first in range(0, nbytes, _LARGEST):
        yield (offsets + first if first else offsets), min(_LARGEST, nbytes - first)
