"""Quantised keys and values in numpy: 4-bit caches and 8-bit heads.

**4-bit layout.** Elements 2i and 2i + 1 of a row are the low and high nibble of byte i. A row has 1, 2, 4 or 8 groups
of adjacent elements, each with an fp16 pair (factor, shift). An element is factor * nibble + shift.

**perf-kernels rows.** Flash decoding in ROCm's perf-kernels has int32 rows. Each starts with the groups' pairs, factor
in the low half, followed by eight nibbles per word, even ones low. Without that prefix, the bytes are our rows.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray


def split_rows(rows: Array, groups: int) -> tuple[Array, Array]:
    """Split int32 rows [.., groups + head_dim / 8] of perf-kernels into views.

    Returns (packed uint8 [.., head_dim / 2], pairs fp16 [.., groups, 2]). Raises ValueError for other dtypes, and for
    rows that are not contiguous or too short.
    """
    if rows.dtype != np.int32 or rows.shape[-1] <= groups or rows.strides[-1] != 4:
        raise ValueError(
            f"rows are {rows.dtype} {list(rows.shape)}; int32 [.., groups + head_dim / 8], contiguous, is needed"
        )
    pairs = rows[..., :groups].view(np.float16).reshape(*rows.shape[:-1], groups, 2)
    return rows[..., groups:].view(np.uint8), pairs


def join_rows(packed: Array, pairs: Array) -> Array:
    """Join rows into a copy, the inverse of `split_rows`."""
    prefix = np.ascontiguousarray(pairs).view(np.int32).reshape(*packed.shape[:-1], pairs.shape[-2])
    return np.concatenate([prefix, np.ascontiguousarray(packed).view(np.int32)], -1)


def quantise_int4(x: Array, groups: int) -> tuple[Array, Array]:
    """Quantise rows to 4 bits, bit-exact with the op `append_kv_int4`.

    Args:
        x: float32 [.., head_dim]. Each group is rounded to 16 steps from its minimum to its maximum. The pair is
            rounded to fp16 first, to minimise the error after dequantisation.

    Returns:
        (packed uint8 [.., head_dim / 2], pairs fp16 [.., groups, 2]).

    Raises:
        ValueError: groups do not divide head_dim, or head_dim is odd.
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
    """Dequantise rows to float32 [.., head_dim]. packed: uint8 [.., head_dim / 2]; pairs: fp16 [.., groups, 2]."""
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], pairs.shape[-2], -1)
    pairs = pairs.astype(np.float32)
    return (nibbles * pairs[..., :1] + pairs[..., 1:]).reshape(*packed.shape[:-1], -1)


def quantise_heads(x: Array, dtype: Any) -> tuple[Array, Array]:
    """Quantise each head to 8 bits, scaled to the full range of the dtype.

    Args:
        x: [batch, heads, rows, columns], any float dtype.
        dtype: int8 or a float8 dtype. Rounds half to even.

    Returns:
        (numbers of x's shape, factors float32 [batch, heads]), where numbers * factors approximates x.
    """
    dtype = np.dtype(dtype)
    largest = 127.0 if dtype == np.int8 else float(ml_dtypes.finfo(dtype).max)
    exact = x.astype(np.float64)
    factors = np.maximum(np.abs(exact).max((2, 3), initial=0.0) / largest, 1e-30).astype(np.float32)
    numbers = exact / factors[:, :, None, None].astype(np.float64)
    numbers = (np.rint(numbers) if dtype == np.int8 else numbers).clip(-largest, largest)
    return numbers.astype(dtype), factors
