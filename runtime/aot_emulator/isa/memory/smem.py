"""Scalar memory loads: s_load, s_buffer_load (ISA chapter "Scalar Memory Operations").

The scalar cache is always coherent here. Dwords of a buffer load beyond the size of the resource are 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from aot_emulator.isa.decoding import Instruction, signed
from aot_emulator.isa.operands import Step, is_null, scalar_source
from aot_emulator.state.arrays import Array
from aot_emulator.state.device_memory import gather
from aot_emulator.state.wavefronts import Wavefronts

from .transfers import Transfer

_WORDS = {"dword": 1, **{f"dwordx{n}": n for n in (2, 4, 8, 16)}, **{f"b{32 * n}": n for n in (1, 2, 3, 4, 8, 16)}}
_LOADS = {
    **{name: Transfer(4 * words) for name, words in _WORDS.items()},
    **{f"{sign}{8 * nbytes}": Transfer(nbytes, sign == "i") for nbytes in (1, 2) for sign in "ui"},
}
_LOAD = re.compile(r"s_(buffer_)?load_(\w+)")
_NOTHING = re.compile(r"s_(dcache_(inv|wb)(_vol)?|gl1_inv|(buffer_)?prefetch_(inst|data)(_pc_rel)?)")
"""Cache instructions, which have no effect."""

Offset = Callable[[Wavefronts], Array]
"""Computes byte offsets from the base, int64 [wavefronts]."""


def bind(instruction: Instruction) -> Step | None:
    """Return the step of a scalar memory instruction, or None if it is not one or not implemented."""
    if _NOTHING.fullmatch(instruction.mnemonic):
        return lambda waves: None
    found = _LOAD.fullmatch(instruction.mnemonic)
    if found is None or found[2] not in _LOADS:
        return None
    transfer, target = _LOADS[found[2]], instruction.fields["sdata"]
    if target + transfer.words > 128:
        raise instruction.unsupported(f"{transfer.words} scalar registers from {target}")
    if is_null(instruction, target):
        raise instruction.unsupported("load to null")
    bind_load = _bind_buffer_load if found[1] else _bind_load
    return bind_load(instruction.fields["sbase"], _offset(instruction), transfer, target)


def _offset(instruction: Instruction) -> Offset:
    fields, isa = instruction.fields, instruction.arch.isa
    if isa == "cdna":
        immediate = signed(fields["offset"], 21) if fields["imm"] else 0
        number = fields["soffset"] if fields["soffset_en"] else None if fields["imm"] else fields["offset"] & 0x7F
    else:
        immediate = signed(fields["ioffset"], 24) if isa == "rdna4" else signed(fields["offset"], 21)
        number = fields["soffset"]  # null reads as 0
    if number is None:
        return lambda waves: np.full(waves.count, immediate, np.int64)
    register = scalar_source(instruction, number, "u32")
    return lambda waves: register(waves).astype(np.int64) + immediate


def _bind_load(base: int, offset: Offset, transfer: Transfer, target: int) -> Step:
    return lambda waves: _load(waves, transfer, target, waves.pair(base) + offset(waves).view(np.uint64), None)


def _bind_buffer_load(base: int, offset: Offset, transfer: Transfer, target: int) -> Step:
    unit = Transfer(min(4, transfer.nbytes), transfer.signed)

    def step(waves: Wavefronts) -> None:
        stride = (waves.scalars[base + 1] >> np.uint32(16) & np.uint32(0x3FFF)).astype(np.int64)
        size = waves.scalars[base + 2].astype(np.int64) * np.maximum(stride, 1)
        places = offset(waves)
        addresses = (waves.pair(base) & np.uint64((1 << 48) - 1)) + places.view(np.uint64)
        room = np.where(places >= 0, size - places, 0)
        if (room >= transfer.nbytes).all():
            _load(waves, transfer, target, addresses, None)
            return
        for word in range(transfer.words):
            inside = room >= 4 * word + unit.nbytes
            waves.write_scalar(target + word, np.zeros(waves.count, np.uint32))
            if inside.any():
                _load(waves, unit, target + word, addresses + np.uint64(4 * word), inside)

    return step


def _load(waves: Wavefronts, transfer: Transfer, target: int, addresses: Array, loading: Array | None) -> None:
    # The scalar unit ignores the low address bits: dwords are aligned to 4 bytes, shorts to 2.
    addresses = addresses & np.uint64(-min(4, transfer.nbytes) & 0xFFFFFFFFFFFFFFFF)
    for allocation, mine in waves.memory.scalar_loads(waves, addresses, transfer.nbytes, loading):
        here: Array | slice = slice(None) if loading is None else np.flatnonzero(loading)
        if mine is not None:
            here = np.arange(waves.count)[here][mine]
        offsets = (addresses[here] - np.uint64(allocation.base)).view(np.int64)
        if transfer.nbytes < 4:
            waves.write_scalar_of(target, here, transfer.extend(gather(allocation.data, offsets, transfer.nbytes)))
            continue
        for word in range(transfer.words):
            waves.write_scalar_of(target + word, here, gather(allocation.data, offsets + 4 * word, 4)[0])
