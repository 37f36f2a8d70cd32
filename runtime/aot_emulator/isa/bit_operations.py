"""Bit fields, shifts and bit searches of integers, shared by the SALU and the VALU."""

from __future__ import annotations

import numpy as np

from aot_emulator.state.arrays import Array


def bit_field(value: Array, offset: Array, width: Array) -> Array:
    """Extract bits [offset, offset + width), sign-extended for signed dtypes. The width is clipped at the top bit."""
    bits = value.dtype.itemsize * 8
    unsigned = value.dtype.newbyteorder("=").str.replace("i", "u")
    width = np.minimum(width, bits - offset).astype(unsigned)
    left = (np.asarray(bits, unsigned) - width - offset.astype(unsigned)).astype(value.dtype)
    right = (np.asarray(bits, unsigned) - width).astype(value.dtype)
    return np.where(width == 0, value.dtype.type(0), (value << left) >> np.minimum(right, bits - 1).astype(value.dtype))


# Bits


def bit_length(value: Array) -> Array:
    """Return the position above the highest set bit, int64; 0 for 0. value: uint32 or uint64."""
    if value.dtype == np.uint64:
        high = bit_length((value >> np.uint64(32)).astype(np.uint32))
        return np.where(high > 0, high + 32, bit_length((value & np.uint64(0xFFFFFFFF)).astype(np.uint32)))
    return np.frexp(np.asarray(value, np.float64))[1].astype(np.int64)


def find_high(value: Array) -> Array:
    """Count leading zeros; -1 for 0."""
    length = bit_length(value)
    return np.where(length == 0, -1, value.dtype.itemsize * 8 - length)


def find_low(value: Array) -> Array:
    """Count trailing zeros; -1 for 0."""
    return bit_length(value & (~value + value.dtype.type(1))) - 1


def find_sign(value: Array) -> Array:
    """Count leading bits equal to the sign; -1 if all are. value: int32 or int64."""
    unsigned = np.asarray(value ^ (value >> (value.dtype.itemsize * 8 - 1)))
    return find_high(unsigned.view(unsigned.dtype.str.replace("i", "u")))


_REVERSED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)[:, ::-1], axis=1)[:, 0]


def reverse_bits(value: Array) -> Array:
    """Reverse the bits of unsigned integers of any width."""
    octets = np.ascontiguousarray(value)[..., None].view(np.uint8)
    return np.ascontiguousarray(_REVERSED[octets[..., ::-1]]).view(value.dtype)[..., 0]


def shift_left(value: Array, amount: Array) -> Array:
    bits = value.dtype.itemsize * 8
    return value << (amount & (bits - 1)).astype(value.dtype)


def shift_right(value: Array, amount: Array) -> Array:
    bits = value.dtype.itemsize * 8
    return value >> (amount & (bits - 1)).astype(value.dtype)
