"""Tensors, and functions with what they capture, as kernel parameters: docs/manifest.md says how they are bound.

Strides are in elements. The address of a tensor that is absent is None, and its strides are 0.
"""

from typing import NamedTuple

import triton.language as tl


class Matrix(NamedTuple):
    """A tensor of [rows, columns]."""

    ptr: tl.tensor
    stride_rows: tl.tensor
    stride_columns: tl.tensor


class Heads(NamedTuple):
    """A tensor of [batch, heads, rows, columns]."""

    ptr: tl.tensor
    stride_batch: tl.tensor
    stride_heads: tl.tensor
    stride_rows: tl.tensor
    stride_columns: tl.tensor


class HeadRows(NamedTuple):
    """A number for each row of each head: [batch, heads, rows]."""

    ptr: tl.tensor
    stride_batch: tl.tensor
    stride_heads: tl.tensor
    stride_rows: tl.tensor


class HeadScalars(NamedTuple):
    """A number for each head: [batch, heads]."""

    ptr: tl.tensor
    stride_batch: tl.tensor
    stride_heads: tl.tensor


class Closure(NamedTuple):
    """A function that is inlined where it is called, as `closure.function(..., *closure.operands)`; or None."""

    function: tl.constexpr
    operands: tl.tuple
