"""Who reached each byte of an array last, to read and to write.

Kept by cells, that begin as large as an access can be and are cut down to the smallest access that is made: a cell is
never reached in part. A cell's records are uint32 in arrays of their own, made when first needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from ..memory import gather, scatter
from ..wavefronts import Array

Record = Literal["write_time", "writer", "read_time", "reader"]
_LARGEST = 16


class Cells:
    """The records of an array of `nbytes` bytes, a multiple of 16."""

    def __init__(self, nbytes: int):
        self._nbytes, self.unit = nbytes, _LARGEST
        self._records: dict[Record, Array] = {}

    def cut_to(self, low_bits: int) -> None:
        """Make cells small enough for accesses whose offsets and size have no other low bits than these."""
        unit = min(low_bits & -low_bits, self.unit)
        if unit < self.unit:
            times = self.unit // unit
            self._records = {name: np.repeat(record, times) for name, record in self._records.items()}
            self.unit = unit

    def get(self, record: Record, offsets: Array, nbytes: int) -> Array | None:
        """uint32 [cells of an access, accesses]; None: nothing has been put there."""
        if record not in self._records:
            return None
        data = self._records[record].view(np.uint8)
        parts = [gather(data, at, size) for at, size in self._pieces(offsets, nbytes)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def put(self, record: Record, offsets: Array, nbytes: int, values: Array | int) -> None:
        """Record values, that broadcast to [cells of an access, accesses]; of accesses that overlap, the last stays."""
        if record not in self._records:
            self._records[record] = np.zeros(self._nbytes // self.unit, np.uint32)
        data = self._records[record].view(np.uint8)
        spread = np.broadcast_to(np.asarray(values, np.uint32), (nbytes // self.unit, len(offsets)))
        first = 0
        for at, size in self._pieces(offsets, nbytes):
            scatter(data, at, size, spread[first : first + size // 4])
            first += size // 4

    def _pieces(self, offsets: Array, nbytes: int) -> Iterator[tuple[Array, int]]:
        return pieces((offsets >> (self.unit.bit_length() - 1)) << 2, 4 * nbytes // self.unit)


def pieces(offsets: Array, nbytes: int) -> Iterator[tuple[Array, int]]:
    """Accesses as several of at most 16 bytes: (offsets, bytes) of each."""
    for first in range(0, nbytes, _LARGEST):
        yield (offsets + first if first else offsets), min(_LARGEST, nbytes - first)
