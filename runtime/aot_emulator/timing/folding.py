"""Run-length encoding of instruction sequences by identical loop iterations.

Long loops reach a steady state: after a few iterations every further one takes the same time, so the time of many can
be extrapolated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aot_emulator.state.arrays import Array


@dataclass(frozen=True, eq=False)
class Folded:
    """A folded sequence. parts: (instruction sequence, repetitions), in order."""

    parts: tuple[tuple[Array, int], ...]

    def unfolded(self, most: int | None = None) -> Array:
        """Return the sequence, with at most `most` repetitions of each part."""
        counted = ((part, count if most is None or count == 1 else min(count, most)) for part, count in self.parts)
        return np.concatenate([np.tile(part, count) for part, count in counted])

    def repetitions(self, most: int | None = None) -> int:
        """Return the total repetitions of the repeated parts, with at most `most` of each."""
        return sum(count if most is None else min(count, most) for _, count in self.parts if count > 1)

    @property
    def length(self) -> int:
        return sum(len(part) * count for part, count in self.parts)


def fold(sequence: Array, header: int | None) -> Folded:
    """Fold a sequence at a loop. header: the loop's first instruction; None: no loop."""
    heads = np.flatnonzero(sequence == header) if header is not None else np.zeros(0, np.int64)
    if len(heads) < 2:
        return Folded(((sequence, 1),))
    pieces = [sequence[: heads[0]], *np.split(sequence[heads[0] :], heads[1:] - heads[0])]
    parts: list[tuple[Array, int]] = []
    for piece in pieces:
        if parts and np.array_equal(parts[-1][0], piece):
            parts[-1] = piece, parts[-1][1] + 1
        elif len(piece):
            parts.append((piece, 1))
    return Folded(tuple(_joined(parts)))


def _joined(parts: list[tuple[Array, int]]) -> list[tuple[Array, int]]:
    found: list[tuple[Array, int]] = []
    for part, count in parts:
        if found and count == found[-1][1] == 1:
            found[-1] = np.concatenate([found[-1][0], part]), 1
        else:
            found.append((part, count))
    return found
