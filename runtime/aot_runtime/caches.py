"""Quantised keys and values in numpy: caches of 4 bits a number, and heads of 8 bits.

**Layout of 4 bits.** Numbers 2i and 2i + 1 of a row are the low and the high half of byte i. A row has 1, 2, 4 or 8
groups of neighbours, each with a pair of fp16 numbers (factor, shift): a number is factor * nibble + shift.

**Rows of perf-kernels.** The flash decoding of ROCm's perf-kernels has rows of int32: first the pair of each group, the
factor in the low half; then eight nibbles a word, the even ones low. The same bytes, without the prefix, are our rows.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray


def split_rows(rows: Array, groups: int) -> tuple[Array, Array]:
    """Views of int32 rows [.., groups + head_dim / 8]: packed uint8 [.., head_dim / 2], pairs fp16 [.., groups, 2].

    Raises ValueError for another dtype, and for rows that are not contiguous or too short.
    """
    if rows.dtype != np.int32 or rows.shape[-1] <= groups or rows.strides[-1] != 4:
        raise ValueError(
            f"rows are {rows.dtype} {list(rows.shape)}; int32 [.., groups + head_dim / 8], contiguous, is needed"
        )
    pairs = rows[..., :groups].view(np.float16).reshape(*rows.shape[:-1], groups, 2)
    return rows[..., groups:].view(np.uint8), pairs


def join_rows(packed: Array, pairs: Array) -> Array:
    """The inverse of `split_rows`; a copy."""
    prefix = np.ascontiguousarray(pairs).view(np.int32).reshape(*packed.shape[:-1], pairs.shape[-2])
    return np.concatenate([prefix, np.ascontiguousarray(packed).view(np.int32)], -1)


def quantise_int4(x: Array, groups: int) -> tuple[Array, Array]:
    """Rows as `append_kv_int4` writes them, bit for bit: (packed uint8 [.., head_dim / 2], pairs fp16 [.., groups, 2]).

    Args:
        x: float32 [.., head_dim]. Each group is rounded to 16 steps from its least to its largest number; the pair is
            rounded to fp16 first, so that what is read is as near as 4 bits can be.

    Raises ValueError where groups do not divide head_dim, or head_dim is odd.
    """
    head_dim = x.shape[-1]
    if groups < 1 or head_dim % groups or head_dim % 2:
        raise ValueError(f"groups = {groups} of head_dim = {head_dim}; a divisor is needed, and an even head_dim")
    grouped = x.astype(np.float32).reshape(*x.shape[:-1], groups, -1)
    shift = grouped.min(-1).astype(np.float16)
    factor = ((grouped.max(-1) - shift.astype(np.float32)) / np.float32(15)).astype(np.float16)
    divisor = np.where(factor == 0, np.float16(1), factor).astype(np.float32)
    steps = (grouped - shift.astype(np.float32)[..., None]) / divisor[..., None]
    nibbles = np.clip(np.floor(steps + np.float32(0.5)), 0, 15).astype(np.uint8).reshape(*x.shape[:-1], -1, 2)
    return nibbles[..., 0] | nibbles[..., 1] << 4, np.stack([factor, shift], -1)


def dequantise_int4(packed: Array, pairs: Array) -> Array:
    """What rows stand for, float32 [.., head_dim]. packed: uint8 [.., head_dim / 2]; pairs: fp16 [.., groups, 2]."""
    head_dim, groups = 2 * packed.shape[-1], pairs.shape[-2]  # a batch of 0 leaves nothing to infer them from
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], groups, head_dim // groups)
    pairs = pairs.astype(np.float32)
    return (nibbles * pairs[..., :1] + pairs[..., 1:]).reshape(*packed.shape[:-1], head_dim)


def quantise_heads(x: Array, dtype: Any) -> tuple[Array, Array]:
    """Each head as 8-bit numbers, its largest being the largest of their dtype: (numbers of x's shape, factors).

    Args:
        x: [batch, heads, rows, columns], any float dtype; numbers * factors is what stands for it.
        dtype: int8 or a float8 dtype; rounded half to even.

    Factors are float32 [batch, heads], as the 8-bit attention ops take them.
    """
    dtype = np.dtype(dtype)
    largest = 127.0 if dtype == np.int8 else float(ml_dtypes.finfo(dtype).max)
    exact = x.astype(np.float64)
    factors = np.maximum(np.abs(exact).max((2, 3), initial=0.0) / largest, 1e-30).astype(np.float32)
    numbers = exact / factors[:, :, None, None].astype(np.float64)
    numbers = (np.rint(numbers) if dtype == np.int8 else numbers).clip(-largest, largest)
    return numbers.astype(dtype), factors
