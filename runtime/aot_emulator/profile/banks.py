"""LDS bank conflicts: number of passes of a wavefront's access.

LDS banks are 4 bytes wide; dword `d` is in bank `d % banks`. An access is served in passes, each with as many lanes as
fill every bank once. With 64 lanes and 32 banks, a 4-byte access thus takes 2 passes, an 8-byte one 4, a 16-byte one 8.
Lanes of a pass that access different dwords of a bank are serialised: the pass takes as many clocks as the busiest bank
has dwords. Accesses to the same dword are served together, except atomics.

The lanes of a pass are consecutive, except in 16-byte loads by 64 lanes with 32 banks, which use the order of
`_WIDE_LOAD`. Both follow AMD's descriptions for CDNA ("Understanding AMD GPU LDS and Bank Conflicts" in the Composable
Kernel documentation, and the ROCm blog post "Avoiding LDS Bank Conflicts on AMD GPUs Using CK-Tile Framework"). AMD has
not published the order for 64 banks (gfx950); consecutive lanes are assumed. The two halves of an instruction with two
addresses (ds_read2_b32) count as two accesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from aot_emulator.state.access import Action
from aot_emulator.state.arrays import Array

_WIDE_LOAD = tuple(
    half + part + lane
    for half in (0, 32)
    for parts in ((0, 20), (4, 16), (8, 28), (12, 24))
    for part in parts
    for lane in range(4)
)
"""Lanes of a 16-byte load in the order of its passes, eight lanes per pass."""


@dataclass(frozen=True)
class Passes:
    """LDS passes of an access, summed over wavefronts: taken, and least possible without conflicts."""

    taken: int
    least: int


def count_passes(banks: int, action: Action, addresses: Array, nbytes: int, lanes: Array | None) -> Passes:
    """Count the passes of an LDS access.

    Args:
        banks: number of banks, a power of two.
        addresses: int64 [wavefronts, lanes], byte offsets in the workgroup's LDS.
        nbytes: bytes per lane: 1, 2, 4, 8, 12 or 16.
        lanes: mask of active lanes, of the shape of `addresses`; None: all.
    """
    words = -(-nbytes // 4)
    if (addresses & 3).max() + nbytes > 4 * words:
        words += 1  # an unaligned access spans one more dword
    dwords = (addresses >> 2)[:, :, None] + np.arange(words)
    if lanes is not None:
        dwords[~lanes] = -1
    order, together = _order(addresses.shape[1], banks, action, nbytes)
    passes = dwords[:, order].reshape(-1, together * words)
    busiest = _busiest(passes, banks, same_at_once=action != "atomic")
    return Passes(int(busiest.sum()), int(np.count_nonzero(busiest)))


@lru_cache(maxsize=64)
def _order(lanes: int, banks: int, action: Action, nbytes: int) -> tuple[Array, int]:
    width = 4 if nbytes > 8 else 2 if nbytes == 8 else 1  # 12 bytes count as 16
    together = min(lanes, banks // width)
    permuted = action == "load" and nbytes == 16 and (lanes, banks) == (64, 32)
    return np.array(_WIDE_LOAD) if permuted else np.arange(lanes), together


def _busiest(dwords: Array, banks: int, same_at_once: bool) -> Array:
    """Return the number of dwords that the busiest bank of each row serves.

    dwords: int64 [rows, any]; -1 for inactive lanes.
    """
    ordered = np.sort(dwords, axis=1)
    served = ordered >= 0
    if same_at_once:
        served[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    row = np.arange(len(dwords))[:, None] * banks
    counts = np.bincount((row + (ordered & banks - 1))[served], minlength=len(dwords) * banks)
    return counts.reshape(-1, banks).max(axis=1)
