"""Data of linear layers for each row: memory for 8-bit activations, and the number of the row's adapter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from aot_runtime import Device, DeviceArray, Stream


@dataclass(frozen=True)
class EightBitRows:
    """The shape of 8-bit activations. block: columns that share a scale."""

    columns: int
    dtype: np.dtype
    block: int


class Rows:
    """Memory for `count` rows. Every layer overwrites it, so that the passes of one stream may share it.

    Attributes:
        adapters: the number of each row's adapter, int32 [count]; -1 (the initial value): none. None if the model has
            no adapters.
    """

    def __init__(self, device: Device, count: int, needs: Iterable[EightBitRows], adapted: bool = False):
        self.adapters = device.array(np.full(count, -1, np.int32)) if adapted else None
        self._memory = {
            need: (
                device.empty((count, need.columns), need.dtype),
                device.empty((count, -(-need.columns // need.block)), np.float32),
            )
            for need in dict.fromkeys(needs)
        }

    def choose(self, adapters: Sequence[int], stream: Stream | None = None) -> None:
        """Set the adapters of the first rows, by number; the other rows have none."""
        if self.adapters is not None:
            found = np.full(len(self.adapters), -1, np.int32)
            found[: len(adapters)] = adapters
            self.adapters.copy_from(found, stream)

    def eight_bits(self, need: EightBitRows, count: int) -> tuple[DeviceArray, DeviceArray]:
        """(codes [count, columns], scales float32 [count, cdiv(columns, block)]), the memory of the first rows."""
        codes, scales = self._memory[need]
        return (codes, scales) if count == len(codes) else (codes[:count], scales[:count])
