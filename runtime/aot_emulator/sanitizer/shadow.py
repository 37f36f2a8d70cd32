"""Who reached each byte of an array last, to read and to write.

Kept by cells, that begin as large as an access can be and are cut down to the smallest access that is made: a cell is
never reached in part. A cell's records are uint32 in arrays of their own, made when first needed.
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
    """The cells of some accesses. first: int64 [accesses], the first cell of each; count: cells of each."""

    first: Array
    count: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.count, len(self.first)

    @property
    def every(self) -> Array:
        """int64 [cells of an access, accesses]."""
        return self.first + np.arange(self.count)[:, None]


class Cells:
    """The records of an array of `nbytes` bytes."""

    def __init__(self, nbytes: int):
        self._nbytes, self._unit = -(-nbytes // _LARGEST) * _LARGEST, _LARGEST
        self._records: dict[Record, Array] = {}

    def span(self, offsets: Array, nbytes: int, low_bits: int) -> Span:
        """The cells of accesses; low_bits: those that any offset, or the size, has."""
        self._cut_to(low_bits & -low_bits)
        return Span(offsets >> (self._unit.bit_length() - 1), nbytes // self._unit)

    def _cut_to(self, unit: int) -> None:
        if unit < self._unit:
            times = self._unit // unit
            self._records = {name: np.repeat(record, times) for name, record in self._records.items()}
            self._unit = unit

    def get(self, record: Record, span: Span) -> Array | None:
        """uint32 of the span's shape; None: nothing has been recorded."""
        found = self._records.get(record)
        if found is None:
            return None
        if span.count == 1:
            return found.take(span.first)[None]
        data, places = found.view(np.uint8), pieces(span.first << 2, 4 * span.count)
        return np.concatenate([gather(data, at, size) for at, size in places])

    def put(self, record: Record, span: Span, values: Array | int) -> None:
        """Record values, that broadcast to the span's shape; of accesses that overlap, the last stays."""
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
    """Accesses as several of at most 16 bytes: (offsets, bytes) of each."""
    for first in range(0, nbytes, _LARGEST):
        yield (offsets + first if first else offsets), min(_LARGEST, nbytes - first)
