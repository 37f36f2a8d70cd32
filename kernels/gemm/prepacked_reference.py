"""Products with prepacked weights in numpy: the weights are put back into the order of `linear_int4` and `linear_int8`.

This module reads the order that `aot_models.quantise` writes.
"""

from __future__ import annotations

import numpy as np

from kernels.gemm import reference

Array = np.ndarray
TILE = 64
"""Outputs of a tile, and its weights along k."""
STORED = {
    4: ((4, 8, 4, 2, 2, 2, 2, 2), "ntsrpkhlab->nshrtkabpl"),
    8: ((4, 2, 8, 4, 2, 2, 2, 2), "ntskrphabl->nshrtkabpl"),
}
"""Bits of a code → the extents of a tile's stored axes, and the transposition of all axes to [outputs, k].

Outputs: n tile, s slice, h half of a slice, r row. k: t tile, k half, a sixteen, b eight, p pair, l element of a pair.
"""


def linear_int4_prepacked(
    x: Array, w: Array, scales: Array, group_size: int, zeros: Array | None = None, codebook: Array | None = None,
    bias: Array | None = None,
) -> Array:  # fmt: skip
    """`linear_int4` of the w, scales and zeros that were prepacked."""
    w, scales, zeros = _four_bits(w, scales, zeros)
    return reference.linear_int4(x, w, scales, group_size, zeros, codebook, None, bias)


def linear_int4_prepacked_same_dtype(
    x: Array, w: Array, scales: Array, group_size: int, zeros: Array | None = None, codebook: Array | None = None,
    bias: Array | None = None,
) -> Array:  # fmt: skip
    """`linear_int4_prepacked` as hardware does it: weights of x's dtype, summed in fp32."""
    w, scales, zeros = _four_bits(w, scales, zeros)
    return reference.linear_int4_same_dtype(x, w, scales, group_size, zeros, codebook, None, bias)


def linear_int8_prepacked(
    x: Array, w: Array, scales: Array, group_size: int, zeros: Array | None = None, bias: Array | None = None
) -> Array:
    """`linear_int8` of the w, scales and zeros that were prepacked."""
    w, scales, zeros = _eight_bits(w, scales, zeros)
    return reference.linear_int8(x, w, scales, group_size, zeros, None, bias)


def linear_int8_prepacked_same_dtype(
    x: Array, w: Array, scales: Array, group_size: int, zeros: Array | None = None, bias: Array | None = None
) -> Array:
    """`linear_int8_prepacked` as hardware does it: weights of x's dtype, summed in fp32."""
    w, scales, zeros = _eight_bits(w, scales, zeros)
    return reference.linear_int8_same_dtype(x, w, scales, group_size, zeros, None, bias)


def _four_bits(w: Array, scales: Array, zeros: Array | None) -> tuple[Array, Array, Array | None]:
    """Return w, scales and zeros for `linear_int4`."""
    codes = _codes(w, 4)
    return codes[:, ::2] | codes[:, 1::2] << 4, _by_output(scales), None if zeros is None else _by_output(zeros)


def _eight_bits(w: Array, scales: Array, zeros: Array | None) -> tuple[Array, Array, Array | None]:
    """Return w, scales and zeros for `linear_int8`."""
    signed = None if zeros is None else (_by_output(zeros) ^ 0x80).view(np.int8)
    return (_codes(w, 8) ^ 0x80).view(np.int8), _by_output(scales), signed


def _codes(w: Array, bits: int) -> Array:
    """Unpack int32 [n / 64, k * bits / 16, 32] to uint8 [n, k]."""
    tiles, k = w.shape[0], 16 * w.shape[1] // bits
    codes = w.view(np.uint32).reshape(-1, 1) >> np.arange(0, 32, bits, dtype=np.uint32) & (1 << bits) - 1
    extents, transposition = STORED[bits]
    stored = codes.astype(np.uint8).reshape(tiles, k // TILE, *extents)
    return np.einsum(transposition, stored).reshape(TILE * tiles, k)


def _by_output(by_lane: Array) -> Array:
    """Rearrange [groups, n / 64, 64] to [groups, n]."""
    groups, tiles = by_lane.shape[:2]
    return by_lane.reshape(groups, tiles, 8, 8).swapaxes(2, 3).reshape(groups, TILE * tiles)
