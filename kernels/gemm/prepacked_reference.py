"""Products with prepacked weights in numpy: those with the weights that they were made of."""

from __future__ import annotations

import numpy as np

from aot_runtime.weights import PREPACKED_ORDER, TILE, pack_int4
from kernels.gemm.reference import linear_int4, linear_int4_same_dtype

Array = np.ndarray


def linear_int4_prepacked(
    x: Array, w: Array, scales: Array, group_size: int, zeros: Array | None = None, codebook: Array | None = None,
    bias: Array | None = None,
) -> Array:  # fmt: skip
    """`linear_int4` with what `aot_runtime.weights.prepack` makes of w, scales and zeros."""
    scales, zeros = _by_output(scales), None if zeros is None else _by_output(zeros)
    return linear_int4(x, _not_prepacked(w), scales, group_size, zeros, codebook, None, bias)


def linear_int4_prepacked_same_dtype(
    x: Array, w: Array, scales: Array, group_size: int, zeros: Array | None = None, codebook: Array | None = None,
    bias: Array | None = None,
) -> Array:  # fmt: skip
    """`linear_int4_prepacked` as hardware does it: weights of x's dtype, summed in fp32."""
    scales, zeros = _by_output(scales), None if zeros is None else _by_output(zeros)
    return linear_int4_same_dtype(x, _not_prepacked(w), scales, group_size, zeros, codebook, None, bias)


def _not_prepacked(w: Array) -> Array:
    """uint8 [n, k / 2] of int32 [n / 64, k / 4, 32]."""
    tiles, k = w.shape[0], 4 * w.shape[1]
    codes = w.view(np.uint32).reshape(-1, 1) >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    codes = codes.astype(np.uint8).reshape(tiles, k // TILE, 4, 8, 4, 2, 2, 2, 2, 2)
    return pack_int4(codes.transpose(np.argsort(PREPACKED_ORDER)).reshape(TILE * tiles, k))


def _by_output(by_lane: Array) -> Array:
    """[groups, n] of [groups, n / 64, 64]."""
    groups, tiles = by_lane.shape[:2]
    return by_lane.reshape(groups, tiles, 8, 8).swapaxes(2, 3).reshape(groups, TILE * tiles)
