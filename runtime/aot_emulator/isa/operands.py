"""Readers and writers of operands.

A kind is the type that an instruction gives to an operand: u, i or f, and a width. A reader returns an array of this
dtype: [wavefronts, lanes] for a vector register, [wavefronts, 1] for a scalar register, and a scalar for a constant.
Readers of the scalar unit return [wavefronts].
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from aot_emulator.state.arrays import Array, join
from aot_emulator.state.wavefronts import DROPPED, EXEC, NULL, VCC, Wavefronts

from .decoding import Instruction

Reader = Callable[[Wavefronts], Any]
Writer = Callable[[Wavefronts, Any], None]
Step = Callable[[Wavefronts], None]
"""Function that executes an instruction."""

DTYPES = {f"{kind}{bits}": np.dtype(f"{kind}{bits // 8}") for kind in "ui" for bits in (16, 32, 64)}
DTYPES |= {f"f{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)}

VGPR = 256
_LITERAL, _SDWA, _DPP = 255, 249, 250
_VCCZ, _EXECZ, _SCC = 251, 252, 253
FLOAT_CONSTANTS = {240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0}
_INVERSE_TWO_PI = 248
_INVERSE_TWO_PI_BITS = {16: 0x3118, 32: 0x3E22F983, 64: 0x3FC45F306DC9C882}
SHARED_APERTURE, PRIVATE_APERTURE = 0x00010000, 0x00020000
"""Upper halves of the flat addresses of LDS and scratch."""
_APERTURES = {235: SHARED_APERTURE, 236: SHARED_APERTURE, 237: PRIVATE_APERTURE, 238: PRIVATE_APERTURE}


def bits_of(kind: str) -> int:
    return int(kind[1:])


def literal_of(instruction: Instruction) -> int:
    return instruction.field("literal")


def constant(instruction: Instruction, number: int, kind: str) -> Any:
    """Return the value of a constant operand as a scalar of `kind`, or None if it is not a constant."""
    width = bits_of(kind)
    if 128 <= number <= 208:
        raw = number - 128 if number <= 192 else 192 - number
    elif number in FLOAT_CONSTANTS:
        # Float constants in integer operands stand for their bit pattern.
        form = {16: "<e", 32: "<f", 64: "<d"}[width]
        raw = int.from_bytes(struct.pack(form, FLOAT_CONSTANTS[number]), "little")
    elif number == _INVERSE_TWO_PI:
        raw = _INVERSE_TWO_PI_BITS[width]
    elif number == _LITERAL:
        raw = literal_of(instruction)
        if kind == "f64":
            raw <<= 32
        elif kind == "i64" and raw >> 31:
            raise instruction.unsupported("negative literal for a 64-bit operand, whose extension is undocumented")
    else:
        return None
    unsigned = np.array(raw & ((1 << width) - 1), DTYPES[f"u{width}"])
    return unsigned.view(DTYPES[kind])[()]


def _high_half(instruction: Instruction, number: int, kind: str) -> Any:
    """Return the upper 16 bits of a constant: the sign for integers, 0 for float constants, which have 16 bits."""
    whole = constant(instruction, number, "u32")
    if whole is None:
        return None
    return np.uint16(0 if number >= 240 and number != _LITERAL else whole >> 16).view(DTYPES[kind])


def scalar_source(instruction: Instruction, number: int, kind: str) -> Reader:
    """Return the reader of a scalar source, [wavefronts]."""
    value = constant(instruction, number, kind)
    if value is not None:
        return lambda waves: value
    dtype, width = DTYPES[kind], bits_of(kind)
    if number == _SCC:
        return lambda waves: waves.scc.astype(dtype)
    if number in (_VCCZ, _EXECZ):
        register = VCC if number == _VCCZ else EXEC
        return lambda waves: waves.is_zero(register).astype(dtype)
    if number in _APERTURES:
        aperture = np.array(_APERTURES[number] << 32 if width == 64 else 0, f"u{width // 8}").view(dtype)[()]
        return lambda waves: aperture
    if number >= 128:
        raise instruction.unsupported(f"source operand {number}")
    if is_null(instruction, number):
        return lambda waves: dtype.type(0)
    if width == 64:
        return lambda waves: waves.pair(number).view(dtype)
    if width == 32:
        return lambda waves: waves.scalars[number].view(dtype)
    return lambda waves: waves.scalars[number].astype(np.uint16).view(dtype)


def vector_register(instruction: Instruction, number: int, accumulation: bool, layout: Registers, words: int) -> int:
    """Return the row of a vector register in `Wavefronts.u32`.

    CDNA has a unified register file: AGPRs start at the kernel's offset, and higher-numbered VGPRs alias them.
    """
    index = number - VGPR if number >= VGPR else number
    row = layout.accumulation + index if accumulation else index
    if row + words > layout.total:
        name, first = ("a", layout.accumulation) if accumulation else ("v", 0)
        count = layout.total - first
        raise instruction.unsupported(f"register {name}{index + words - 1}: the kernel has {count} of them")
    return row


class Registers:
    """Layout of a kernel's vector registers.

    Attributes:
        accumulation: row of the first AGPR, after the VGPRs.
        total: total number of rows.
    """

    def __init__(self, accumulation: int, total: int):
        self.accumulation, self.total = accumulation, total


def register_reader(row: int, kind: str, half: int = 0) -> Reader:
    """Return a reader of vector registers as a kind. half: register half of 16-bit kinds."""
    if kind == "u32":
        return lambda waves: waves.u32[row]
    if kind == "i32":
        return lambda waves: waves.i32[row]
    if kind == "f32":
        return lambda waves: waves.f32[row]
    if kind == "u16":
        return lambda waves: waves.u16[row][:, half::2]
    if kind == "i16":
        return lambda waves: waves.i16[row][:, half::2]
    if kind == "f16":
        return lambda waves: waves.f16[row][:, half::2]
    dtype = DTYPES[kind]
    return lambda waves: join(waves.u32[row], waves.u32[row + 1]).view(dtype)


def vector_source(instruction: Instruction, number: int, kind: str, layout: Registers, half: int = 0) -> Reader:
    """Return the reader of a VALU source: vector register, scalar register or constant."""
    if number >= VGPR:
        words = 2 if bits_of(kind) == 64 else 1
        return register_reader(vector_register(instruction, number, False, layout, words), kind, half)
    if number in (_SDWA, _DPP):
        raise instruction.unsupported("SDWA or DPP operand in an encoding without them")
    value = _high_half(instruction, number, kind) if half else constant(instruction, number, kind)
    if value is not None:
        return lambda waves: value
    if half:
        whole = scalar_source(instruction, number, "u32")
        dtype = DTYPES[kind]
        return lambda waves: (whole(waves) >> 16).astype(np.uint16).view(dtype)[:, None]
    scalar = scalar_source(instruction, number, kind)

    def read(waves: Wavefronts) -> Array:
        value = scalar(waves)
        return value[:, None] if value.ndim else value

    return read


def register_writer(row: int, kind: str) -> Writer:
    """Return a writer of a kind to active lanes; 16-bit kinds clear the upper half.

    Values of another dtype are converted, so that functions can compute in higher precision and round on write.
    """
    dtype, width = DTYPES[kind], bits_of(kind)
    if width == 32:
        return lambda waves, value: waves.write(row, np.asarray(value, dtype).view(np.uint32))
    if width == 16:
        return lambda waves, value: waves.write(row, np.asarray(value, dtype).view(np.uint16).astype(np.uint32))

    def write_pair(waves: Wavefronts, value: Any) -> None:
        words = np.ascontiguousarray(np.asarray(value, dtype))[..., None].view(np.uint32)
        waves.write(row, words[..., 0])
        waves.write(row + 1, words[..., 1])

    return write_pair


def half_writer(row: int, kind: str, half: int) -> Writer:
    """Return a writer of 16-bit values to one half of a register, preserving the other."""
    dtype = DTYPES[kind]
    return lambda waves, value: waves.write_half(row, half, np.asarray(value, dtype).view(np.uint16))


def is_null(instruction: Instruction, number: int) -> bool:
    """Return True for RDNA's null operand, whose number is M0 on CDNA."""
    return number == NULL and instruction.arch.isa != "cdna"


def scalar_target(instruction: Instruction, number: int) -> int:
    """Return the row of a scalar destination in `Wavefronts.scalars`."""
    if number >= 128:
        raise instruction.unsupported(f"scalar destination {number}")
    return DROPPED if is_null(instruction, number) else number


def scalar_writer(instruction: Instruction, number: int, kind: str) -> Writer:
    """Return a writer of a scalar register, [wavefronts]; 16-bit values are zero-extended."""
    dtype, row = DTYPES[kind], scalar_target(instruction, number)
    if bits_of(kind) == 64:
        return lambda waves, value: waves.write_scalar_pair(row, np.asarray(value, dtype).view(np.uint64))
    if bits_of(kind) == 16:
        return lambda waves, value: waves.write_scalar(row, np.asarray(value, dtype).view(np.uint16).astype(np.uint32))
    return lambda waves, value: waves.write_scalar(row, np.asarray(value, dtype).view(np.uint32))
