"""Caches of 4 bits a number in numpy: rows as perf-kernels' flash decoding has them, to and from ours.

Its rows are int32: first a pair of fp16 numbers, (scale, shift), for each group, the scale in the low half; then eight
nibbles a word, the even ones low. The same bytes, without the prefix, are our rows.
"""

from __future__ import annotations

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
