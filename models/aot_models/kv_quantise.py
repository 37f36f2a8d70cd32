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
