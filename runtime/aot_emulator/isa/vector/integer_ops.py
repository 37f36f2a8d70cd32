"""Integer VALU instructions, by mnemonic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aot_emulator.isa.bit_operations import (
    bit_field,
    find_high,
    find_low,
    find_sign,
    reverse_bits,
    shift_left,
    shift_right,
)
from aot_emulator.isa.floats import conversions
from aot_emulator.state.arrays import Array

from .vector_op import VectorOp, vector_op

# Integers


def _signed24(value: Array) -> Array:
    return value << 8 >> 8


def _unsigned24(value: Array) -> Array:
    return value & 0xFFFFFF


def widened(function: Callable[..., Array]) -> Callable[..., Array]:
    """Wrap a function to widen its operands to 64 bits first."""

    def widened(*values: Array) -> Array:
        return function(*(value.astype(np.int64 if value.dtype.kind == "i" else np.uint64) for value in values))

    return widened


def _saturate(function: Callable[..., Array], kind: str) -> Callable[..., Array]:
    limits = np.iinfo(np.dtype(f"{kind[0]}{int(kind[1:]) // 8}"))
    return lambda *values: np.clip(function(*(value.astype(np.int64) for value in values)), limits.min, limits.max)


def saturating_op(kinds: str, function: Callable[..., Array], **fields: Any) -> VectorOp:
    return vector_op(kinds, function, saturating=_saturate(function, kinds.split()[0]), **fields)


def reversed_operands(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(b, a)


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
    """Compute v_perm_b32: each result byte is a byte of {high, low}, the sign of one of its words, 0 or 0xFF."""
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
    """Compute `_permute_bytes` for a uniform selector whose bytes are below 8."""
    masks: dict[tuple[bool, int], int] = {}
    for place, number in enumerate(chosen):
        moved = (number >= 4, 8 * (place - (number & 3)))  # group bytes by shift distance
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
    return lambda a, b: conversions.pack16(*(_clamped(low, high, value).astype(np.uint16) for value in (a, b)))


def shift_to_bytes(low: int, high: int) -> Callable[[Array, Array, Array], Array]:
    """Shift two integers right, clamp them, and pack them into 16 bits."""

    def shift(a: Array, b: Array, amount: Array) -> Array:
        first, second = (np.clip(shift_right(value, amount), low, high).astype(np.uint16) for value in (a, b))
        return first & np.uint16(0xFF) | second << np.uint16(8)

    return shift


def next_random(value: Array) -> Array:
    """Compute v_prng_b32: the next state of a linear feedback shift register."""
    return value << np.uint32(1) ^ (value >> np.uint32(31)) * np.uint32(197)


def _saturate_bytes(value: Array) -> Array:
    low, high = value.astype(np.uint16).view(np.int16), (value >> np.uint32(16)).astype(np.uint16).view(np.int16)
    return np.clip(low, 0, 255).astype(np.uint16) | np.clip(high, 0, 255).astype(np.uint16) << np.uint16(8)


INTEGER_WIDTHS = {
    name: op
    for kind in ("i16", "u16", "i32", "u32")
    for name, op in {
        f"v_min_{kind}": vector_op(f"{kind} {kind} {kind}", np.minimum),
        f"v_max_{kind}": vector_op(f"{kind} {kind} {kind}", np.maximum),
        f"v_min3_{kind}": vector_op(
            f"{kind} {kind} {kind} {kind}", lambda a, b, c: np.minimum(np.minimum(a, b), c), keeps_high=True
        ),
        f"v_max3_{kind}": vector_op(
            f"{kind} {kind} {kind} {kind}", lambda a, b, c: np.maximum(np.maximum(a, b), c), keeps_high=True
        ),
        f"v_med3_{kind}": vector_op(f"{kind} {kind} {kind} {kind}", _median, keeps_high=True),
        f"v_add_{kind}": saturating_op(f"{kind} {kind} {kind}", np.add, keeps_high=kind == "i16"),
        f"v_sub_{kind}": saturating_op(f"{kind} {kind} {kind}", np.subtract, keeps_high=kind == "i16"),
        f"v_subrev_{kind}": saturating_op(f"{kind} {kind} {kind}", reversed_operands(np.subtract)),
    }.items()
}

_24 = {"i24": ("i32", _signed24), "u24": ("u32", _unsigned24)}

INTEGERS = {
    **{
        f"v_mul_{kind}_{short}": vector_op(f"{kind} {kind} {kind}", lambda a, b, cut=cut: cut(a) * cut(b))
        for short, (kind, cut) in _24.items()
    },
    **{
        f"v_mul_hi_{kind}_{short}": vector_op(
            f"{kind} {kind} {kind}", lambda a, b, cut=cut: widened(np.multiply)(cut(a), cut(b)) >> 32
        )
        for short, (kind, cut) in _24.items()
    },
    **{
        f"v_mad_{kind}_{short}": vector_op(f"{kind} {kind} {kind} {kind}", lambda a, b, c, cut=cut: cut(a) * cut(b) + c)
        for short, (kind, cut) in _24.items()
    },
    **{
        f"v_mad_{kind}": saturating_op(f"{kind} {kind} {kind} {kind}", lambda a, b, c: a * b + c, keeps_high=True)
        for kind in ("u16", "i16")
    },
    "v_mad_u32_u16": vector_op("u32 u16 u16 u32", lambda a, b, c: a.astype(np.uint32) * b.astype(np.uint32) + c),
    "v_mad_i32_i16": vector_op("i32 i16 i16 i32", lambda a, b, c: a.astype(np.int32) * b.astype(np.int32) + c),
    "v_mul_lo_u16": vector_op("u16 u16 u16", np.multiply),
    "v_mul_lo_u32": vector_op("u32 u32 u32", np.multiply),
    "v_mul_hi_u32": vector_op("u32 u32 u32", lambda a, b: widened(np.multiply)(a, b) >> np.uint64(32)),
    "v_mul_hi_i32": vector_op("i32 i32 i32", lambda a, b: widened(np.multiply)(a, b) >> np.int64(32)),
    "v_lshlrev_b16": vector_op("u16 u16 u16", reversed_operands(shift_left)),
    "v_lshrrev_b16": vector_op("u16 u16 u16", reversed_operands(shift_right)),
    "v_ashrrev_i16": vector_op("i16 u16 i16", reversed_operands(shift_right)),
    "v_lshlrev_b32": vector_op("u32 u32 u32", reversed_operands(shift_left)),
    "v_lshrrev_b32": vector_op("u32 u32 u32", reversed_operands(shift_right)),
    "v_ashrrev_i32": vector_op("i32 u32 i32", reversed_operands(shift_right)),
    "v_lshlrev_b64": vector_op("u64 u32 u64", reversed_operands(shift_left)),
    "v_lshrrev_b64": vector_op("u64 u32 u64", reversed_operands(shift_right)),
    "v_ashrrev_i64": vector_op("i64 u32 i64", reversed_operands(shift_right)),
    "v_and_b32": vector_op("u32 u32 u32", np.bitwise_and),
    "v_or_b32": vector_op("u32 u32 u32", np.bitwise_or),
    "v_xor_b32": vector_op("u32 u32 u32", np.bitwise_xor),
    "v_xnor_b32": vector_op("u32 u32 u32", lambda a, b: ~(a ^ b)),
    "v_not_b32": vector_op("u32 u32", np.invert),
    "v_bfrev_b32": vector_op("u32 u32", reverse_bits),
    "v_ffbh_u32": vector_op("i32 u32", find_high),
    "v_ffbl_b32": vector_op("i32 u32", find_low),
    "v_ffbh_i32": vector_op("i32 i32", find_sign),
    "v_bfe_u32": vector_op("u32 u32 u32 u32", _vector_bit_field),
    "v_bfe_i32": vector_op("i32 i32 u32 u32", _vector_bit_field),
    "v_bfi_b32": vector_op("u32 u32 u32 u32", lambda a, b, c: (a & b) | (~a & c)),
    "v_bfm_b32": vector_op("u32 u32 u32", _field_mask),
    "v_bcnt_u32_b32": vector_op("u32 u32 u32", lambda a, b: np.bitwise_count(a) + b),
    "v_alignbit_b32": vector_op("u32 u32 u32 u32", _align(lambda amount: amount & 31)),
    "v_alignbyte_b32": vector_op("u32 u32 u32 u32", _align(lambda amount: (amount & 3) * np.uint32(8))),
    "v_perm_b32": vector_op("u32 u32 u32 u32", _permute_bytes),
    "v_lerp_u8": vector_op("u32 u32 u32 u32", _average_bytes),
    "v_sad_u8": vector_op("u32 u32 u32 u32", _sum_of_differences(8, 0)),
    "v_sad_hi_u8": vector_op("u32 u32 u32 u32", _sum_of_differences(8, 16)),
    "v_sad_u16": vector_op("u32 u32 u32 u32", _sum_of_differences(16, 0)),
    "v_sad_u32": vector_op("u32 u32 u32 u32", _sum_of_differences(32, 0)),
    "v_msad_u8": vector_op("u32 u32 u32 u32", _masked_sum_of_differences),
    "v_xad_u32": vector_op("u32 u32 u32 u32", lambda a, b, c: (a ^ b) + c),
    "v_lshl_add_u32": vector_op("u32 u32 u32 u32", lambda a, b, c: (a << (b & 31)) + c),
    "v_add_lshl_u32": vector_op("u32 u32 u32 u32", lambda a, b, c: (a + b) << (c & 31)),
    "v_add3_u32": vector_op("u32 u32 u32 u32", lambda a, b, c: a + b + c),
    "v_lshl_or_b32": vector_op("u32 u32 u32 u32", lambda a, b, c: (a << (b & 31)) | c),
    "v_and_or_b32": vector_op("u32 u32 u32 u32", lambda a, b, c: (a & b) | c),
    "v_or3_b32": vector_op("u32 u32 u32 u32", lambda a, b, c: a | b | c),
    "v_lshl_add_u64": vector_op("u64 u64 u32 u64", lambda a, b, c: (a << (b & 7).astype(np.uint64)) + c),
    "v_mov_b32": vector_op("u32 u32", lambda a: a),
    "v_mov_b64": vector_op("u64 u64", lambda a: a),
    "v_pack_b32_f16": vector_op("u32 u16 u16", lambda a, b: conversions.pack16(a, b)),
    "v_sat_pk_u8_i16": vector_op("u16 u32", _saturate_bytes),
    "v_cvt_pk_u16_u32": vector_op("u32 u32 u32", _pack_clamped(0, 0xFFFF)),
    "v_cvt_pk_i16_i32": vector_op("u32 i32 i32", _pack_clamped(-0x8000, 0x7FFF)),
}
