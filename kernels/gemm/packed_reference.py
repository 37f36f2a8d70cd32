"""Products of 8-bit activations and 4-bit weights, and of 16-bit activations and float8 weights, in numpy."""

from __future__ import annotations

import numpy as np

from kernels.gemm.reference import int4_weights, integer_product, nibbles, sum_in_order

Array = np.ndarray
SYMMETRIC = 8
"""The code that means 0 if no zeros are given."""


def linear_int4_a8(
    x: Array, w: Array, scales: Array, row_scales: Array, group_size: int, e: Array | None = None,
    zeros: Array | None = None, order: Array | None = None, bias: Array | None = None,
) -> Array:  # fmt: skip
    """row_scales * x w' + bias in float64, with w = (codes - zeros) * scales.

    x: [m, k]; w: uint8 [n, cdiv(k, 2)], two codes in a byte; scales: [groups, n]; row_scales: [m|1]; zeros: uint8
    [groups, n], by default 8; order: int [k], which column of x each weight belongs to; bias: [n].
    """
    x = x if order is None else x[:, order]
    weight = int4_weights(np.dtype(np.float64), w, scales, group_size, x.shape[1], zeros, None)
    return _finish(x.astype(np.float64) @ weight.T, row_scales, bias)


def linear_int4_a8_same_dtype(
    x: Array, w: Array, scales: Array, row_scales: Array, group_size: int, e: Array, zeros: Array | None = None,
    order: Array | None = None, bias: Array | None = None,
) -> Array:  # fmt: skip
    """`linear_int4_a8` as hardware does it: sums of a group are exact for int8 and in fp32 for float8; others are in
    fp32.
    """
    x = x if order is None else x[:, order]
    codes = nibbles(w, x.shape[1]).astype(np.int8).T
    acc = np.zeros((len(x), len(w)), np.float32)
    for group, scale in enumerate(scales):
        part = slice(group * group_size, group * group_size + group_size)
        less = codes[part] - (np.int8(SYMMETRIC) if zeros is None else zeros[group].astype(np.int8))
        if x.dtype == np.int8:
            of_group = integer_product(x[:, part], less).astype(np.float32)
        else:
            of_group = sum_in_order(x[:, part].astype(np.float32), less.astype(np.float32))
        acc += of_group * scale.astype(np.float32)
    return _finish(acc, row_scales, bias).astype(e.dtype)


def _finish(value: Array, row_scales: Array, bias: Array | None) -> Array:
    value = value * row_scales.astype(value.dtype)[:, None]
    return value if bias is None else value + bias.astype(value.dtype)


def linear_fp8(x: Array, w: Array, scales: Array, rows_per_scale: int, block: int, bias: Array | None = None) -> Array:
    """x (scales w)' + bias in float64.

    x: [.., m, k]; w: [.., n, k]; scales: [.., cdiv(n, rows_per_scale), cdiv(k, block)]; bias: [.., n].
    """
    return _linear_fp8(np.dtype(np.float64), x, w, scales, rows_per_scale, block, bias)


def linear_fp8_same_dtype(
    x: Array, w: Array, scales: Array, rows_per_scale: int, block: int, bias: Array | None = None
) -> Array:
    """`linear_fp8` as hardware does it: blocks one after the other, each summed, scaled and added in fp32."""
    return _linear_fp8(np.dtype(np.float32), x, w, scales, rows_per_scale, block, bias).astype(x.dtype)


def _linear_fp8(
    dtype: np.dtype, x: Array, w: Array, scales: Array, rows_per_scale: int, block: int, bias: Array | None
) -> Array:
    right = np.swapaxes(w, -1, -2).astype(dtype)
    value = np.zeros((*x.shape[:-1], w.shape[-2]), dtype)
    for part in range(scales.shape[-1]):
        of_k = slice(part * block, part * block + block)
        scale = np.repeat(scales[..., part], rows_per_scale, -1)[..., None, : w.shape[-2]].astype(dtype)
        value += (x[..., of_k].astype(dtype) @ right[..., of_k, :]) * scale
    return value if bias is None else value + bias[..., None, :].astype(dtype)
