"""Copying, reading and writing memory in numpy."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def copy(x: Array) -> Array:
    return x.copy()


copy_same_dtype = copy


def read(x: Array, programs: int, block: int = 4096) -> Array:
    """Return int32 [programs]: the sum modulo 2**32 of the blocks p, p + programs, … of x for each program p."""
    whole = np.zeros(-(-len(x) // (block * programs)) * block * programs, np.int64)
    whole[: len(x)] = x
    sums = whole.reshape(-1, programs, block).sum((0, 2))
    return (sums & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


read_same_dtype = read


def write(out: Array, value: int) -> Array:
    return np.full_like(out, value)


write_same_dtype = write
