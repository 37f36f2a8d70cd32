"""Products of groups of rows in numpy. Shapes are those of manifests/gemm.yaml."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from kernels.gemm import reference

Array = np.ndarray


def grouped_matmul(
    a: Array, b: Array, offsets: Array, e: Array, counts: Array | None = None, indices: Array | None = None,
    bias: Array | None = None,
) -> Array:  # fmt: skip
    """a b + bias of each group in float64; e where a row belongs to none."""
    return _by_group(e, offsets, counts, lambda group, rows: reference.matmul(
        a[rows], b[_index(indices, group)], _of(bias, group)))  # fmt: skip


def grouped_matmul_same_dtype(
    a: Array, b: Array, offsets: Array, e: Array, counts: Array | None = None, indices: Array | None = None,
    bias: Array | None = None,
) -> Array:  # fmt: skip
    """`grouped_matmul` as hardware does it: summed in fp32, then rounded to e's dtype."""

    def product(group: int, rows: slice) -> Array:
        right = b[_index(indices, group)].astype(np.float32)
        return reference.matmul_same_dtype(a[rows].astype(np.float32), right, _of(bias, group))

    return _by_group(e, offsets, counts, product).astype(e.dtype)


def grouped_scaled_matmul(
    a: Array, b: Array, scale_a: Array, scale_b: Array, offsets: Array, e: Array, counts: Array | None = None,
    indices: Array | None = None, bias: Array | None = None,
) -> Array:  # fmt: skip
    """scale_a * a b * scale_b + bias of each group in float64."""
    return _by_group(e, offsets, counts, lambda group, rows: reference.scaled_matmul(
        a[rows], b[_index(indices, group)], _rows_of(scale_a, rows), _of(scale_b, group),
        bias=_of(bias, group)))  # fmt: skip


def grouped_scaled_matmul_same_dtype(
    a: Array, b: Array, scale_a: Array, scale_b: Array, offsets: Array, e: Array, counts: Array | None = None,
    indices: Array | None = None, bias: Array | None = None,
) -> Array:  # fmt: skip
    """`grouped_scaled_matmul` as hardware does it: see `scaled_matmul_same_dtype`."""
    return _by_group(e, offsets, counts, lambda group, rows: reference.scaled_matmul_same_dtype(
        a[rows], b[_index(indices, group)], _rows_of(scale_a, rows), _of(scale_b, group), e,
        bias=_of(bias, group))).astype(e.dtype)  # fmt: skip


def grouped_block_scaled_matmul(
    a: Array, b: Array, scale_a: Array, scale_b: Array, offsets: Array, e: Array, counts: Array | None = None,
    indices: Array | None = None,
) -> Array:  # fmt: skip
    """(scale_a a) (scale_b b) of each group in float64."""
    return _by_group(e, offsets, counts, lambda group, rows: reference.block_scaled_matmul(
        a[rows], b[_index(indices, group)], scale_a[rows], scale_b[_index(indices, group)]))  # fmt: skip


def grouped_block_scaled_matmul_same_dtype(
    a: Array, b: Array, scale_a: Array, scale_b: Array, offsets: Array, e: Array, counts: Array | None = None,
    indices: Array | None = None,
) -> Array:  # fmt: skip
    """`grouped_block_scaled_matmul` as hardware does it: see `block_scaled_matmul_same_dtype`."""

    def product(group: int, rows: slice) -> Array:
        right, scale = b[_index(indices, group)], scale_b[_index(indices, group)]
        return reference.block_scaled_matmul_same_dtype(a[rows], right, scale_a[rows], scale, e)

    return _by_group(e, offsets, counts, product).astype(e.dtype)


def _by_group(e: Array, offsets: Array, counts: Array | None, product: Callable[[int, slice], Array]) -> Array:
    """Return e, in float64, with the rows of each group replaced by their product."""
    out = e.astype(np.float64)
    for group, (begin, end) in enumerate(pairwise(offsets)):
        rows = slice(begin, end if counts is None else min(begin + _of(counts, group), end))
        if rows.start < rows.stop:
            out[rows] = product(group, rows)
    return out


def _index(indices: Array | None, group: int) -> int:
    return group if indices is None else int(_of(indices, group))


def _of(x: Array | None, group: int) -> Array | None:
    """Return the part of x that belongs to a group; one part may stand for all."""
    return None if x is None else x[group if len(x) > 1 else 0]


def _rows_of(scale: Array, rows: slice) -> Array:
    return scale[rows] if len(scale) > 1 else scale
