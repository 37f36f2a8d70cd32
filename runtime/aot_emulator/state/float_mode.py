"""The floating-point part of a wavefront's MODE register."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Rounding(IntEnum):
    """Rounding modes, numbered as in MODE.FP_ROUND."""

    NEAREST_EVEN = 0
    UP = 1
    DOWN = 2
    ZERO = 3


@dataclass(frozen=True)
class FloatMode:
    """The floating-point part of a wavefront's MODE register.

    Attributes:
        round32, round16_64: rounding mode of fp32, and of fp16 and fp64.
        keep_in32, keep_out32, keep_in16_64, keep_out16_64: preserve denormal operands and results, rather than
            flushing them to a zero of the same sign.
        dx10_clamp: clamp turns NaN into 0.
        ieee: min and max quiet signalling NaNs, and output modifiers are ignored.
        fp16_ovfl: finite overflow in fp16 and fp8 gives the largest finite value instead of infinity or NaN.
    """

    round32: Rounding = Rounding.NEAREST_EVEN
    round16_64: Rounding = Rounding.NEAREST_EVEN
    keep_in32: bool = True
    keep_out32: bool = True
    keep_in16_64: bool = True
    keep_out16_64: bool = True
    dx10_clamp: bool = True
    ieee: bool = True
    fp16_ovfl: bool = False

    @classmethod
    def from_register(cls, mode: int) -> FloatMode:
        """Decode a MODE register (bits as on gfx9 to gfx11; FP16_OVFL is bit 23)."""
        return cls(
            Rounding(mode & 3),
            Rounding(mode >> 2 & 3),
            *(bool(mode >> bit & 1) for bit in (4, 5, 6, 7, 8, 9, 23)),
        )
