"""VALU conversions between types of 16 bits and more, by mnemonic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aot_emulator.isa.floats import conversions, formats
from aot_emulator.state.arrays import Array

from .vector_op import vector_op

# Conversions


def _to_integer(kind: str, whole: Callable[[Array], Array] = np.trunc) -> Callable[[Array], Array]:
    bits, is_signed = int(kind[1:]), kind[0] == "i"
    return lambda value: conversions.to_integer(whole(value), bits, is_signed)


def _to_byte(value: Array) -> Array:
    return conversions.to_integer(np.rint(value), 8, False).astype(np.uint32)


def _insert_byte(value: Array, position: Array, old: Array) -> Array:
    shift = (position & np.uint32(3)) * np.uint32(8)
    return old & ~(np.uint32(0xFF) << shift) | _to_byte(value) << shift


def _normalised(scale: int, value: Array) -> Array:
    low = -scale if scale == 0x7FFF else 0
    scaled = np.clip(np.nan_to_num(value.astype(np.float64), nan=0.0), -1 if low else 0, 1) * scale
    return np.rint(scaled).astype(np.int64).astype(np.uint16)


def _pack_normalised(scale: int) -> Callable[[Array, Array], Array]:
    return lambda a, b: conversions.pack16(_normalised(scale, a), _normalised(scale, b))


def half_bits(value: Array) -> Array:
    return value.astype(np.float16).view(np.uint16)


def stochastically(value: Array, random: Array, fmt: formats.FloatFormat) -> Array:
    given, bits = np.broadcast_arrays(value, random)
    return conversions.cvt_sr(given, bits, fmt)


_OFFSETS = (np.arange(16, dtype=np.int8) << 4 >> 4).astype(np.float32) / 16


def _narrow(value: Array, rounding: Any) -> Array:
    return conversions.f32_to_f16(value, rounding).view(np.float16)


CONVERSION_OPS = {
    **{
        f"v_cvt_f32_{kind}": vector_op(
            f"f32 {kind}",
            lambda a: a.astype(np.float32),
            rounded=lambda a, rounding: conversions.narrow(a.astype(np.float64), rounding),
        )
        for kind in ("i32", "u32")
    },
    "v_cvt_f64_i32": vector_op("f64 i32", lambda a: a.astype(np.float64)),
    "v_cvt_f64_u32": vector_op("f64 u32", lambda a: a.astype(np.float64)),
    "v_cvt_i32_f32": vector_op("i32 f32", _to_integer("i32")),
    "v_cvt_u32_f32": vector_op("u32 f32", _to_integer("u32")),
    "v_cvt_i32_f64": vector_op("i32 f64", _to_integer("i32")),
    "v_cvt_u32_f64": vector_op("u32 f64", _to_integer("u32")),
    "v_cvt_rpi_i32_f32": vector_op("i32 f32", _to_integer("i32", lambda a: np.floor(a.astype(np.float64) + 0.5))),
    "v_cvt_flr_i32_f32": vector_op("i32 f32", _to_integer("i32", np.floor)),
    "v_cvt_f16_f32": vector_op("f16 f32", lambda a: a.astype(np.float16), rounded=_narrow),
    "v_cvt_f32_f16": vector_op("f32 f16", lambda a: a.astype(np.float32)),
    "v_cvt_f32_f64": vector_op("f32 f64", lambda a: a.astype(np.float32), rounded=conversions.narrow),
    "v_cvt_f64_f32": vector_op("f64 f32", lambda a: a.astype(np.float64)),
    **{
        f"v_cvt_f16_{kind}": vector_op(
            f"f16 {kind}",
            lambda a: a.astype(np.float16),
            rounded=lambda a, rounding: _narrow(a.astype(np.float32), rounding),
        )
        for kind in ("i16", "u16")
    },
    "v_cvt_u16_f16": vector_op("u16 f16", _to_integer("u16")),
    "v_cvt_i16_f16": vector_op("i16 f16", _to_integer("i16")),
    **{
        f"v_cvt_f32_ubyte{n}": vector_op(
            "f32 u32", lambda a, n=n: (a >> np.uint32(8 * n) & np.uint32(255)).astype(np.float32)
        )
        for n in range(4)
    },
    "v_cvt_off_f32_i4": vector_op("f32 u32", lambda a: _OFFSETS[a & 15]),
    "v_cvt_pk_u8_f32": vector_op("u32 f32 u32 u32", _insert_byte),
    "v_cvt_pkaccum_u8_f32": vector_op("u32 f32 u32 =u32", _insert_byte),
    "v_cvt_pkrtz_f16_f32": vector_op("u32 f32 f32", conversions.cvt_pkrtz_f16_f32),
    "v_cvt_pknorm_i16_f32": vector_op("u32 f32 f32", _pack_normalised(0x7FFF)),
    "v_cvt_pknorm_u16_f32": vector_op("u32 f32 f32", _pack_normalised(0xFFFF)),
    "v_cvt_pknorm_i16_f16": vector_op("u32 f16 f16", _pack_normalised(0x7FFF)),
    "v_cvt_pknorm_u16_f16": vector_op("u32 f16 f16", _pack_normalised(0xFFFF)),
    "v_cvt_norm_i16_f16": vector_op("u16 f16", lambda a: _normalised(0x7FFF, a)),
    "v_cvt_norm_u16_f16": vector_op("u16 f16", lambda a: _normalised(0xFFFF, a)),
}
