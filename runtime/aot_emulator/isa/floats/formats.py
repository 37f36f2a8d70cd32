"""Floating-point formats and the classification of values.

Functions are stateless and operate on numpy arrays with broadcasting. A *code* is the bit pattern of a value, an
unsigned integer; a *value* is a numpy float. Values of formats that numpy lacks are represented exactly as float32.

Accuracy of all modules in this package: add, multiply, fused multiply-add, conversions, ldexp, square root, reciprocal
and division are correctly rounded. exp2, log2, sine, cosine and reciprocal square root are computed in float64 and
rounded once, with an error of at most one ulp. The ISA documents guarantee less (1 ulp for most fp32 functions), so
hardware may differ in the last bit. The bit pattern of a NaN result is unspecified, except where the ISA documents
define it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, ParamSpec

import numpy as np

from aot_emulator.state.arrays import Array

P = ParamSpec("P")


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format of at most 32 bits, or fp64.

    Attributes:
        name: name in mnemonics.
        exponent_bits, mantissa_bits: field widths, excluding the sign bit.
        bias: exponent bias.
        special: encoding of special values. `ieee`: infinities and NaN; `fn`: one NaN per sign (all ones), no infinity;
            `fnuz`: one NaN (the code of -0), no infinity, no -0; `finite`: neither.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    special: Literal["ieee", "fn", "fnuz", "finite"]

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def sign_code(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def max_code(self) -> int:
        """Code of the largest finite value."""
        top = self.sign_code - 1
        if self.special == "ieee":
            return top - (1 << self.mantissa_bits)
        return top - (self.special == "fn")

    @property
    def nan_code(self) -> int:
        """Code of a converted NaN; the largest value in formats without NaN."""
        quiet = self.max_code + 1 + (1 << self.mantissa_bits >> 1)
        return {"ieee": quiet, "fn": self.sign_code - 1, "fnuz": self.sign_code, "finite": self.max_code}[self.special]

    @property
    def infinity_code(self) -> int | None:
        return self.max_code + 1 if self.special == "ieee" else None

    @property
    def code_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self.bits <= 8 else f"u{self.bits // 8}")


FP64 = FloatFormat("f64", 11, 52, 1023, "ieee")
FP32 = FloatFormat("f32", 8, 23, 127, "ieee")
FP16 = FloatFormat("f16", 5, 10, 15, "ieee")
BF16 = FloatFormat("bf16", 8, 7, 127, "ieee")
FP8 = FloatFormat("fp8", 4, 3, 7, "fn")
"""OCP E4M3 (gfx950 and gfx12)."""
BF8 = FloatFormat("bf8", 5, 2, 15, "ieee")
"""OCP E5M2 (gfx950 and gfx12)."""
FP8_FNUZ = FloatFormat("fp8", 4, 3, 8, "fnuz")
"""E4M3 FNUZ (gfx942)."""
BF8_FNUZ = FloatFormat("bf8", 5, 2, 16, "fnuz")
"""E5M2 FNUZ (gfx942)."""
FP6 = FloatFormat("fp6", 2, 3, 1, "finite")
BF6 = FloatFormat("bf6", 3, 2, 3, "finite")
FP4 = FloatFormat("fp4", 2, 1, 1, "finite")

FORMAT_OF_DTYPE = {np.dtype(np.float16): FP16, np.dtype(np.float32): FP32, np.dtype(np.float64): FP64}


def quietly(function: Callable[P, Array]) -> Callable[P, Array]:
    """Suppress numpy's floating-point warnings in a function, as infinities and NaNs are regular results."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Array:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return call


def code_of(value: Array) -> Array:
    """Return the codes of float values, as unsigned integers of the same width."""
    return value.view(np.dtype(f"u{value.dtype.itemsize}"))


def is_signalling(value: Array) -> Array:
    """Return a mask of the signalling NaNs."""
    quiet = 1 << (FORMAT_OF_DTYPE[value.dtype].mantissa_bits - 1)
    return np.isnan(value) & (code_of(value) & code_of(value).dtype.type(quiet) == 0)


def quiet(value: Array) -> Array:
    """Quiet signalling NaNs, preserving payload and sign."""
    code = code_of(value)
    bit = code.dtype.type(1 << (FORMAT_OF_DTYPE[value.dtype].mantissa_bits - 1))
    return np.where(np.isnan(value), code | bit, code).view(value.dtype)


def is_denormal(value: Array) -> Array:
    return (value != 0) & (np.abs(value) < np.finfo(value.dtype).smallest_normal)


def flush_denormals(value: Array) -> Array:
    """Replace denormals by a zero of the same sign."""
    return np.where(is_denormal(value), np.copysign(value.dtype.type(0), value), value)


def classify(value: Array) -> Array:
    """Return the class of each value as the bit number in v_cmp_class's mask, int64.

    0: signalling NaN, 1: quiet NaN, 2 to 9: -infinity, -normal, -denormal, -0, +0, +denormal, +normal, +infinity.
    """
    size = np.where(value == 0, 0, np.where(is_denormal(value), 1, np.where(np.isinf(value), 3, 2)))
    signed = np.where(np.signbit(value), 5 - size, 6 + size)
    return np.where(np.isnan(value), 1 - is_signalling(value).astype(np.int64), signed)


def biased_exponent(value: Array) -> Array:
    fmt = FORMAT_OF_DTYPE[value.dtype]
    return code_of(value).astype(np.int64) >> fmt.mantissa_bits & ((1 << fmt.exponent_bits) - 1)
