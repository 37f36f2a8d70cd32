"""Conversions of 8-bit and 4-bit floats (CDNA3 and CDNA4, ISA chapter "Vector ALU Operations").

The formats fp8 and bf8 are FNUZ on gfx942, and OCP elsewhere. gfx950's v_cvt_scalef32 instructions have an additional
source with a block exponent: values are divided by this power of two before narrowing, or multiplied after widening.
The only rounding is to nearest even. Overflow and infinity give the format's infinity, or with MODE.FP16_OVFL its
largest value.

The 6-bit forms are not implemented, nor stochastic forms whose use of random bits is undocumented.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.floats import conversions, formats
from aot_emulator.isa.floats.formats import FloatFormat
from aot_emulator.isa.modifiers import Modifiers
from aot_emulator.isa.operands import Reader, Registers, Step, vector_register, vector_source
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import Wavefronts

_SMALL = {
    False: {"fp8": formats.FP8_FNUZ, "bf8": formats.BF8_FNUZ},
    True: {"fp8": formats.FP8, "bf8": formats.BF8, "fp4": formats.FP4},
}
"""Formats by whether the architecture uses OCP formats."""
_CODES: dict[str, Callable[[Array], Array]] = {
    "f32": lambda value: value.astype(np.float32).view(np.uint32),
    "f16": lambda value: value.astype(np.float16).view(np.uint16),
    # The formats have so few significant bits that rounding to float32 first is exact.
    "bf16": lambda value: conversions.f32_to_bf16(value.astype(np.float32)),
}
_TYPE = r"(?:fp|bf|f)\d+"
_NAME = re.compile(rf"v_cvt_(?P<scaled>scalef32_)?(?P<random>sr_)?(?P<pair>pk_)?(?P<to>{_TYPE})_(?P<of>{_TYPE})")


def bind(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step | None:
    """Return the step of a conversion, or None if it is not one of these or not implemented."""
    match = _NAME.fullmatch(instruction.operation)
    if match is None:
        return None
    conversion = _Conversion(instruction, layout, changes, bool(match["scaled"]))
    small, to, of = _SMALL[instruction.arch.ocp_fp8], match["to"], match["of"]
    form = ("sr_" if match["random"] else "") + ("pk_" if match["pair"] else "")
    if of in small and to in _CODES and form in ("", "pk_"):
        return conversion.widening(small[of], to, pair=form == "pk_")
    if to in small and of in _CODES and form == "pk_":
        return conversion.narrowing(small[to], of)
    if to in small and of == "f32" and form == "sr_":
        return conversion.random(small[to])
    return None


class _Conversion:
    def __init__(self, instruction: Instruction, layout: Registers, changes: Modifiers, scaled: bool):
        self._instruction, self._layout, self._changes, self._scaled = instruction, layout, changes, scaled
        self._select = instruction.field("opsel")
        changes.refuse_clamp()

    def widening(self, fmt: FloatFormat, to: str, pair: bool) -> Step:
        """Widen one or two values of a byte or word. Two 16-bit results share a register; two 32-bit ones take two."""
        read, place = self._small_source(fmt, pair)
        factor, encode, mask = self._factor(1, 1), _CODES[to], np.uint32((1 << fmt.bits) - 1)
        positions = [np.uint32(place + part * fmt.bits) for part in range(1 + pair)]
        row, half = self._target(1 + (pair and to == "f32")), self._select >> 3

        def step(waves: Wavefronts) -> None:
            word, scale = read(waves), factor(waves)
            codes = [encode(conversions.decode(word >> position & mask, fmt) * scale) for position in positions]
            if to == "f32":
                for part, code in enumerate(codes):
                    waves.write(row + part, code)
            elif pair:
                waves.write(row, conversions.pack16(*codes))
            else:
                waves.write_half(row, half, codes[0])

        return step

    def narrowing(self, fmt: FloatFormat, of: str) -> Step:
        """Narrow two values to a byte or word of the destination; 32-bit values have two sources, 16-bit values one."""
        read, factor = self._pair(of), self._factor(2 if of == "f32" else 1, -1)
        if fmt.bits == 8 and self._select >> 2 & 1:
            raise self._instruction.unsupported(f"op_sel {self._select}")
        row, position = self._target(), 8 * (self._select >> 2)

        def step(waves: Wavefronts) -> None:
            scale, saturate = factor(waves), waves.mode.fp16_ovfl
            low, high = (conversions.encode(value * scale, fmt, saturate=saturate) for value in read(waves))
            code = low | high.astype(np.uint16) << np.uint16(fmt.bits)
            waves.write(row, conversions.insert_bits(waves.u32[row], code, position, 2 * fmt.bits))

        return step

    def random(self, fmt: FloatFormat) -> Step:
        value, bits = self._changes.sources(["f32", "u32"], placed=True)
        factor, row, position = self._factor(2, -1), self._target(), 8 * (self._select >> 2)

        def step(waves: Wavefronts) -> None:
            given, random = np.broadcast_arrays(value(waves) * factor(waves), bits(waves))
            code = conversions.cvt_sr(given, random, fmt, saturate=waves.mode.fp16_ovfl)
            waves.write(row, conversions.insert_bits(waves.u32[row], code, position, 8))

        return step

    def _target(self, words: int = 1) -> int:
        return vector_register(self._instruction, self._instruction.fields["vdst"], False, self._layout, words)

    def _source(self, position: int) -> Reader:
        if any(self._changes.sign_changes(position)):
            raise self._instruction.unsupported(f"neg or abs on source {position}, which is not a float")
        return vector_source(self._instruction, self._changes.numbers()[position], "u32", self._layout)

    def _small_source(self, fmt: FloatFormat, pair: bool) -> tuple[Reader, int]:
        if not self._scaled:
            if pair:
                return self._source(0), 16 * self._changes.word_of_first_source()
            if self._select and self._instruction.arch.isa == "rdna4":  # op_sel selects a byte, lower bit first
                return self._source(0), 8 * (0, 2, 1, 3)[self._select & 3]
            return self._changes.sources(["u32"])[0], 0  # SDWA may choose a byte
        select, unit = self._select & 3, 16 if pair and fmt.bits == 8 else 8
        if unit * select >= 32:
            raise self._instruction.unsupported(f"op_sel {self._select}")
        return self._source(0), unit * select

    def _pair(self, of: str) -> Callable[[Wavefronts], tuple[Array, Array]]:
        if of == "f32":
            low, high = self._changes.sources(["f32", "f32"], placed=True)
            return lambda waves: (low(waves), high(waves))
        read, fmt = self._source(0), formats.BF16 if of == "bf16" else formats.FP16

        def halves(waves: Wavefronts) -> tuple[Array, Array]:
            word = read(waves)
            return conversions.decode(word & np.uint32(0xFFFF), fmt), conversions.decode(word >> np.uint32(16), fmt)

        return halves

    def _factor(self, position: int, sign: int) -> Callable[[Wavefronts], Any]:
        """Return the power of two in a source's exponent, or its inverse for sign -1; NaN for the largest exponent."""
        if not self._scaled:
            return lambda waves: np.float32(1)
        read = self._source(position)

        def factor(waves: Wavefronts) -> Any:
            exponent = (read(waves) >> np.uint32(23) & np.uint32(0xFF)).astype(np.int32)
            return np.where(exponent == 0xFF, np.nan, np.ldexp(1.0, sign * (exponent - 127)))

        return factor
