"""Operand modifiers of vector instructions: neg, abs, op_sel, clamp, omod, SDWA and DPP.

Unsupported modifiers are rejected, never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import Wavefronts

from .decoding import Instruction
from .operands import (
    DTYPES,
    VGPR,
    Reader,
    Registers,
    Step,
    Writer,
    bits_of,
    half_writer,
    register_reader,
    register_writer,
    vector_register,
    vector_source,
)

Finish = Callable[[Wavefronts, Any], Any]

_OMOD = {1: 2.0, 2: 4.0, 3: 0.5}
_BYTES, _WORDS, _DWORD = (0, 1, 2, 3), (4, 5), 6
_DPP8_INACTIVE = 234
_PAD, _SIGN_EXTEND, _PRESERVE = 0, 1, 2


def modifiers(instruction: Instruction, layout: Registers) -> Modifiers:
    """Return the modifiers of an instruction's encoding."""
    for suffix, kind in (("_SDWA", Sdwa), ("_SDWA_SDST", Sdwa), ("_DPP16", Dpp), ("_DPP8", Dpp8)):
        if instruction.encoding.endswith(suffix):
            return kind(instruction, layout)
    return Modifiers(instruction, layout)


class Modifiers:
    """Modifiers of VOP3 and VOP3SD, which have fields for all sources; VOP1, VOP2 and VOPC have none."""

    def __init__(self, instruction: Instruction, layout: Registers):
        self.instruction, self.layout = instruction, layout
        self.clamp = bool(instruction.field("clmp"))
        self.omod = instruction.field("omod")
        self._is_rdna = instruction.arch.isa != "cdna"  # RDNA writes 16-bit results to register halves

    # Overridden by encodings

    def numbers(self) -> list[int]:
        """Return the operand numbers of the sources, in order."""
        fields = self.instruction.fields
        names = ("src0", "src1" if "src1" in fields else "vsrc1", "src2")
        found = [fields[name] for name in names if name in fields]
        if self.instruction.mnemonic.endswith(("mk_f32", "ak_f32", "mk_f16", "ak_f16")):
            found.append(255)
        return found

    def sign_changes(self, position: int) -> tuple[bool, bool]:
        """Return (neg, abs) of a source."""
        neg, absolute = self.instruction.field("neg"), self.instruction.field("abs")
        return bool(neg >> position & 1), bool(absolute >> position & 1)

    def raw_source(self, position: int, number: int, kind: str) -> Reader:
        """Return the reader of a source without neg and abs."""
        high = self.instruction.field("opsel") >> position & 1
        if high and bits_of(kind) != 16:
            raise self.instruction.unsupported(f"op_sel on source {position} of {bits_of(kind)} bits")
        return vector_source(self.instruction, number, kind, self.layout, high)

    def destination(self, kind: str, keeps_high: bool) -> Writer:
        """Return the writer of the result."""
        row = self.destination_row(kind)
        high = self.instruction.field("opsel") >> 3
        if high and bits_of(kind) != 16:
            raise self.instruction.unsupported(f"op_sel on a result of {bits_of(kind)} bits")
        if bits_of(kind) == 16 and (high or keeps_high or self._is_rdna):
            return half_writer(row, kind, high)
        return register_writer(row, kind)

    def around(self, step: Step) -> Step:
        """Wrap a step with effects of the encoding."""
        return step

    # Common to all encodings

    def destination_row(self, kind: str) -> int:
        words = 2 if bits_of(kind) == 64 else 1
        return vector_register(self.instruction, self.instruction.fields["vdst"], False, self.layout, words)

    def sources(self, kinds: Sequence[str], placed: bool = False) -> list[Reader]:
        """Return readers of the sources. placed: op_sel selects the position of the result, not halves of sources."""
        if placed and self.instruction.field("opsel") & 3:
            raise self.instruction.unsupported("op_sel on a source")
        return [self._source(position, kind) for position, kind in enumerate(kinds)]

    def _source(self, position: int, kind: str) -> Reader:
        if kind.startswith("="):
            half = self.instruction.field("opsel") >> 3 if self._is_rdna else 0
            return register_reader(self.destination_row(kind[1:]), kind[1:], half)
        numbers = self.numbers()
        if position >= len(numbers):
            raise self.instruction.unsupported(f"the encoding has {len(numbers)} sources")
        read = self.raw_source(position, numbers[position], kind)
        negate, absolute = self.sign_changes(position)
        if (negate or absolute) and not kind.startswith("f"):
            raise self.instruction.unsupported(f"neg or abs on source {position}, which is not a float")
        return with_signs(read, negate, absolute)

    def finish(self, kind: str, saturates: bool) -> Finish | None:
        """Return a function that applies omod and clamp to the result, or None if neither is set."""
        steps: list[Finish] = []
        if self.omod:
            if not kind.startswith("f"):
                raise self.instruction.unsupported("omod on a result that is not a float")
            steps.append(_output_modifier(kind, _OMOD[self.omod], self.instruction.arch.isa != "rdna4"))
        if self.clamp and kind.startswith("f"):
            steps.append(clamp_float)
        elif self.clamp and not saturates:
            raise self.instruction.unsupported("clamp on a result that does not saturate")
        if not steps:
            return None

        def apply(waves: Wavefronts, result: Any) -> Any:
            result = np.asarray(result, DTYPES[kind])
            for step in steps:
                result = step(waves, result)
            return result

        return apply

    def refuse_clamp(self) -> None:
        """Reject clamp and omod, for instructions that do not support them."""
        if self.clamp or self.omod:
            raise self.instruction.unsupported("clamp or omod")

    def word_of_first_source(self) -> int:
        """Return the half of the first source that op_sel selects."""
        if self.instruction.field("opsel") & ~1 or self.clamp or self.omod:
            raise self.instruction.unsupported("a modifier")
        return self.instruction.field("opsel")


def with_signs(read: Reader, negate: bool, absolute: bool) -> Reader:
    """Apply abs, then neg, to a reader."""
    if negate and absolute:
        return lambda waves: -np.abs(read(waves))
    if negate:
        return lambda waves: -read(waves)
    if absolute:
        return lambda waves: np.abs(read(waves))
    return read


def clamp_float(waves: Wavefronts, result: Any) -> Any:
    """Clamp to [0, 1]; NaN becomes 0 if MODE.DX10_CLAMP is set."""
    clamped = np.fmin(np.fmax(result, result.dtype.type(0)), result.dtype.type(1))
    # fmax may return either zero.
    clamped = np.where(result > 0, clamped, result.dtype.type(0))
    return clamped if waves.mode.dx10_clamp else np.where(np.isnan(result), result, clamped)


def _output_modifier(kind: str, factor: float, has_ieee: bool) -> Finish:
    def apply(waves: Wavefronts, result: Any) -> Any:
        keep = waves.mode.keep_out32 if kind == "f32" else waves.mode.keep_out16_64
        if keep or (has_ieee and waves.mode.ieee):  # hardware ignores omod then
            return result
        return result * result.dtype.type(factor)

    return apply


class Sdwa(Modifiers):
    """SDWA: sources and result are bytes or words of registers."""

    def numbers(self) -> list[int]:
        fields = self.instruction.fields
        first = fields["vsrc0"] - (VGPR if fields["s0"] else 0)
        if "vsrc1" not in fields:
            return [first]
        return [first, fields["vsrc1"] - (VGPR if fields["s1"] else 0)]

    def sign_changes(self, position: int) -> tuple[bool, bool]:
        field = self.instruction.field
        return bool(field(f"src{position}_neg")), bool(field(f"src{position}_abs"))

    def raw_source(self, position: int, number: int, kind: str) -> Reader:
        if bits_of(kind) == 64:
            raise self.instruction.unsupported("SDWA of a 64-bit operand")
        select = self.instruction.fields[f"src{position}_sel"]
        extend = bool(self.instruction.fields[f"src{position}_sext"])
        if select == _DWORD and not extend:
            return vector_source(self.instruction, number, kind, self.layout)
        read = vector_source(self.instruction, number, "u32", self.layout)
        shift, width = _selection(self.instruction, select)
        dtype = DTYPES[kind]

        def select_bits(waves: Wavefronts) -> Array:
            value = (read(waves) >> np.uint32(shift)) & np.uint32((1 << width) - 1)
            if extend:
                value = (value.view(np.int32) << 32 - width >> 32 - width).view(np.uint32)
            return value.astype(np.uint16).view(dtype) if dtype.itemsize == 2 else value.view(dtype)

        return select_bits

    def destination(self, kind: str, keeps_high: bool) -> Writer:
        if bits_of(kind) == 64:
            raise self.instruction.unsupported("SDWA of a 64-bit result")
        select, unused = self.instruction.field("dst_sel", _DWORD), self.instruction.field("dst_unused")
        if select == _DWORD:
            return super().destination(kind, keeps_high)
        row, dtype = self.destination_row(kind), DTYPES[kind]
        unsigned = DTYPES[f"u{bits_of(kind)}"]
        shift, width = _selection(self.instruction, select)
        mask = np.uint32((1 << width) - 1)
        if unused not in (_PAD, _SIGN_EXTEND, _PRESERVE):
            raise self.instruction.unsupported(f"dst_unused {unused}")

        def place(waves: Wavefronts, value: Any) -> None:
            bits = np.asarray(value, dtype).view(unsigned).astype(np.uint32) & mask
            if unused == _SIGN_EXTEND:
                bits = (bits.view(np.int32) << 32 - width >> 32 - width).view(np.uint32)
            bits = bits << np.uint32(shift)
            if unused == _PRESERVE:
                bits = bits | waves.u32[row] & ~(mask << np.uint32(shift))
            waves.write(row, bits)

        return place

    def word_of_first_source(self) -> int:
        select = self.instruction.fields["src0_sel"]
        if select in (*_WORDS, _DWORD) and not self.clamp and not self.omod:
            return int(select == _WORDS[1])
        raise self.instruction.unsupported(f"src0_sel {select}")


def _selection(instruction: Instruction, select: int) -> tuple[int, int]:
    """Return (lowest bit, width) of a selection."""
    if select in _BYTES:
        return 8 * select, 8
    if select in _WORDS:
        return 16 * (select - _WORDS[0]), 16
    if select == _DWORD:
        return 0, 32
    raise instruction.unsupported(f"selection {select}")


class Dpp(Modifiers):
    """DPP: the first source is read from other lanes.

    All sources are read before the result is written, so that source and destination may be the same register.
    """

    def __init__(self, instruction: Instruction, layout: Registers):
        super().__init__(instruction, layout)
        self._lanes, self._within = self._find_lanes()
        self._whole = bool(self._within.all())
        # RDNA can read inactive lanes too, and has two values of src0 that say so for DPP8.
        self._reads_inactive = bool(instruction.field("fi")) or instruction.field("src0") == _DPP8_INACTIVE
        self._zero_outside = bool(instruction.field("bc", 1))
        rows, banks = instruction.field("row_mask", 15), instruction.field("bank_mask", 15)
        lane = np.arange(instruction.arch.lanes)
        self._enabled = (rows >> lane // 16 & banks >> lane // 4 % 4 & 1).astype(bool)

    def _find_lanes(self) -> tuple[Array, Array]:
        return _source_lanes(self.instruction)

    def numbers(self) -> list[int]:
        return [self.instruction.fields["vsrc0"], *super().numbers()[1:]]

    def sign_changes(self, position: int) -> tuple[bool, bool]:
        field = self.instruction.field
        if self.instruction.base_encoding == "VOP3":
            return super().sign_changes(position)
        return bool(field(f"src{position}_neg")), bool(field(f"src{position}_abs"))

    def raw_source(self, position: int, number: int, kind: str) -> Reader:
        read = super().raw_source(position, number, kind)
        if position:
            return read
        lanes = self._lanes

        def permute(waves: Wavefronts) -> Array:
            value = read(waves)[:, lanes]
            valid = self._valid(waves)
            return value if valid is None else np.where(valid, value, value.dtype.type(0))

        return permute

    def _valid(self, waves: Wavefronts) -> Array | None:
        if waves.dpp_sources is None or self._reads_inactive:
            return None if self._whole else self._within
        return self._within & waves.dpp_sources[:, self._lanes]

    def around(self, step: Step) -> Step:
        """Disable writes to masked lanes, and to lanes without a source unless bound_ctrl makes it 0."""

        def masked(waves: Wavefronts) -> None:
            active = waves.dpp_sources = waves.active
            lanes = None if self._enabled.all() else np.broadcast_to(self._enabled, waves.shape)
            valid = None if self._zero_outside else self._valid(waves)
            for other in (valid, active):
                if other is not None:
                    lanes = other if lanes is None else lanes & other
            waves.narrow(None if lanes is None else np.broadcast_to(lanes, waves.shape))
            try:
                step(waves)
            finally:
                waves.narrow(active)

        return masked


class Dpp8(Dpp):
    """RDNA's DPP8, which permutes lanes in groups of eight. Inactive source lanes read as 0."""

    def _find_lanes(self) -> tuple[Array, Array]:
        lanes = self.instruction.arch.lanes
        chosen = np.array([self.instruction.fields[f"lane_sel_{place}"] for place in range(8)])
        return (np.arange(0, lanes, 8)[:, None] + chosen).ravel(), np.ones(lanes, bool)


def _source_lanes(instruction: Instruction) -> tuple[Array, Array]:
    """Return the source lane of each lane for a DPP control, and a mask of the lanes that have one."""
    control = instruction.fields["dpp"]
    lanes = instruction.arch.lanes
    lane = np.arange(lanes)
    row, place, everywhere = lane & ~15, lane & 15, np.ones(lanes, bool)
    amount = control & 15
    if control <= 0xFF:
        return (lane & ~3) + (control >> 2 * (lane & 3) & 3), everywhere
    if 0x101 <= control <= 0x10F:  # row_shl
        return row + np.minimum(place + amount, 15), place + amount <= 15
    if 0x111 <= control <= 0x11F:  # row_shr
        return row + np.maximum(place - amount, 0), place >= amount
    if 0x121 <= control <= 0x12F:  # row_ror
        return row + (place - amount & 15), everywhere
    if control in (0x130, 0x138):  # wave_shl:1, wave_shr:1
        source = lane + (1 if control == 0x130 else -1)
        return source & lanes - 1, (source >= 0) & (source < lanes)
    if control in (0x134, 0x13C):  # wave_rol:1, wave_ror:1
        return lane + (1 if control == 0x134 else -1) & lanes - 1, everywhere
    if control == 0x140:  # row_mirror
        return row + 15 - place, everywhere
    if control == 0x141:  # row_half_mirror
        return (lane & ~7) + 7 - (lane & 7), everywhere
    if control == 0x142:  # row_bcast:15
        return np.maximum(row - 1, 0), lane > 15
    if control == 0x143:  # row_bcast:31
        return np.full(lanes, 31), lane > 31
    if 0x150 <= control <= 0x15F:  # row_newbcast, row_share
        return row + amount, everywhere
    if 0x160 <= control <= 0x16F:  # row_xmask
        return row + (place ^ amount), everywhere
    raise instruction.unsupported(f"dpp control {control:#x}")


__all__ = ["Dpp", "Dpp8", "Modifiers", "Sdwa", "clamp_float", "modifiers", "with_signs"]
