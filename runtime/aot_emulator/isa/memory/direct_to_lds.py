"""Loads to LDS that bypass registers: `buffer_load_dword … lds` and `global_load_lds_dword`.

The LDS address of the first lane is M0 plus the instruction's offset, which is also part of the memory address. Lanes
are 4 bytes apart, or 16 bytes for loads of three and four dwords (CDNA3 and CDNA4, "Memory Buffer Load to LDS" and
"Flat Memory Instructions"). Inactive lanes do not write to LDS; data outside of a buffer is stored as 0.

Loads of bytes and shorts are not implemented.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.operands import Step
from aot_emulator.state.access import store
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import M0, Wavefronts

from .transfers import Transfer

_BUFFER_BITS = {True: 0x3FFFF, False: 0xFFFF}
"""Bits of M0 used by buffer loads; the key is True if LDS is larger than 64 KiB."""
_GLOBAL_BITS = 0x3FFFC


def bind(
    instruction: Instruction, transfer: Transfer, offset: int, load: Callable[[Wavefronts], Array], *, buffer: bool
) -> Step:
    """Return the step of a load to LDS.

    Args:
        transfer: format of the loaded data.
        offset: the instruction's offset.
        load: loads the lanes' data, in the layout of `access.load`.
        buffer: the instruction is a buffer load.
    """
    if transfer.nbytes < 4:
        raise instruction.unsupported("load of less than a dword to LDS")
    mask = np.uint32(_BUFFER_BITS[instruction.arch.lds_bytes > 1 << 16] if buffer else _GLOBAL_BITS)
    places = offset + np.arange(instruction.arch.lanes) * (4 if transfer.nbytes == 4 else 16)
    if transfer.nbytes == 8:
        raise instruction.unsupported("load of two dwords to LDS")

    def step(waves: Wavefronts) -> None:
        addresses = (waves.scalars[M0] & mask).astype(np.int64)[:, None] + places
        values = load(waves)
        found = waves.memory.in_lds(waves, "store", addresses, transfer.nbytes, waves.active, values)
        store(found, transfer.nbytes, values)

    return step
