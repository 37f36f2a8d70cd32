"""Reference semantics of the vector unit's float instructions, for scalar numpy floats and unsigned integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from aot_emulator.isa.floats.formats import FORMAT_OF_DTYPE
from aot_emulator.state.float_mode import Rounding
from tests.support.emulation.exact import NEAREST, exactly, high, low, nan_or, rounded
from tests.support.emulation.integer_oracles import clamp, word
from tests.support.emulation.values import dtype_of, s

Function = Callable[..., Any]
ALL, SHORT = ("f16", "f32", "f64"), ("f16", "f32")


def exact(function: Function) -> Callable[[str, Rounding], Function]:
    """Round to a kind, once, as MODE says."""
    return lambda kind, rounding: exactly(function, dtype_of(kind), rounding)


def unfused(kind: str, rounding: Rounding) -> Function:
    """Return a * b + c, with the product rounded too."""
    multiply, add = (exactly(f, dtype_of(kind), rounding) for f in (lambda a, b: a * b, lambda a, b: a + b))
    return lambda a, b, c: add(multiply(a, b), c)


def load_exponent(kind: str, rounding: Rounding) -> Function:
    dtype, fmt = dtype_of(kind).type, FORMAT_OF_DTYPE[dtype_of(kind)]
    width = 16 if kind == "f16" else 32

    def one(value: Any, exponent: int) -> Any:
        if not np.isfinite(value) or not value:
            return value
        return dtype(
            rounded(Fraction(float(value)) * Fraction(2) ** clamp(s(exponent, width), -3000, 3000), fmt, rounding)
        )

    return one


ROUNDED: dict[str, Callable[[str, Rounding], Function]] = {
    **{f"v_add_{k}": exact(lambda a, b: a + b) for k in ALL},
    **{f"v_sub_{k}": exact(lambda a, b: a - b) for k in SHORT},
    **{f"v_subrev_{k}": exact(lambda a, b: b - a) for k in SHORT},
    **{f"v_mul_{k}": exact(lambda a, b: a * b) for k in ALL},
    **{f"v_{name}_{k}": exact(lambda a, b, c: a * b + c) for name in ("fma", "fmac") for k in ALL},
    **{f"v_fma{form}_{k}": exact(lambda a, b, c: a * b + c) for form in ("mk", "ak") for k in SHORT},
    **{f"v_{name}_f16": unfused for name in ("mac", "mad", "madmk", "madak")},
    **{f"v_ldexp_{k}": load_exponent for k in ALL},
    **{f"v_cvt_{k}_i{n}": exact(lambda a, n=n: s(int(a), n)) for k, n in (("f32", 32), ("f16", 16), ("f64", 32))},
    **{f"v_cvt_{k}_u{n}": exact(lambda a: a) for k, n in (("f32", 32), ("f16", 16), ("f64", 32))},
    **{f"v_cvt_{to}_{of}": exact(lambda a: a) for to, of in (("f16", "f32"), ("f32", "f16"), ("f32", "f64"), ("f64", "f32"))},
}  # fmt: skip
"""By kind and rounding, the function."""


def whole(kind: str, way: Callable[[Any], Any] = math.trunc) -> Function:
    bits = int(kind[1:])
    least, most = (-1 << bits - 1, (1 << bits - 1) - 1) if kind[0] == "i" else (0, (1 << bits) - 1)

    def convert(x: Any) -> int:
        return 0 if np.isnan(x) else clamp(way(float(x)), least, most) if np.isfinite(x) else most if x > 0 else least

    return convert


def of_pair(function: Callable[[Any], int]) -> Function:
    return lambda a, b: word([function(a), function(b)], 16)


def normalised(scale: int, x: Any) -> int:
    return 0 if np.isnan(x) else round(min(max(float(x), -1 if scale == 0x7FFF else 0), 1) * scale)


def half_toward_zero(x: Any) -> int:
    near = np.float16(min(max(x, np.float32(-65504)), np.float32(65504)) if np.isfinite(x) else x)
    if abs(float(near)) > abs(float(x)):
        near = np.nextafter(near, np.float16(0))
    return int(np.float16(np.copysign(near, x)).view(np.uint16))


def bits16(dtype: Any) -> Callable[[Any], int]:
    return lambda x: int(np.asarray(x).astype(dtype).view(np.uint16))


def with_byte(x: Any, at: int, old: int) -> int:
    byte = 0 if np.isnan(x) else int(min(max(np.rint(x), 0), 255))
    return old & ~(0xFF << 8 * (at & 3)) | byte << 8 * (at & 3)


def middle(*values: Any) -> Any:
    if any(np.isnan(values)):
        return three(low)(*values)
    return sorted(values, key=lambda v: (v, not np.signbit(v)))[1]


def three(function: Function, other: Function | None = None) -> Function:
    return lambda a, b, c: (other or function)(function(a, b), c)


def fraction(x: Any) -> Any:
    part = x - np.floor(x)
    return np.nextafter(type(x)(1), type(x)(0)) if part >= 1 else part


def flushing(a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c whose product is rounded, and in which denormals are zeros, whatever MODE says."""

    def flushed(x: Any) -> Any:
        return np.float32(np.copysign(0, x)) if abs(x) < np.finfo(np.float32).tiny else x

    return flushed(flushed(flushed(a) * flushed(b)) + flushed(c))


PLAIN: dict[str, Function] = {
    **{f"v_{name}_{k}": function for k in ALL for name, function in (
        ("min", low), ("max", high), ("trunc", np.trunc), ("ceil", np.ceil), ("floor", np.floor), ("rndne", np.rint),
        ("minimum", nan_or(low)), ("maximum", nan_or(high)), ("fract", fraction),
        ("frexp_mant", lambda x: np.frexp(x)[0] if np.isfinite(x) else x))},
    **{f"v_{name}_{k}": function for k in SHORT for name, function in (
        ("min3", three(low)), ("max3", three(high)), ("med3", middle),
        ("minmax", three(low, high)), ("maxmin", three(high, low)),
        ("minimum3", nan_or(three(low))), ("maximum3", nan_or(three(high))),
        ("minimummaximum", nan_or(three(low, high))), ("maximumminimum", nan_or(three(high, low))))},
    **{f"v_frexp_exp_{to}_{k}": lambda x: int(np.frexp(x)[1]) if np.isfinite(x) else 0
       for to, k in (("i16", "f16"), ("i32", "f32"), ("i32", "f64"))},
    "v_mul_legacy_f32": lambda a, b: a * b if a and b else np.float32(0),
    **{f"v_cvt_{to}_{of}": whole(to) for to, of in (
        ("i32", "f32"), ("u32", "f32"), ("i32", "f64"), ("u32", "f64"), ("i16", "f16"), ("u16", "f16"))},
    "v_cvt_rpi_i32_f32": whole("i32", lambda x: math.floor(Fraction(x) + Fraction(1, 2))),
    "v_cvt_flr_i32_f32": whole("i32", math.floor),
    **{f"v_cvt_f32_ubyte{n}": lambda x, n=n: x >> 8 * n & 255 for n in range(4)},
    "v_cvt_off_f32_i4": lambda x: s(x, 4) / 16,
    "v_cvt_pk_u8_f32": with_byte,
    "v_cvt_pkrtz_f16_f32": of_pair(half_toward_zero),
    **{f"v_cvt_pknorm_{to}_{k}": of_pair(lambda x, scale=scale: normalised(scale, x))
       for k in SHORT for to, scale in (("i16", 0x7FFF), ("u16", 0xFFFF))},
    **{f"v_cvt_norm_{to}_f16": lambda x, scale=scale: normalised(scale, x) for to, scale in (("i16", 0x7FFF), ("u16", 0xFFFF))},
    **{f"v_cvt_pk_{to}_f32": of_pair(whole(to)) for to in ("i16", "u16")},
    "v_cvt_pk_f16_f32": of_pair(bits16(np.float16)),
    "v_cvt_pk_bf16_f32": of_pair(bits16(ml_dtypes.bfloat16)),
    **{f"v_{name}_f32": flushing for name in ("mad", "mac", "madmk", "madak")},
}  # fmt: skip


def function_of(name: str, kind: str, rounding: Rounding = NEAREST) -> Function:
    return ROUNDED[name](kind, rounding) if name in ROUNDED else PLAIN[name]
