"""Floating-point VALU instructions, by mnemonic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aot_emulator.isa.floats import arithmetic, division, formats, functions, minmax
from aot_emulator.state import float_mode
from aot_emulator.state.arrays import Array

from .integer_ops import reversed_operands
from .vector_op import VectorOp, dot_of, vector_op


def _legacy_multiply(a: Array, b: Array) -> Array:
    return np.where((a == 0) | (b == 0), np.float32(0), a * b)


def _three(function: Callable[..., Array]) -> Callable[..., Array]:
    def chained(a: Array, b: Array, c: Array, *, ieee: bool = True) -> Array:
        return function(function(a, b, ieee=ieee), c, ieee=ieee)

    return chained


def fused(a: Array, b: Array, c: Array) -> Array:
    return arithmetic.fma(a, b, c)


def fused_last(a: Array, b: Array, c: Array, rounding: Any = float_mode.Rounding.NEAREST_EVEN) -> Array:
    """Compute v_fmamk, a * c + b. Its literal is the second source in the encoding, but the last here."""
    return arithmetic.fma(a, c, b, rounding)


def _unfused(a: Array, b: Array, c: Array, rounding: Any = float_mode.Rounding.NEAREST_EVEN) -> Array:
    return arithmetic.add(arithmetic.multiply(a, b, rounding), c, rounding)


def flushing_mad(a: Array, b: Array, c: Array) -> Array:
    """Compute v_mad_f32 and similar, which flush denormal sources, products and sums regardless of MODE."""
    first, second, addend = (formats.flush_denormals(value) for value in (a, b, c))
    return formats.flush_denormals(formats.flush_denormals(first * second) + addend)


def _minus(a: Array, b: Array, rounding: Any) -> Array:
    return arithmetic.add(a, -b, rounding)


def by_kind(*bits: int) -> Callable[[Callable[[str, int], dict[str, VectorOp]]], dict[str, VectorOp]]:
    def collect(make: Callable[[str, int], dict[str, VectorOp]]) -> dict[str, VectorOp]:
        return {name: op for width in bits for name, op in make(f"f{width}", width).items()}

    return collect


@by_kind(16, 32, 64)
def FLOATS(f: str, width: int) -> dict[str, VectorOp]:
    """Return the instructions that exist for all float widths."""
    keep = {"keep_denormals": width != 32}

    def approximate(function: Callable[..., Array]) -> VectorOp:
        return vector_op(f"{f} {f}", lambda value: function(value, **keep))

    exponent = "i16" if width == 16 else "i32"
    return {
        f"v_add_{f}": vector_op(f"{f} {f} {f}", np.add, rounded=arithmetic.add),
        f"v_mul_{f}": vector_op(f"{f} {f} {f}", np.multiply, rounded=arithmetic.multiply),
        f"v_fma_{f}": vector_op(f"{f} {f} {f} {f}", fused, rounded=arithmetic.fma, keeps_high=width == 16),
        f"v_fmac_{f}": vector_op(f"{f} {f} {f} ={f}", fused, rounded=arithmetic.fma),
        f"v_min_{f}": vector_op(f"{f} {f} {f}", minmax.min_num, ieee=True),
        f"v_max_{f}": vector_op(f"{f} {f} {f}", minmax.max_num, ieee=True),
        f"v_ldexp_{f}": vector_op(f"{f} {f} {exponent}", functions.ldexp, rounded=functions.ldexp),
        f"v_rcp_{f}": approximate(functions.reciprocal),
        f"v_rsq_{f}": approximate(functions.reciprocal_sqrt),
        f"v_sqrt_{f}": approximate(functions.sqrt),
        f"v_trunc_{f}": vector_op(f"{f} {f}", np.trunc),
        f"v_ceil_{f}": vector_op(f"{f} {f}", np.ceil),
        f"v_rndne_{f}": vector_op(f"{f} {f}", np.rint),
        f"v_floor_{f}": vector_op(f"{f} {f}", np.floor),
        f"v_fract_{f}": vector_op(f"{f} {f}", functions.fract),
        f"v_frexp_mant_{f}": vector_op(f"{f} {f}", functions.frexp_mantissa),
        f"v_frexp_exp_{exponent}_{f}": vector_op(f"{exponent} {f}", functions.frexp_exponent),
        f"v_div_fixup_{f}": vector_op(f"{f} {f} {f} {f}", division.div_fixup, keeps_high=width == 16),
    }


@by_kind(16, 32)
def SHORT_FLOATS(f: str, width: int) -> dict[str, VectorOp]:
    """Return the instructions that exist for fp16 and fp32, but not for fp64."""
    keep = {"keep_denormals": width != 32}
    high = {"keeps_high": width == 16}
    return {
        f"v_sub_{f}": vector_op(f"{f} {f} {f}", np.subtract, rounded=_minus),
        f"v_subrev_{f}": vector_op(
            f"{f} {f} {f}", reversed_operands(np.subtract), rounded=lambda a, b, rounding: _minus(b, a, rounding)
        ),
        f"v_exp_{f}": vector_op(f"{f} {f}", lambda value: functions.exp2(value, **keep)),
        f"v_log_{f}": vector_op(f"{f} {f}", lambda value: functions.log2(value, **keep)),
        f"v_sin_{f}": vector_op(f"{f} {f}", functions.sine),
        f"v_cos_{f}": vector_op(f"{f} {f}", functions.cosine),
        f"v_min3_{f}": vector_op(f"{f} {f} {f} {f}", _three(minmax.min_num), ieee=True, **high),
        f"v_max3_{f}": vector_op(f"{f} {f} {f} {f}", _three(minmax.max_num), ieee=True, **high),
        f"v_med3_{f}": vector_op(f"{f} {f} {f} {f}", minmax.med3, ieee=True, **high),
    }


OTHER_FLOATS = {
    "v_mul_legacy_f32": vector_op("f32 f32 f32", _legacy_multiply),
    "v_rcp_iflag_f32": FLOATS["v_rcp_f32"],
    "v_exp_legacy_f32": SHORT_FLOATS["v_exp_f32"],
    "v_log_legacy_f32": SHORT_FLOATS["v_log_f32"],
    "v_fmamk_f32": vector_op("f32 f32 f32 f32", fused_last, rounded=fused_last),
    "v_fmaak_f32": vector_op("f32 f32 f32 f32", fused, rounded=arithmetic.fma),
    "v_mac_f16": vector_op("f16 f16 f16 =f16", _unfused, rounded=_unfused),
    "v_madmk_f16": vector_op(
        "f16 f16 f16 f16", lambda a, b, c: _unfused(a, c, b), rounded=lambda a, b, c, r: _unfused(a, c, b, r)
    ),
    "v_madak_f16": vector_op("f16 f16 f16 f16", _unfused, rounded=_unfused),
    "v_mad_f16": vector_op("f16 f16 f16 f16", _unfused, rounded=_unfused, keeps_high=True),
    "v_dot2c_f32_f16": vector_op("f32 u32 u32 =f32", dot_of(formats.FP16), numerics=True),
    "v_dot2c_i32_i16": vector_op("u32 u32 u32 =u32", lambda a, b, c: arithmetic.dot_integer(a, b, c, 16, (True, True))),
    "v_dot4c_i32_i8": vector_op("u32 u32 u32 =u32", lambda a, b, c: arithmetic.dot_integer(a, b, c, 8, (True, True))),
    "v_dot8c_i32_i4": vector_op("u32 u32 u32 =u32", lambda a, b, c: arithmetic.dot_integer(a, b, c, 4, (True, True))),
}
