"""The vector unit: VOP1, VOP2, VOP3 and VOP3SD, with DPP and SDWA (chapter "Vector ALU Operations").

A semantic function takes the sources, arrays that broadcast to [wavefronts, lanes], and gives the result. `compare`
and `packed` have VOPC and VOP3P.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from aot_emulator.isa import floats
from aot_emulator.isa.archs import Arch
from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.modifiers import Modifiers, modifiers
from aot_emulator.isa.operands import (
    DTYPES,
    VGPR,
    Registers,
    half_writer,
    register_reader,
    register_writer,
    scalar_source,
    scalar_target,
    vector_register,
    vector_source,
)
from aot_emulator.isa.scalar.scalar_alu import Step, bit_field, find_high, find_low, find_sign, reverse_bits
from aot_emulator.state.wavefronts import VCC, Array, Wavefronts

from . import small_floats


@dataclass(frozen=True)
class VectorOp:
    """One instruction's semantics.

    Attributes:
        kinds: of the result, then of the sources. A source that is the old destination is written `=kind`.
        function: takes the sources.
        rounded: as `function` with the rounding mode as a further argument, for instructions that obey MODE's. An
            instruction without it is exact, or rounds in one way only.
        saturating: as `function`, for integers whose `clamp` modifier saturates.
        ieee: `function` has a keyword `ieee`.
        keeps_high: a 16-bit result leaves the upper half of the destination; else it is cleared.
    """

    kinds: tuple[str, ...]
    function: Callable[..., Any]
    rounded: Callable[..., Any] | None = None
    saturating: Callable[..., Any] | None = None
    ieee: bool = False
    keeps_high: bool = False

    @property
    def is_float(self) -> bool:
        return any(kind.lstrip("=").startswith("f") for kind in self.kinds)


def _op(kinds: str, function: Callable[..., Any], **fields: Any) -> VectorOp:
    return VectorOp(tuple(kinds.split()), function, **fields)


# Integers


def _signed24(value: Array) -> Array:
    return value << 8 >> 8


def _unsigned24(value: Array) -> Array:
    return value & 0xFFFFFF


def _wide(function: Callable[..., Array]) -> Callable[..., Array]:
    """The function of operands that are widened to 64 bits first."""

    def widened(*values: Array) -> Array:
        return function(*(value.astype(np.int64 if value.dtype.kind == "i" else np.uint64) for value in values))

    return widened


def _saturate(function: Callable[..., Array], kind: str) -> Callable[..., Array]:
    """The function in 64 bits, its result clamped to a kind of at most 32."""
    limits = np.iinfo(np.dtype(f"{kind[0]}{int(kind[1:]) // 8}"))
    return lambda *values: np.clip(function(*(value.astype(np.int64) for value in values)), limits.min, limits.max)


def _integer(kinds: str, function: Callable[..., Array], **fields: Any) -> VectorOp:
    return _op(kinds, function, saturating=_saturate(function, kinds.split()[0]), **fields)


def _reverse(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(b, a)


def _shift_left(value: Array, amount: Array) -> Array:
    return value << (amount & (value.dtype.itemsize * 8 - 1)).astype(value.dtype)


def _shift_right(value: Array, amount: Array) -> Array:
    return value >> (amount & (value.dtype.itemsize * 8 - 1)).astype(value.dtype)


def _vector_bit_field(value: Array, offset: Array, width: Array) -> Array:
    return bit_field(value, offset & 31, width & 31)


def _field_mask(width: Array, offset: Array) -> Array:
    return ((np.uint32(1) << (width & 31)) - np.uint32(1)) << (offset & 31)


def _align(bits: Callable[[Array], Array]) -> Callable[[Array, Array, Array], Array]:
    def align(high: Array, low: Array, amount: Array) -> Array:
        both = high.astype(np.uint64) << np.uint64(32) | low
        return (both >> bits(amount).astype(np.uint64)).astype(np.uint32)

    return align


def _permute_bytes(high: Array, low: Array, selector: Array) -> Array:
    """v_perm_b32: each byte of the result is a byte of {high, low}, the sign of a word of it, 0 or 0xFF."""
    if selector.ndim == 0 or selector.shape[-1] == 1:  # a constant or an SGPR
        common = int(selector.flat[0])
        if (selector == common).all() and not common & 0xF8F8F8F8:
            return _permute_alike(high, low, common.to_bytes(4, "little"))
    both = high.astype(np.uint64) << np.uint64(32) | low
    result: Any = np.uint32(0)
    for position in range(0, 32, 8):
        chosen = selector >> np.uint32(position) & np.uint32(0xFF)
        octet = both >> (chosen & np.uint32(7)).astype(np.uint64) * np.uint64(8) & np.uint64(0xFF)
        if int(np.max(chosen)) > 7:
            sign = both >> ((chosen & np.uint32(3)) * np.uint32(16) + np.uint32(15)).astype(np.uint64) & np.uint64(1)
            octet = np.where(chosen >= 8, sign * np.uint64(0xFF), octet)
            octet = np.where(chosen == 12, np.uint64(0), np.where(chosen > 12, np.uint64(0xFF), octet))
        result = result | octet.astype(np.uint32) << np.uint32(position)
    return result


def _permute_alike(high: Array, low: Array, chosen: bytes) -> Array:
    """`_permute_bytes` with one selector, of bytes below 8, for all lanes."""
    masks: dict[tuple[bool, int], int] = {}
    for place, number in enumerate(chosen):
        moved = (number >= 4, 8 * (place - (number & 3)))  # bytes that go equally far go together
        masks[moved] = masks.get(moved, 0) | 0xFF << 8 * place
    result: Any = np.uint32(0)
    for (from_high, left), mask in masks.items():
        word = high if from_high else low
        shifted = word << np.uint32(left) if left > 0 else word >> np.uint32(-left) if left else word
        result = result | shifted & np.uint32(mask)
    return result


def _absolute_difference(a: Array, b: Array) -> Array:
    return np.maximum(a, b) - np.minimum(a, b)


def _sum_of_differences(width: int, shift: int) -> Callable[[Array, Array, Array], Array]:
    mask = np.uint32((1 << width) - 1)

    def total(a: Array, b: Array, c: Array) -> Array:
        fields = [np.uint32(position) for position in range(0, 32, width)]
        return c + (sum(_absolute_difference(a >> p & mask, b >> p & mask) for p in fields) << np.uint32(shift))

    return total


def _masked_sum_of_differences(a: Array, b: Array, c: Array) -> Array:
    fields = [np.uint32(position) for position in range(0, 32, 8)]
    octets = [(a >> p & np.uint32(255), b >> p & np.uint32(255)) for p in fields]
    return c + sum(np.where(y == 0, np.uint32(0), _absolute_difference(x, y)) for x, y in octets)


def _average_bytes(a: Array, b: Array, c: Array) -> Array:
    result: Any = np.uint32(0)
    for position in range(0, 32, 8):
        p = np.uint32(position)
        x, y, carry = a >> p & np.uint32(255), b >> p & np.uint32(255), c >> p & np.uint32(1)
        result = result | (x + y + carry >> np.uint32(1)) << p
    return result


def _median(a: Array, b: Array, c: Array) -> Array:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def _clamped(low: int, high: int, value: Array) -> Array:
    return np.clip(value.astype(np.int64), low, high)


def _pack_clamped(low: int, high: int) -> Callable[[Array, Array], Array]:
    return lambda a, b: floats.pack16(*(_clamped(low, high, value).astype(np.uint16) for value in (a, b)))


def _shift_to_bytes(low: int, high: int) -> Callable[[Array, Array, Array], Array]:
    """Two numbers shifted right, clamped, and packed in 16 bits."""

    def shift(a: Array, b: Array, amount: Array) -> Array:
        first, second = (np.clip(_shift_right(value, amount), low, high).astype(np.uint16) for value in (a, b))
        return first & np.uint16(0xFF) | second << np.uint16(8)

    return shift


def _next_random(value: Array) -> Array:
    """v_prng_b32: a linear feedback shift register's next state."""
    return value << np.uint32(1) ^ (value >> np.uint32(31)) * np.uint32(197)


# Conversions


def _to_integer(kind: str, whole: Callable[[Array], Array] = np.trunc) -> Callable[[Array], Array]:
    bits, is_signed = int(kind[1:]), kind[0] == "i"
    return lambda value: floats.to_integer(whole(value), bits, is_signed)


def _to_byte(value: Array) -> Array:
    return floats.to_integer(np.rint(value), 8, False).astype(np.uint32)


def _insert_byte(value: Array, position: Array, old: Array) -> Array:
    shift = (position & np.uint32(3)) * np.uint32(8)
    return old & ~(np.uint32(0xFF) << shift) | _to_byte(value) << shift


def _normalised(scale: int, value: Array) -> Array:
    """A float of [-1, 1] or [0, 1] as an integer of 16 bits."""
    low = -scale if scale == 0x7FFF else 0
    scaled = np.clip(np.nan_to_num(value.astype(np.float64), nan=0.0), -1 if low else 0, 1) * scale
    return np.rint(scaled).astype(np.int64).astype(np.uint16)


def _pack_normalised(scale: int) -> Callable[[Array, Array], Array]:
    return lambda a, b: floats.pack16(_normalised(scale, a), _normalised(scale, b))


def _saturate_bytes(value: Array) -> Array:
    low, high = value.astype(np.uint16).view(np.int16), (value >> np.uint32(16)).astype(np.uint16).view(np.int16)
    return np.clip(low, 0, 255).astype(np.uint16) | np.clip(high, 0, 255).astype(np.uint16) << np.uint16(8)


def _half_bits(value: Array) -> Array:
    return value.astype(np.float16).view(np.uint16)


def _randomly(value: Array, random: Array, fmt: floats.FloatFormat) -> Array:
    given, bits = np.broadcast_arrays(value, random)
    return floats.cvt_sr(given, bits, fmt)


_OFFSETS = (np.arange(16, dtype=np.int8) << 4 >> 4).astype(np.float32) / 16


def _legacy_multiply(a: Array, b: Array) -> Array:
    return np.where((a == 0) | (b == 0), np.float32(0), a * b)


def _three(function: Callable[..., Array]) -> Callable[..., Array]:
    def chained(a: Array, b: Array, c: Array, *, ieee: bool = True) -> Array:
        return function(function(a, b, ieee=ieee), c, ieee=ieee)

    return chained


def _fused(a: Array, b: Array, c: Array) -> Array:
    return floats.fma(a, b, c)


def _fused_last(a: Array, b: Array, c: Array, rounding: Any = floats.Rounding.NEAREST_EVEN) -> Array:
    """a * c + b: the literal of v_fmamk is the second source in the encoding, and the last here."""
    return floats.fma(a, c, b, rounding)


def _unfused(a: Array, b: Array, c: Array, rounding: Any = floats.Rounding.NEAREST_EVEN) -> Array:
    """v_mac and v_mad: the product is rounded before the sum."""
    return floats.add(floats.multiply(a, b, rounding), c, rounding)


def _flushing(a: Array, b: Array, c: Array) -> Array:
    """v_mad_f32 and kin, which flush denormals whatever MODE says: sources, product and sum."""
    first, second, addend = (floats.flush_denormals(value) for value in (a, b, c))
    return floats.flush_denormals(floats.flush_denormals(first * second) + addend)


def _minus(a: Array, b: Array, rounding: Any) -> Array:
    return floats.add(a, -b, rounding)


def _narrow(value: Array, rounding: Any) -> Array:
    return floats.f32_to_f16(value, rounding).view(np.float16)


def _by_kind(*bits: int) -> Callable[[Callable[[str, int], dict[str, VectorOp]]], dict[str, VectorOp]]:
    def collect(make: Callable[[str, int], dict[str, VectorOp]]) -> dict[str, VectorOp]:
        return {name: op for width in bits for name, op in make(f"f{width}", width).items()}

    return collect


@_by_kind(16, 32, 64)
def _FLOATS(f: str, width: int) -> dict[str, VectorOp]:
    """What there is for floats of every width."""
    keep = {"keep_denormals": width != 32}

    def approximate(function: Callable[..., Array]) -> VectorOp:
        return _op(f"{f} {f}", lambda value: function(value, **keep))

    exponent = "i16" if width == 16 else "i32"
    return {
        f"v_add_{f}": _op(f"{f} {f} {f}", np.add, rounded=floats.add),
        f"v_mul_{f}": _op(f"{f} {f} {f}", np.multiply, rounded=floats.multiply),
        f"v_fma_{f}": _op(f"{f} {f} {f} {f}", _fused, rounded=floats.fma, keeps_high=width == 16),
        f"v_fmac_{f}": _op(f"{f} {f} {f} ={f}", _fused, rounded=floats.fma),
        f"v_min_{f}": _op(f"{f} {f} {f}", floats.min_num, ieee=True),
        f"v_max_{f}": _op(f"{f} {f} {f}", floats.max_num, ieee=True),
        f"v_ldexp_{f}": _op(f"{f} {f} {exponent}", floats.ldexp, rounded=floats.ldexp),
        f"v_rcp_{f}": approximate(floats.reciprocal),
        f"v_rsq_{f}": approximate(floats.reciprocal_sqrt),
        f"v_sqrt_{f}": approximate(floats.sqrt),
        f"v_trunc_{f}": _op(f"{f} {f}", np.trunc),
        f"v_ceil_{f}": _op(f"{f} {f}", np.ceil),
        f"v_rndne_{f}": _op(f"{f} {f}", np.rint),
        f"v_floor_{f}": _op(f"{f} {f}", np.floor),
        f"v_fract_{f}": _op(f"{f} {f}", floats.fract),
        f"v_frexp_mant_{f}": _op(f"{f} {f}", floats.frexp_mantissa),
        f"v_frexp_exp_{exponent}_{f}": _op(f"{exponent} {f}", floats.frexp_exponent),
        f"v_div_fixup_{f}": _op(f"{f} {f} {f} {f}", floats.div_fixup, keeps_high=width == 16),
    }


@_by_kind(16, 32)
def _SHORT_FLOATS(f: str, width: int) -> dict[str, VectorOp]:
    """What there is for fp16 and fp32, and not for fp64."""
    keep = {"keep_denormals": width != 32}
    high = {"keeps_high": width == 16}
    return {
        f"v_sub_{f}": _op(f"{f} {f} {f}", np.subtract, rounded=_minus),
        f"v_subrev_{f}": _op(
            f"{f} {f} {f}", _reverse(np.subtract), rounded=lambda a, b, rounding: _minus(b, a, rounding)
        ),
        f"v_exp_{f}": _op(f"{f} {f}", lambda value: floats.exp2(value, **keep)),
        f"v_log_{f}": _op(f"{f} {f}", lambda value: floats.log2(value, **keep)),
        f"v_sin_{f}": _op(f"{f} {f}", floats.sine),
        f"v_cos_{f}": _op(f"{f} {f}", floats.cosine),
        f"v_min3_{f}": _op(f"{f} {f} {f} {f}", _three(floats.min_num), ieee=True, **high),
        f"v_max3_{f}": _op(f"{f} {f} {f} {f}", _three(floats.max_num), ieee=True, **high),
        f"v_med3_{f}": _op(f"{f} {f} {f} {f}", floats.med3, ieee=True, **high),
    }


_INTEGER_WIDTHS = {
    name: op
    for kind in ("i16", "u16", "i32", "u32")
    for name, op in {
        f"v_min_{kind}": _op(f"{kind} {kind} {kind}", np.minimum),
        f"v_max_{kind}": _op(f"{kind} {kind} {kind}", np.maximum),
        f"v_min3_{kind}": _op(f"{kind} {kind} {kind} {kind}", lambda a, b, c: np.minimum(np.minimum(a, b), c),
                              keeps_high=True),
        f"v_max3_{kind}": _op(f"{kind} {kind} {kind} {kind}", lambda a, b, c: np.maximum(np.maximum(a, b), c),
                              keeps_high=True),
        f"v_med3_{kind}": _op(f"{kind} {kind} {kind} {kind}", _median, keeps_high=True),
        f"v_add_{kind}": _integer(f"{kind} {kind} {kind}", np.add, keeps_high=kind == "i16"),
        f"v_sub_{kind}": _integer(f"{kind} {kind} {kind}", np.subtract, keeps_high=kind == "i16"),
        f"v_subrev_{kind}": _integer(f"{kind} {kind} {kind}", _reverse(np.subtract)),
    }.items()
}  # fmt: skip

_24 = {"i24": ("i32", _signed24), "u24": ("u32", _unsigned24)}

_INTEGERS = {
    **{f"v_mul_{kind}_{short}": _op(f"{kind} {kind} {kind}", lambda a, b, cut=cut: cut(a) * cut(b))
       for short, (kind, cut) in _24.items()},
    **{f"v_mul_hi_{kind}_{short}": _op(f"{kind} {kind} {kind}",
                                       lambda a, b, cut=cut: _wide(np.multiply)(cut(a), cut(b)) >> 32)
       for short, (kind, cut) in _24.items()},
    **{f"v_mad_{kind}_{short}": _op(f"{kind} {kind} {kind} {kind}", lambda a, b, c, cut=cut: cut(a) * cut(b) + c)
       for short, (kind, cut) in _24.items()},
    **{f"v_mad_{kind}": _integer(f"{kind} {kind} {kind} {kind}", lambda a, b, c: a * b + c, keeps_high=True)
       for kind in ("u16", "i16")},
    "v_mad_u32_u16": _op("u32 u16 u16 u32", lambda a, b, c: a.astype(np.uint32) * b.astype(np.uint32) + c),
    "v_mad_i32_i16": _op("i32 i16 i16 i32", lambda a, b, c: a.astype(np.int32) * b.astype(np.int32) + c),
    "v_mul_lo_u16": _op("u16 u16 u16", np.multiply),
    "v_mul_lo_u32": _op("u32 u32 u32", np.multiply),
    "v_mul_hi_u32": _op("u32 u32 u32", lambda a, b: _wide(np.multiply)(a, b) >> np.uint64(32)),
    "v_mul_hi_i32": _op("i32 i32 i32", lambda a, b: _wide(np.multiply)(a, b) >> np.int64(32)),
    "v_lshlrev_b16": _op("u16 u16 u16", _reverse(_shift_left)),
    "v_lshrrev_b16": _op("u16 u16 u16", _reverse(_shift_right)),
    "v_ashrrev_i16": _op("i16 u16 i16", _reverse(_shift_right)),
    "v_lshlrev_b32": _op("u32 u32 u32", _reverse(_shift_left)),
    "v_lshrrev_b32": _op("u32 u32 u32", _reverse(_shift_right)),
    "v_ashrrev_i32": _op("i32 u32 i32", _reverse(_shift_right)),
    "v_lshlrev_b64": _op("u64 u32 u64", _reverse(_shift_left)),
    "v_lshrrev_b64": _op("u64 u32 u64", _reverse(_shift_right)),
    "v_ashrrev_i64": _op("i64 u32 i64", _reverse(_shift_right)),
    "v_and_b32": _op("u32 u32 u32", np.bitwise_and),
    "v_or_b32": _op("u32 u32 u32", np.bitwise_or),
    "v_xor_b32": _op("u32 u32 u32", np.bitwise_xor),
    "v_xnor_b32": _op("u32 u32 u32", lambda a, b: ~(a ^ b)),
    "v_not_b32": _op("u32 u32", np.invert),
    "v_bfrev_b32": _op("u32 u32", reverse_bits),
    "v_ffbh_u32": _op("i32 u32", find_high),
    "v_ffbl_b32": _op("i32 u32", find_low),
    "v_ffbh_i32": _op("i32 i32", find_sign),
    "v_bfe_u32": _op("u32 u32 u32 u32", _vector_bit_field),
    "v_bfe_i32": _op("i32 i32 u32 u32", _vector_bit_field),
    "v_bfi_b32": _op("u32 u32 u32 u32", lambda a, b, c: (a & b) | (~a & c)),
    "v_bfm_b32": _op("u32 u32 u32", _field_mask),
    "v_bcnt_u32_b32": _op("u32 u32 u32", lambda a, b: np.bitwise_count(a) + b),
    "v_alignbit_b32": _op("u32 u32 u32 u32", _align(lambda amount: amount & 31)),
    "v_alignbyte_b32": _op("u32 u32 u32 u32", _align(lambda amount: (amount & 3) * np.uint32(8))),
    "v_perm_b32": _op("u32 u32 u32 u32", _permute_bytes),
    "v_lerp_u8": _op("u32 u32 u32 u32", _average_bytes),
    "v_sad_u8": _op("u32 u32 u32 u32", _sum_of_differences(8, 0)),
    "v_sad_hi_u8": _op("u32 u32 u32 u32", _sum_of_differences(8, 16)),
    "v_sad_u16": _op("u32 u32 u32 u32", _sum_of_differences(16, 0)),
    "v_sad_u32": _op("u32 u32 u32 u32", _sum_of_differences(32, 0)),
    "v_msad_u8": _op("u32 u32 u32 u32", _masked_sum_of_differences),
    "v_xad_u32": _op("u32 u32 u32 u32", lambda a, b, c: (a ^ b) + c),
    "v_lshl_add_u32": _op("u32 u32 u32 u32", lambda a, b, c: (a << (b & 31)) + c),
    "v_add_lshl_u32": _op("u32 u32 u32 u32", lambda a, b, c: (a + b) << (c & 31)),
    "v_add3_u32": _op("u32 u32 u32 u32", lambda a, b, c: a + b + c),
    "v_lshl_or_b32": _op("u32 u32 u32 u32", lambda a, b, c: (a << (b & 31)) | c),
    "v_and_or_b32": _op("u32 u32 u32 u32", lambda a, b, c: (a & b) | c),
    "v_or3_b32": _op("u32 u32 u32 u32", lambda a, b, c: a | b | c),
    "v_lshl_add_u64": _op("u64 u64 u32 u64", lambda a, b, c: (a << (b & 7).astype(np.uint64)) + c),
    "v_mov_b32": _op("u32 u32", lambda a: a),
    "v_mov_b64": _op("u64 u64", lambda a: a),
    "v_pack_b32_f16": _op("u32 u16 u16", lambda a, b: floats.pack16(a, b)),
    "v_sat_pk_u8_i16": _op("u16 u32", _saturate_bytes),
    "v_cvt_pk_u16_u32": _op("u32 u32 u32", _pack_clamped(0, 0xFFFF)),
    "v_cvt_pk_i16_i32": _op("u32 i32 i32", _pack_clamped(-0x8000, 0x7FFF)),
}  # fmt: skip

_CONVERSIONS = {
    **{f"v_cvt_f32_{kind}": _op(f"f32 {kind}", lambda a: a.astype(np.float32),
                                rounded=lambda a, rounding: floats.narrow(a.astype(np.float64), rounding))
       for kind in ("i32", "u32")},
    "v_cvt_f64_i32": _op("f64 i32", lambda a: a.astype(np.float64)),
    "v_cvt_f64_u32": _op("f64 u32", lambda a: a.astype(np.float64)),
    "v_cvt_i32_f32": _op("i32 f32", _to_integer("i32")),
    "v_cvt_u32_f32": _op("u32 f32", _to_integer("u32")),
    "v_cvt_i32_f64": _op("i32 f64", _to_integer("i32")),
    "v_cvt_u32_f64": _op("u32 f64", _to_integer("u32")),
    "v_cvt_rpi_i32_f32": _op("i32 f32", _to_integer("i32", lambda a: np.floor(a.astype(np.float64) + 0.5))),
    "v_cvt_flr_i32_f32": _op("i32 f32", _to_integer("i32", np.floor)),
    "v_cvt_f16_f32": _op("f16 f32", lambda a: a.astype(np.float16), rounded=_narrow),
    "v_cvt_f32_f16": _op("f32 f16", lambda a: a.astype(np.float32)),
    "v_cvt_f32_f64": _op("f32 f64", lambda a: a.astype(np.float32), rounded=floats.narrow),
    "v_cvt_f64_f32": _op("f64 f32", lambda a: a.astype(np.float64)),
    **{f"v_cvt_f16_{kind}": _op(f"f16 {kind}", lambda a: a.astype(np.float16),
                                rounded=lambda a, rounding: _narrow(a.astype(np.float32), rounding))
       for kind in ("i16", "u16")},
    "v_cvt_u16_f16": _op("u16 f16", _to_integer("u16")),
    "v_cvt_i16_f16": _op("i16 f16", _to_integer("i16")),
    **{f"v_cvt_f32_ubyte{n}": _op("f32 u32", lambda a, n=n: (a >> np.uint32(8 * n) & np.uint32(255)).astype(np.float32))
       for n in range(4)},
    "v_cvt_off_f32_i4": _op("f32 u32", lambda a: _OFFSETS[a & 15]),
    "v_cvt_pk_u8_f32": _op("u32 f32 u32 u32", _insert_byte),
    "v_cvt_pkaccum_u8_f32": _op("u32 f32 u32 =u32", _insert_byte),
    "v_cvt_pkrtz_f16_f32": _op("u32 f32 f32", floats.cvt_pkrtz_f16_f32),
    "v_cvt_pknorm_i16_f32": _op("u32 f32 f32", _pack_normalised(0x7FFF)),
    "v_cvt_pknorm_u16_f32": _op("u32 f32 f32", _pack_normalised(0xFFFF)),
    "v_cvt_pknorm_i16_f16": _op("u32 f16 f16", _pack_normalised(0x7FFF)),
    "v_cvt_pknorm_u16_f16": _op("u32 f16 f16", _pack_normalised(0xFFFF)),
    "v_cvt_norm_i16_f16": _op("u16 f16", lambda a: _normalised(0x7FFF, a)),
    "v_cvt_norm_u16_f16": _op("u16 f16", lambda a: _normalised(0xFFFF, a)),
}  # fmt: skip

_OTHER_FLOATS = {
    "v_mul_legacy_f32": _op("f32 f32 f32", _legacy_multiply),
    "v_rcp_iflag_f32": _FLOATS["v_rcp_f32"],
    "v_exp_legacy_f32": _SHORT_FLOATS["v_exp_f32"],
    "v_log_legacy_f32": _SHORT_FLOATS["v_log_f32"],
    "v_fmamk_f32": _op("f32 f32 f32 f32", _fused_last, rounded=_fused_last),
    "v_fmaak_f32": _op("f32 f32 f32 f32", _fused, rounded=floats.fma),
    "v_mac_f16": _op("f16 f16 f16 =f16", _unfused, rounded=_unfused),
    "v_madmk_f16": _op("f16 f16 f16 f16", lambda a, b, c: _unfused(a, c, b),
                       rounded=lambda a, b, c, r: _unfused(a, c, b, r)),
    "v_madak_f16": _op("f16 f16 f16 f16", _unfused, rounded=_unfused),
    "v_mad_f16": _op("f16 f16 f16 f16", _unfused, rounded=_unfused, keeps_high=True),
    "v_dot2c_f32_f16": _op("f32 u32 u32 =f32", lambda a, b, c: floats.dot(a, b, c, floats.FP16, floats.FP16)),
    "v_dot2c_i32_i16": _op("u32 u32 u32 =u32", lambda a, b, c: floats.dot_integer(a, b, c, 16, (True, True))),
    "v_dot4c_i32_i8": _op("u32 u32 u32 =u32", lambda a, b, c: floats.dot_integer(a, b, c, 8, (True, True))),
    "v_dot8c_i32_i4": _op("u32 u32 u32 =u32", lambda a, b, c: floats.dot_integer(a, b, c, 4, (True, True))),
}  # fmt: skip


def _chained(first: Callable[..., Array], second: Callable[..., Array]) -> Callable[..., Array]:
    """second(first(a, b), c), for functions that may obey MODE.IEEE."""

    def chained(a: Array, b: Array, c: Array, **ieee: bool) -> Array:
        return second(first(a, b, **ieee), c, **ieee)

    return chained


@_by_kind(16, 32)
def _RDNA_FLOATS(f: str, width: int) -> dict[str, VectorOp]:
    """Minimum and maximum of three, and together. Those with whole names, of RDNA 4, give NaN for NaN."""
    three = f"{f} {f} {f} {f}"
    return {
        f"v_minmax_{f}": _op(three, _chained(floats.min_num, floats.max_num), ieee=True),
        f"v_maxmin_{f}": _op(three, _chained(floats.max_num, floats.min_num), ieee=True),
        f"v_minimum3_{f}": _op(three, _chained(floats.minimum, floats.minimum)),
        f"v_maximum3_{f}": _op(three, _chained(floats.maximum, floats.maximum)),
        f"v_minimummaximum_{f}": _op(three, _chained(floats.minimum, floats.maximum)),
        f"v_maximumminimum_{f}": _op(three, _chained(floats.maximum, floats.minimum)),
    }


_RDNA = {
    **_RDNA_FLOATS,
    **{f"v_{name}_f{width}": _op(" ".join([f"f{width}"] * 3), function)
       for width in (16, 32, 64) for name, function in (("minimum", floats.minimum), ("maximum", floats.maximum))},
    **{f"v_minmax_{kind}": _op(" ".join([kind] * 4), _chained(np.minimum, np.maximum)) for kind in ("i32", "u32")},
    **{f"v_maxmin_{kind}": _op(" ".join([kind] * 4), _chained(np.maximum, np.minimum)) for kind in ("i32", "u32")},
    "v_and_b16": _op("u16 u16 u16", np.bitwise_and),
    "v_or_b16": _op("u16 u16 u16", np.bitwise_or),
    "v_xor_b16": _op("u16 u16 u16", np.bitwise_xor),
    "v_not_b16": _op("u16 u16", np.invert),
    "v_mov_b16": _op("u16 u16", lambda a: a),
    "v_xor3_b32": _op("u32 u32 u32 u32", lambda a, b, c: a ^ b ^ c),
    "v_cvt_u32_u16": _op("u32 u16", lambda a: a.astype(np.uint32)),
    "v_cvt_i32_i16": _op("i32 i16", lambda a: a.astype(np.int32)),
    "v_cvt_pk_i16_f32": _op("u32 f32 f32", lambda a, b: floats.pack16(*(
        floats.to_integer(np.trunc(value), 16, True).astype(np.uint16) for value in (a, b)))),
    "v_cvt_pk_u16_f32": _op("u32 f32 f32", lambda a, b: floats.pack16(*(
        floats.to_integer(np.trunc(value), 16, False).astype(np.uint16) for value in (a, b)))),
    "v_fmamk_f16": _op("f16 f16 f16 f16", _fused_last, rounded=_fused_last),
    "v_fmaak_f16": _op("f16 f16 f16 f16", _fused, rounded=floats.fma),
}  # fmt: skip
"""What CDNA has not; but gfx950 has the minimum and the maximum of three."""

_OTHER_CDNA = {
    "v_ashr_pk_i8_i32": _op("u16 i32 i32 u32", _shift_to_bytes(-0x80, 0x7F), keeps_high=True),
    "v_ashr_pk_u8_i32": _op("u16 i32 i32 u32", _shift_to_bytes(0, 0xFF), keeps_high=True),
    "v_prng_b32": _op("u32 u32", _next_random),
    "v_cvt_pk_f16_f32": _op("u32 f32 f32", lambda a, b: floats.pack16(_half_bits(a), _half_bits(b))),
    "v_cvt_pk_bf16_f32": _op("u32 f32 f32", floats.cvt_pk_bf16_f32),
    "v_cvt_sr_f16_f32": _op("u16 f32 u32", lambda a, bits: _randomly(a, bits, floats.FP16), keeps_high=True),
    "v_cvt_sr_bf16_f32": _op("u16 f32 u32", lambda a, bits: _randomly(a, bits, floats.BF16), keeps_high=True),
    "v_mad_f32": _op("f32 f32 f32 f32", _flushing),
    "v_mac_f32": _op("f32 f32 f32 =f32", _flushing),
    "v_madmk_f32": _op("f32 f32 f32 f32", lambda a, b, c: _flushing(a, c, b)),
    "v_madak_f32": _op("f32 f32 f32 f32", _flushing),
    "v_dot2c_f32_bf16": _op("f32 u32 u32 =f32", lambda a, b, c: floats.dot(a, b, c, floats.BF16, floats.BF16)),
    "v_trig_preop_f64": _op("f64 f64 u32", floats.trig_preop),
}  # fmt: skip
"""What gfx950 or gfx90a have and gfx942 has not, RDNA in part; and what only code for large angles uses."""

OPS: dict[str, VectorOp] = {
    **_FLOATS, **_SHORT_FLOATS, **_OTHER_FLOATS, **_INTEGER_WIDTHS, **_INTEGERS, **_CONVERSIONS, **_RDNA,
    **_OTHER_CDNA,
}  # fmt: skip


def of_arch(op: VectorOp, arch: Arch) -> VectorOp:
    """The instruction as an arch has it: RDNA 4 has no IEEE mode, and minimum and maximum quiet no NaN then."""
    if arch.isa != "rdna4" or not op.ieee:
        return op
    return replace(op, function=partial(op.function, ieee=False), ieee=False)


# Binding

_NOTHING = ("v_nop", "v_clrexcp", "v_pipeflush", "v_permlane64_b32")
"""v_permlane64_b32 exchanges halves of wavefronts of 64."""


def bind(instruction: Instruction, layout: Registers) -> Step | None:
    """What executes a vector instruction; None if it is none of this unit's."""
    name = instruction.operation
    if name in _NOTHING:
        return lambda waves: None
    if name in OPS:
        changes = modifiers(instruction, layout)
        return changes.around(_bind_plain(instruction, of_arch(OPS[name], instruction.arch), changes))
    if name in _SPECIAL:
        changes = modifiers(instruction, layout)
        return changes.around(_SPECIAL[name](instruction, layout, changes))
    if name in _CROSS_LANE:
        return _CROSS_LANE[name](instruction, layout)
    if name.startswith("v_cvt_"):
        changes = modifiers(instruction, layout)
        step = small_floats.bind(instruction, layout, changes)
        return None if step is None else changes.around(step)
    return None


def _bind_plain(instruction: Instruction, op: VectorOp, changes: Modifiers) -> Step:
    result, *kinds = op.kinds
    readers = changes.sources(kinds)
    write = changes.destination(result, op.keeps_high)
    finish = changes.finish(result, op.saturating is not None)
    function = op.saturating if changes.clamp and op.saturating is not None else op.function
    if not op.is_float:
        return _step(function, readers, write, finish)
    fast = _step(function, readers, write, finish)

    def slow(waves: Wavefronts) -> None:
        result = evaluate(op, waves, [read(waves) for read in readers])
        write(waves, result if finish is None else finish(waves, result))

    return lambda waves: fast(waves) if waves.plain else slow(waves)


def _step(function: Any, readers: list[Any], write: Any, finish: Any) -> Step:
    """A step for each number of sources, as this is where the time goes."""
    if finish is not None:
        return lambda waves: write(waves, finish(waves, function(*(read(waves) for read in readers))))
    if len(readers) == 1:
        (first,) = readers
        return lambda waves: write(waves, function(first(waves)))
    if len(readers) == 2:
        first, second = readers
        return lambda waves: write(waves, function(first(waves), second(waves)))
    return lambda waves: write(waves, function(*(read(waves) for read in readers)))


def evaluate(op: VectorOp, waves: Wavefronts, values: list[Any]) -> Any:
    """The result of an instruction under whatever MODE says."""
    if waves.plain or not op.is_float:
        return op.function(*values)
    mode = waves.mode
    values = [flush_input(mode, value) for value in values]
    function, arguments = op.function, []
    if op.rounded is not None:
        # What rounds is the result; a conversion to an integer rounds in one way only.
        function, arguments = op.rounded, [mode.round32 if op.kinds[0] == "f32" else mode.round16_64]
    result = function(*values, *arguments, **({"ieee": mode.ieee} if op.ieee else {}))
    result = flush_output(mode, op.kinds[0], result)
    return _without_overflow(result, values) if op.kinds[0] == "f16" and mode.fp16_ovfl else result


def flush_input(mode: floats.FloatMode, value: Any) -> Any:
    """A source, its denormals made 0 if MODE says so."""
    if value.dtype.kind != "f" or (mode.keep_in32 if value.dtype.itemsize == 4 else mode.keep_in16_64):
        return value
    return floats.flush_denormals(value)


def flush_output(mode: floats.FloatMode, kind: str, value: Any) -> Any:
    """A result, its denormals made 0 if MODE says so."""
    if kind[0] != "f" or (mode.keep_out32 if kind == "f32" else mode.keep_out16_64):
        return value
    return floats.flush_denormals(np.asarray(value, f"f{int(kind[1:]) // 8}"))


def _without_overflow(result: Any, values: list[Any]) -> Any:
    """MODE.FP16_OVFL: infinity only from infinity."""
    given = np.zeros((), bool)
    for value in values:
        if value.dtype.kind == "f":
            given = given | np.isinf(value)
    largest = np.float16(65504)
    return np.where(np.isinf(result) & ~given, np.copysign(largest, result), result)


# With lane masks


def _mask_reader(instruction: Instruction) -> Callable[[Wavefronts], Array]:
    """The lane mask that an instruction takes: src2 in VOP3 and VOP3SD, else VCC."""
    number = instruction.fields.get("src2", VCC)
    if number < 128:
        return lambda waves: waves.lane_mask(number)
    source = scalar_source(instruction, number, "u64")
    shifts = np.arange(instruction.arch.lanes, dtype=np.uint64)
    return lambda waves: (np.asarray(source(waves), np.uint64)[..., None] >> shifts & np.uint64(1)).astype(bool)


def _mask_target(instruction: Instruction) -> int:
    """Where a second result, of a bit a lane, goes: sdst, or VCC where there is none."""
    return scalar_target(instruction, instruction.fields.get("sdst", VCC))


def _bind_select(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    kind = f"f{instruction.operation[-2:]}"
    first, second = changes.sources([kind, kind])
    mask, write = _mask_reader(instruction), changes.destination(kind, False)
    changes.refuse_clamp()
    return lambda waves: write(waves, np.where(mask(waves), second(waves), first(waves)))


def _bind_carry(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    """v_add_co_u32, v_subbrev_co_u32 and kin: the carry goes to VCC or sdst, and for -c- and -b- comes from a mask."""
    name = instruction.operation
    changes.refuse_clamp()
    first, second = changes.sources(["u32", "u32"])
    if "rev" in name:
        first, second = second, first
    write, target = changes.destination("u32", False), _mask_target(instruction)
    carry = _mask_reader(instruction) if name.startswith(("v_addc", "v_subb")) else None
    subtract = name.startswith("v_sub")

    def step(waves: Wavefronts) -> None:
        a, b = first(waves).astype(np.int64), second(waves).astype(np.int64)
        extra = 0 if carry is None else carry(waves)
        total = a - b - extra if subtract else a + b + extra
        overflow = (total < 0) | (total > 0xFFFFFFFF)
        write(waves, (total & 0xFFFFFFFF).astype(np.uint32))
        waves.write_lane_mask(target, np.broadcast_to(overflow, waves.shape))

    return step


def _bind_wide_multiply(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    """v_mad_u64_u32 and v_mad_i64_i32."""
    kind = "u" if "u64" in instruction.mnemonic else "i"
    changes.refuse_clamp()
    first, second, addend = changes.sources([f"{kind}32", f"{kind}32", f"{kind}64"])
    write, target = changes.destination(f"{kind}64", False), _mask_target(instruction)

    def step(waves: Wavefronts) -> None:
        product = _wide(np.multiply)(first(waves), second(waves))
        other = addend(waves)
        total = product + other
        overflow = total < product if kind == "u" else ((product ^ total) & (other ^ total)) < 0
        write(waves, np.broadcast_to(total, waves.shape))
        waves.write_lane_mask(target, np.broadcast_to(overflow, waves.shape))

    return step


def _bind_div_scale(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    kind = instruction.mnemonic[-3:]
    readers, write = changes.sources([kind] * 3), changes.destination(kind, False)
    changes.refuse_clamp()
    target = _mask_target(instruction)

    def step(waves: Wavefronts) -> None:
        value, mask = floats.div_scale(*np.broadcast_arrays(*(read(waves) for read in readers)))
        write(waves, value)
        waves.write_lane_mask(target, np.broadcast_to(mask, waves.shape))

    return step


def _bind_div_fmas(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    kind = instruction.mnemonic[-3:]
    readers, write = changes.sources([kind] * 3), changes.destination(kind, False)
    changes.refuse_clamp()

    def step(waves: Wavefronts) -> None:
        values = np.broadcast_arrays(*(read(waves) for read in readers))
        a, b, c = values
        write(waves, floats.div_fmas(a, b, c, waves.lane_mask(VCC)))

    return step


def _truth(table: int, sources: list[Array], dtype: Any) -> Array:
    """A function of bits given by its truth table, in which the first source has the highest place."""
    half = 1 << len(sources) >> 1
    ones = (1 << half) - 1
    low, differs = table & ones, (table ^ table >> half) & ones
    if not sources or not differs:
        return _truth(low, sources[1:], dtype) if sources else dtype(-(table & 1) & np.iinfo(dtype).max)
    changed = sources[0] if differs == ones else sources[0] & _truth(differs, sources[1:], dtype)
    return changed if not low else _truth(low, sources[1:], dtype) ^ changed


def _bind_bit_operation(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    """v_bitop3_b32 and v_bitop3_b16: any function of three bits, its truth table in the modifiers' fields."""
    field, kind = instruction.field, f"u{instruction.mnemonic[-2:]}"
    table = field("omod") << 6 | field("abs") << 3 | field("neg")
    readers = [changes.raw_source(position, number, kind) for position, number in enumerate(changes.numbers())]
    write = changes.destination(kind, True)
    dtype = DTYPES[kind].type

    def step(waves: Wavefronts) -> None:
        write(waves, np.broadcast_to(_truth(table, [read(waves) for read in readers], dtype), waves.shape))

    return step


def _bind_count_below(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    """v_mbcnt_lo and _hi: bits of a mask's low or high word that belong to lower lanes, plus a number."""
    first = 32 if "_hi_" in instruction.mnemonic else 0
    changes.refuse_clamp()
    mask, base = changes.sources(["u32", "u32"])
    write = changes.destination("u32", False)
    lanes = range(instruction.arch.lanes)
    below = np.array([(1 << min(max(lane - first, 0), 32)) - 1 for lane in lanes], np.uint32)
    return lambda waves: write(waves, np.bitwise_count(mask(waves) & below) + base(waves))


_SPECIAL: dict[str, Callable[[Instruction, Registers, Modifiers], Step]] = {
    "v_cndmask_b32": _bind_select,
    "v_cndmask_b16": _bind_select,
    "v_mbcnt_lo_u32_b32": _bind_count_below,
    "v_mbcnt_hi_u32_b32": _bind_count_below,
    **{f"v_{name}_co_u32": _bind_carry for name in ("add", "sub", "subrev", "addc", "subb", "subbrev")},
    "v_mad_u64_u32": _bind_wide_multiply,
    "v_mad_i64_i32": _bind_wide_multiply,
    **{f"v_div_scale_{kind}": _bind_div_scale for kind in ("f32", "f64")},
    **{f"v_div_fmas_{kind}": _bind_div_fmas for kind in ("f32", "f64")},
    "v_bitop3_b32": _bind_bit_operation,
    "v_bitop3_b16": _bind_bit_operation,
}


# Between lanes


def _source_row(instruction: Instruction, layout: Registers) -> int:
    number = instruction.fields["src0"]
    if number < VGPR:
        raise instruction.unsupported("a source that is no vector register")
    return vector_register(instruction, number, False, layout, 1)


def _bind_read_first_lane(instruction: Instruction, layout: Registers) -> Step:
    row, target = _source_row(instruction, layout), _scalar_target(instruction)

    def step(waves: Wavefronts) -> None:
        active = waves.active
        # With EXEC 0 lane 0 is read, which is where argmax of nothing points.
        lane = 0 if active is None else active.argmax(1)
        waves.write_scalar(target, waves.u32[row][np.arange(waves.count), lane])

    return step


def _scalar_target(instruction: Instruction) -> int:
    # CDNA's tables take the field for that of a vector register.
    return scalar_target(instruction, instruction.fields["vdst"] % VGPR)


def _bind_read_lane(instruction: Instruction, layout: Registers) -> Step:
    row, target = _source_row(instruction, layout), _scalar_target(instruction)
    lane = scalar_source(instruction, instruction.fields["src1"], "u32")
    last = instruction.arch.lanes - 1
    return lambda waves: waves.write_scalar(
        target, waves.u32[row][np.arange(waves.count), (lane(waves) & last).astype(np.intp)]
    )


def _bind_write_lane(instruction: Instruction, layout: Registers) -> Step:
    row = vector_register(instruction, instruction.fields["vdst"], False, layout, 1)
    value, lane = (scalar_source(instruction, instruction.fields[name], "u32") for name in ("src0", "src1"))
    last = instruction.arch.lanes - 1
    return lambda waves: waves.write_lane(row, (lane(waves) & last).astype(np.intp), value(waves))


def _bind_swap_halves(instruction: Instruction, layout: Registers) -> Step:
    """v_swap_b16."""
    rows = _source_row(instruction, layout), vector_register(instruction, instruction.fields["vdst"], False, layout, 1)
    chosen = instruction.field("opsel")
    places = tuple(zip(rows, (chosen & 1, chosen >> 3), strict=True))
    first, second = (register_reader(row, "u16", half) for row, half in places)
    write_first, write_second = (half_writer(row, "u16", half) for row, half in places)

    def step(waves: Wavefronts) -> None:
        kept = first(waves).copy()
        write_first(waves, second(waves))
        write_second(waves, kept)

    return step


def _bind_swap(instruction: Instruction, layout: Registers) -> Step:
    first, second = (
        _source_row(instruction, layout),
        vector_register(instruction, instruction.fields["vdst"], False, layout, 1),
    )

    def step(waves: Wavefronts) -> None:
        kept = waves.u32[first].copy()
        waves.write(first, waves.u32[second])
        waves.write(second, kept)

    return step


def _bind_row_swap(instruction: Instruction, layout: Registers) -> Step:
    """v_permlane16_swap and v_permlane32_swap: the odd rows of 16 or 32 lanes of the one with the even of the other."""
    if instruction.field("omod") or instruction.field("clmp"):
        raise instruction.unsupported("clamp or omod")
    width = int(instruction.mnemonic.removeprefix("v_permlane")[:2])
    even, odd = (
        _source_row(instruction, layout),
        vector_register(instruction, instruction.fields["vdst"], False, layout, 1),
    )

    def step(waves: Wavefronts) -> None:
        if waves.active is not None:
            raise instruction.unsupported("a swap of rows with inactive lanes")
        first, second = (waves.u32[row].reshape(waves.count, -1, 2, width) for row in (even, odd))
        first[:, :, 0], second[:, :, 1] = second[:, :, 1].copy(), first[:, :, 0].copy()

    return step


def _bind_accumulation(instruction: Instruction, layout: Registers) -> Step:
    """v_accvgpr_read, _write and _mov: moves to and from accumulation registers."""
    name, source = instruction.mnemonic, instruction.fields["src0"]
    from_accumulation = "_write" not in name
    if from_accumulation:
        read = register_reader(vector_register(instruction, source, True, layout, 1), "u32")
    else:
        read = vector_source(instruction, source, "u32", layout)
    row = vector_register(instruction, instruction.fields["vdst"], "_read" not in name, layout, 1)
    write = register_writer(row, "u32")
    return lambda waves: write(waves, read(waves))


def _bind_permute_row(instruction: Instruction, layout: Registers) -> Step:
    """v_permlane16_b32 and v_permlanex16_b32: each lane of 16 takes that of its row, or of the other row of two, which
    four bits of 64 name. op_sel's first bit has inactive lanes read too, its second has them give 0.
    """
    row = _source_row(instruction, layout)
    target = vector_register(instruction, instruction.fields["vdst"], False, layout, 1)
    low, high = (scalar_source(instruction, instruction.fields[name], "u32") for name in ("src1", "src2"))
    reads_inactive, zero = bool(instruction.field("opsel") & 1), bool(instruction.field("opsel") & 2)
    lane = np.arange(instruction.arch.lanes)
    first = (lane & ~15) ^ (16 if "permlanex16" in instruction.mnemonic else 0)
    shifts = (lane % 8 * 4).astype(np.uint32)

    def step(waves: Wavefronts) -> None:
        words = (np.broadcast_to(word(waves), waves.count)[:, None] for word in (low, high))
        below, above = words
        source = first + (np.where(lane % 16 < 8, below, above) >> shifts & np.uint32(15))
        value = np.take_along_axis(waves.u32[row], source, 1)
        active = waves.active
        if active is None or reads_inactive:
            waves.write(target, value)
            return
        valid = np.take_along_axis(active, source, 1)
        waves.write(target, np.where(valid, value, np.uint32(0) if zero else waves.u32[target]))

    return step


_CROSS_LANE: dict[str, Callable[[Instruction, Registers], Step]] = {
    "v_readfirstlane_b32": _bind_read_first_lane,
    "v_readlane_b32": _bind_read_lane,
    "v_writelane_b32": _bind_write_lane,
    "v_swap_b32": _bind_swap,
    "v_permlane16_swap_b32": _bind_row_swap,
    "v_permlane32_swap_b32": _bind_row_swap,
    "v_swap_b16": _bind_swap_halves,
    "v_permlane16_b32": _bind_permute_row,
    "v_permlanex16_b32": _bind_permute_row,
    "v_accvgpr_read": _bind_accumulation,
    "v_accvgpr_read_b32": _bind_accumulation,
    "v_accvgpr_write": _bind_accumulation,
    "v_accvgpr_write_b32": _bind_accumulation,
    "v_accvgpr_mov_b32": _bind_accumulation,
}

__all__ = ["OPS", "VectorOp", "bind", "evaluate", "flush_input", "of_arch"]
