"""What linear layers need of the rows that they compute, beside these: memory for numbers of 8 bits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from aot_runtime import Device, DeviceArray


@dataclass(frozen=True)
class EightBitRows:
    """Rows of numbers of 8 bits. block: columns that share a scale."""

    columns: int
    dtype: np.dtype
    block: int


class Rows:
    """Memory for `count` rows. It is written anew by each layer, so the passes of one stream may share it."""

    def __init__(self, device: Device, count: int, needs: Iterable[EightBitRows]):
        self._memory = {
            need: (
                device.empty((count, need.columns), need.dtype),
                device.empty((count, -(-need.columns // need.block)), np.float32),
            )
            for need in dict.fromkeys(needs)
        }

    def eight_bits(self, need: EightBitRows, count: int) -> tuple[DeviceArray, DeviceArray]:
        """(codes [count, columns], scales float32 [count, cdiv(columns, block)]) for so many of the rows."""
        codes, scales = self._memory[need]
        return (codes, scales) if count == len(codes) else (codes[:count], scales[:count])
