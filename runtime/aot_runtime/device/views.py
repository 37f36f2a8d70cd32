"""Compute the layouts of views: by index, transposed and reshaped. Raise `ArgumentError` where there is none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from aot_runtime.contract.layout import Layout, Shape, packed_strides
from aot_runtime.errors import ArgumentError
from aot_runtime.texts import shown


def indexed(layout: Layout, keys: tuple[Any, ...]) -> tuple[Shape, Shape, int]:
    """Return the shape, strides and offset of a view by basic indexing."""
    named = sum(key is not None and key is not Ellipsis for key in keys)
    if sum(key is Ellipsis for key in keys) > 1 or named > len(layout.shape):
        raise ArgumentError(f"index {shown(keys)} does not fit an array of {len(layout.shape)} dims")
    if not any(key is Ellipsis for key in keys):
        keys = (*keys, Ellipsis)
    shape: list[int] = []
    strides: list[int] = []
    offset = dim = 0
    for key in keys:
        if key is None:
            shape.append(1)
            strides.append(0)
            continue
        count = len(layout.shape) - named if key is Ellipsis else 1
        for _ in range(count):
            extent, stride = layout.shape[dim], layout.strides[dim]
            if key is Ellipsis or isinstance(key, slice):
                start, _, step = (slice(None) if key is Ellipsis else key).indices(extent)
                length = len(range(extent)[slice(None) if key is Ellipsis else key])
                offset += start * stride if length else 0
                shape.append(length)
                strides.append(stride * step)
            elif isinstance(key, int | np.integer) and not isinstance(key, bool) and -extent <= key < extent:
                offset += (int(key) % extent) * stride
            else:
                raise ArgumentError(
                    f"index {shown(key)} is not an integer or slice inside dim {dim} of extent {extent}"
                )
            dim += 1
    return tuple(shape), tuple(strides), offset


def transposed(layout: Layout, axes: tuple[int, ...]) -> tuple[Shape, Shape]:
    """Return the shape and strides of a view with permuted dims; reversed if there are no axes."""
    rank = len(layout.shape)
    order = tuple(axis + rank if axis < 0 else axis for axis in axes or reversed(range(rank)))
    if sorted(order) != list(range(rank)):
        raise ArgumentError(f"transpose{shown(axes)} is not a permutation of {rank} dims")
    return tuple(layout.shape[axis] for axis in order), tuple(layout.strides[axis] for axis in order)


def reshaped(layout: Layout, shape: tuple[int, ...]) -> tuple[Shape, Shape]:
    """Return the shape and strides of a view of another shape, in which one extent may be -1."""
    wanted = [int(extent) for extent in shape]
    if wanted.count(-1) == 1:
        rest = math.prod(extent for extent in wanted if extent != -1)
        wanted[wanted.index(-1)] = layout.size // rest if rest else -1
    if math.prod(wanted) != layout.size or min(wanted, default=0) < 0:
        raise ArgumentError(f"an array of shape {layout.shape} has no view of shape {shown(shape)}: sizes differ")
    strides = _reshaped_strides(layout, tuple(wanted))
    if strides is None:
        raise ArgumentError(f"reshaping {layout} to {tuple(wanted)} would need a copy")
    return tuple(wanted), strides


def _reshaped_strides(layout: Layout, shape: Shape) -> Shape | None:
    """Return the strides of a view of `shape`, which has the same size, or None if a copy is needed (numpy's rule).

    A run is a sequence of equally spaced elements, possibly across several dims. Each dim of a view lies in one run.
    So, starting with the innermost dim, each consumes its extent from the current run.
    """
    if layout.size == 0:
        return packed_strides(shape)
    runs = _runs(layout)
    left, stride = runs.pop()
    strides: list[int] = []
    for extent in reversed(shape):
        if extent > 1 and left == 1:
            left, stride = runs.pop()
        if left % extent:
            return None
        strides.append(stride)
        left //= extent
        stride *= extent
    return tuple(reversed(strides))


def _runs(layout: Layout) -> list[tuple[int, int]]:
    """Return (elements, stride) of each run of a non-empty array, outermost first. Dims of extent 1 are skipped.

    A single element is a run of length 1.
    """
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(layout.shape, layout.strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * stride:
            extent *= runs.pop()[0]
        runs.append((extent, stride))
    return runs or [(1, 1)]
