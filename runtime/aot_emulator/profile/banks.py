"""Bank conflicts of LDS: how many passes an access by a wavefront takes.

LDS has banks of 4 bytes; dword `d` is in bank `d % banks`. A wavefront's access is served in passes: each takes as many
lanes as fill every bank once, so that of 64 lanes and 32 banks a 4-byte access takes 2 passes, an 8-byte one 4, a
16-byte one 8. Lanes of a pass that want different dwords of one bank are served one after another: the pass takes as
many clocks as the busiest bank has dwords. Lanes that want the same dword are served at once, but for atomics.

Lanes of a pass follow each other, except in 16-byte loads by 64 lanes with 32 banks, where they are those of
`_WIDE_LOAD`. Both are as AMD describes them for CDNA ("Understanding AMD GPU LDS and Bank Conflicts" in the
documentation of Composable Kernel, and the ROCm blog "Avoiding LDS Bank Conflicts on AMD GPUs Using CK-Tile
Framework"). For 64 banks (gfx950) AMD has published no order: consecutive lanes are assumed. The two halves of an
instruction with two addresses (ds_read2_b32) are two accesses.
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
"""Lanes of 16-byte loads in the order of their passes, eight each."""


@dataclass(frozen=True)
class Passes:
    """Of an access, summed over wavefronts: the passes that it takes, and those without conflicts."""

    taken: int
    least: int


def count_passes(banks: int, action: Action, addresses: Array, nbytes: int, lanes: Array | None) -> Passes:
    """The passes of an access of LDS.

    Args:
        banks: a power of two.
        addresses: int64 [wavefronts, lanes], bytes from the start of the workgroup's LDS.
        nbytes: of a lane's access: 1, 2, 4, 8, 12 or 16.
        lanes: those that take part, bool of addresses' shape; None: all.
    """
    words = -(-nbytes // 4)
    if (addresses & 3).max() + nbytes > 4 * words:
        words += 1  # an unaligned access reaches into one dword more
    dwords = (addresses >> 2)[:, :, None] + np.arange(words)
    if lanes is not None:
        dwords[~lanes] = -1
    order, together = _order(addresses.shape[1], banks, action, nbytes)
    passes = dwords[:, order].reshape(-1, together * words)
    busiest = _busiest(passes, banks, same_at_once=action != "atomic")
    return Passes(int(busiest.sum()), int(np.count_nonzero(busiest)))


@lru_cache(maxsize=64)
def _order(lanes: int, banks: int, action: Action, nbytes: int) -> tuple[Array, int]:
    width = 4 if nbytes > 8 else 2 if nbytes == 8 else 1  # 12 bytes go like 16
    together = min(lanes, banks // width)
    permuted = action == "load" and nbytes == 16 and (lanes, banks) == (64, 32)
    return np.array(_WIDE_LOAD) if permuted else np.arange(lanes), together


def _busiest(dwords: Array, banks: int, same_at_once: bool) -> Array:
    """How many dwords the busiest bank of each row has to serve; -1 is none. dwords: int64 [rows, any]."""
    ordered = np.sort(dwords, axis=1)
    served = ordered >= 0
    if same_at_once:
        served[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    row = np.arange(len(dwords))[:, None] * banks
    counts = np.bincount((row + (ordered & banks - 1))[served], minlength=len(dwords) * banks)
    return counts.reshape(-1, banks).max(axis=1)
