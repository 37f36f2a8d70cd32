"""Prepare quantised keys and values for the attention ops, in numpy.

The 4-bit cache of ROCm's perf-kernels has rows of int32: first a pair (factor, shift) of fp16 for each group, then
eight numbers a word. Without the prefix these are the rows of our ops.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray


def split_rows(rows: Array, groups: int) -> tuple[Array, Array]:
    """Split rows of perf-kernels into views: packed uint8 [.., head_dim / 2], pairs fp16 [.., groups, 2].

    rows: int32 [.., groups + head_dim / 8].

    Raises:
        ValueError: the rows have another dtype, are too short, or not contiguous.
    """
    if rows.dtype != np.int32 or rows.shape[-1] <= groups or rows.strides[-1] != 4:
        raise ValueError(
            f"rows are {rows.dtype} {list(rows.shape)}; int32 [.., groups + head_dim / 8], contiguous, is needed"
        )
    pairs = rows[..., :groups].view(np.float16).reshape(*rows.shape[:-1], groups, 2)
    return rows[..., groups:].view(np.uint8), pairs


def quantise_heads(x: Array, dtype: Any) -> tuple[Array, Array]:
    """Quantise each head to 8 bits, so that its largest magnitude is the largest number of the dtype.

    Args:
        x: [batch, heads, rows, columns], any float dtype.
        dtype: int8 or a float8 dtype; numbers are rounded half to even.

    Returns:
        (numbers, factors): numbers has x's shape; factors is float32 [batch, heads]. x is about numbers * factors.
    """
    dtype = np.dtype(dtype)
    largest = 127.0 if dtype == np.int8 else float(ml_dtypes.finfo(dtype).max)
    exact = x.astype(np.float64)
    factors = np.maximum(np.abs(exact).max((2, 3), initial=0.0) / largest, 1e-30).astype(np.float32)
    numbers = exact / factors[:, :, None, None].astype(np.float64)
    numbers = (np.rint(numbers) if dtype == np.int8 else numbers).clip(-largest, largest)
    return numbers.astype(dtype), factors
