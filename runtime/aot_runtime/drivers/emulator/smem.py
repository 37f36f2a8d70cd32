"""Scalar memory: s_load (chapter "Scalar Memory Operations"). The scalar cache is always coherent here."""

from __future__ import annotations

import numpy as np

from .decode import Instruction, signed
from .memory import gather
from .operands import scalar_source
from .scalar import Step
from .wavefronts import Wavefronts

_WORDS = {"s_load_dword": 1, **{f"s_load_dwordx{n}": n for n in (2, 4, 8, 16)}}
_NOTHING = frozenset({"s_dcache_inv", "s_dcache_wb", "s_dcache_inv_vol", "s_dcache_wb_vol"})


def bind(instruction: Instruction) -> Step | None:
    """What executes a scalar memory instruction; None if it is none, or not implemented."""
    if instruction.mnemonic in _NOTHING:
        return lambda waves: None
    if instruction.mnemonic not in _WORDS:
        return None
    words, fields = _WORDS[instruction.mnemonic], instruction.fields
    base, target = fields["sbase"], fields["sdata"]
    immediate = signed(fields["offset"], 21) if fields["imm"] else 0
    register = None
    if fields["soffset_en"]:
        register = scalar_source(instruction, fields["soffset"], "u32")
    elif not fields["imm"]:
        register = scalar_source(instruction, fields["offset"] & 0x7F, "u32")
    if target + words > 128:
        raise instruction.unsupported(f"{words} scalar registers from {target}")

    def step(waves: Wavefronts) -> None:
        address = waves.pair(base) + np.uint64(immediate & 0xFFFFFFFFFFFFFFFF)
        if register is not None:
            address = address + register(waves)
        address = address & np.uint64(0xFFFFFFFFFFFFFFFC)
        for allocation, mine in waves.memory.scalar_loads(waves, address, 4 * words):
            reached = address if mine is None else address[mine]
            offsets = (reached - np.uint64(allocation.base)).view(np.int64)
            here = slice(None) if mine is None else mine
            for word in range(words):
                waves.write_scalar_of(target + word, here, gather(allocation.data, offsets + 4 * word, 4)[0])

    return step
