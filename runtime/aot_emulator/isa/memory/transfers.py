"""Data transfer between registers and memory by loads and stores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from aot_emulator.isa.decoding import Instruction, signed
from aot_emulator.isa.operands import Registers, vector_register
from aot_emulator.isa.wait_counters import Isa
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import Wavefronts


@dataclass(frozen=True)
class Transfer:
    """Register format of a load or store.

    Attributes:
        nbytes: bytes per lane.
        signed: bytes and shorts are sign-extended.
        half: register half that a d16 load writes or a d16 store reads; None: whole registers.
        zeroes: a d16 load writes 0 to the other half instead of preserving it.
    """

    nbytes: int
    signed: bool = False
    half: int | None = None
    zeroes: bool = False

    @property
    def words(self) -> int:
        return max(1, self.nbytes // 4)

    def extend(self, values: Array) -> Array:
        """Extend bytes or shorts (unsigned) to uint32, with the sign if the transfer is signed."""
        if self.signed:
            values = values.view(f"i{self.nbytes}").astype(np.int32).view(np.uint32)
        return values.astype(np.uint32)


_DWORDS = {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}
_BITS = {"b32": 4, "b64": 8, "b96": 12, "b128": 16}


def _whole(names: Mapping[str, int]) -> dict[str, Transfer]:
    return {name: Transfer(nbytes) for name, nbytes in names.items()}


def _short_loads(
    byte: tuple[str, str], short: tuple[str, str], d16_short: str, zeroes: bool = False
) -> dict[str, Transfer]:
    """Return loads of bytes and shorts, given their (unsigned, signed) names and that of the d16 short load."""
    found = {}
    for nbytes, names in ((1, byte), (2, short)):
        for is_signed, name in enumerate(names):
            found[name] = Transfer(nbytes, bool(is_signed))
            if nbytes == 1:
                found[f"{name}_d16"] = Transfer(1, bool(is_signed), 0, zeroes)
                found[f"{name}_d16_hi"] = Transfer(1, bool(is_signed), 1, zeroes)
    return {**found, d16_short: Transfer(2, False, 0, zeroes), f"{d16_short}_hi": Transfer(2, False, 1, zeroes)}


def _stores(byte: str, short: str) -> dict[str, Transfer]:
    return {
        byte: Transfer(1),
        short: Transfer(2),
        f"{byte}_d16_hi": Transfer(1, half=1),
        f"{short}_d16_hi": Transfer(2, half=1),
    }


def _d16_first(transfers: Mapping[str, Transfer]) -> dict[str, Transfer]:
    return {re.sub(r"(\w+?)_(d16(_hi)?)", r"\2_\1", name): transfer for name, transfer in transfers.items()}


def _lds_loads(zeroes: bool) -> dict[str, Transfer]:
    return {**_whole(_BITS), **_short_loads(("u8", "i8"), ("u16", "i16"), "u16_d16", zeroes)}


# The emulated CDNA chips have SRAM ECC, also for registers, which are therefore written as a whole: a d16 load zeroes
# the other half. With its `sramecc` feature, LLVM generates code that does not use that half. RDNA preserves it.
LDS_LOADS: Mapping[Isa, Mapping[str, Transfer]] = {
    "cdna": _lds_loads(True),
    "rdna3": _lds_loads(False),
    "rdna4": _lds_loads(False),
}
"""LDS loads by ISA and mnemonic suffix, after `ds_read_` or `ds_load_`."""
LDS_STORES = {**_whole(_BITS), **_stores("b8", "b16")}
_CDNA_LOADS = {**_whole(_DWORDS), **_short_loads(("ubyte", "sbyte"), ("ushort", "sshort"), "short_d16", True)}
_CDNA_STORES = {**_whole(_DWORDS), **_stores("byte", "short")}
_RDNA_LOADS = {**_whole(_BITS), **_d16_first(_short_loads(("u8", "i8"), ("u16", "i16"), "b16_d16"))}
_RDNA_STORES = _d16_first(LDS_STORES)

MEMORY_LOADS: Mapping[Isa, Mapping[str, Transfer]] = {"cdna": _CDNA_LOADS, "rdna3": _RDNA_LOADS, "rdna4": _RDNA_LOADS}
"""Memory loads by ISA and mnemonic suffix, after `global_load_`, `buffer_load_`, …"""
MEMORY_STORES: Mapping[Isa, Mapping[str, Transfer]] = {
    "cdna": _CDNA_STORES,
    "rdna3": _RDNA_STORES,
    "rdna4": _RDNA_STORES,
}


def named(instruction: Instruction, *names: str) -> str:
    """Return the name of a field in an instruction's encoding, among the names used by the architectures."""
    return next(name for name in names if name in instruction.fields)


def offset_of(instruction: Instruction) -> int:
    """Return the signed byte offset of a global, flat or scratch instruction."""
    if instruction.arch.isa == "rdna4":
        return signed(instruction.fields["ioffset"], 24)
    return signed(instruction.fields["offset"], 13)


def data_register(instruction: Instruction, name: str, layout: Registers, words: int) -> int:
    """Return the row of a load's or store's data register; an AGPR if the `acc` bit is set."""
    return vector_register(instruction, instruction.fields[name], bool(instruction.field("acc")), layout, words)


def to_registers(waves: Wavefronts, row: int, transfer: Transfer, values: Array) -> None:
    """Write values in the layout of `gather` to registers."""
    if transfer.nbytes >= 4:
        for word in range(transfer.words):
            waves.write(row + word, values[word])
        return
    extended = transfer.extend(values)
    if transfer.half is None:
        waves.write(row, extended)
    elif transfer.zeroes:
        waves.write(row, (extended & np.uint32(0xFFFF)) << np.uint32(16 * transfer.half))
    else:
        waves.write_half(row, transfer.half, extended.astype(np.uint16))


def from_registers(waves: Wavefronts, row: int, transfer: Transfer) -> Array:
    """Read registers in the layout of `scatter`."""
    if transfer.nbytes >= 4:
        return waves.u32[row : row + transfer.words]
    values = waves.u16[row][:, (transfer.half or 0) :: 2]
    return values if transfer.nbytes == 2 else values.astype(np.uint8)
