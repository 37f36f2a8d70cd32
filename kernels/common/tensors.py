"""Kernel parameters: tensors, functions with captured operands, and extents of attention. docs/manifest.md describes
their binding.

Strides are in elements. An absent tensor has the address None and strides 0; an absent nullable tensor has a null
pointer.
"""

from typing import NamedTuple

import triton
import triton.language as tl


@triton.jit
def given(pointer):
    """Test at run time whether a nullable tensor is given."""
    return pointer.to(tl.int64) != 0


class Vector(NamedTuple):
    """A tensor of [rows]."""

    ptr: tl.tensor
    stride_rows: tl.tensor


class Matrix(NamedTuple):
    """A tensor of [rows, columns]."""

    ptr: tl.tensor
    stride_rows: tl.tensor
    stride_columns: tl.tensor


class Matrices(NamedTuple):
    """A tensor of [batch, rows, columns]."""

    ptr: tl.tensor
    stride_batch: tl.tensor
    stride_rows: tl.tensor
    stride_columns: tl.tensor


@triton.jit
def matrix_of(x, batch):
    """Return the Matrix of `Matrices` at an index of the batch."""
    return Matrix(x.ptr + batch.to(tl.int64) * x.stride_batch, x.stride_rows, x.stride_columns)


@triton.jit
def transposed(x):
    """Transpose a `Matrix`."""
    return Matrix(x.ptr, x.stride_columns, x.stride_rows)


class Heads(NamedTuple):
    """A tensor of [batch, heads, rows, columns]."""

    ptr: tl.tensor
    stride_batch: tl.tensor
    stride_heads: tl.tensor
    stride_rows: tl.tensor
    stride_columns: tl.tensor


class HeadRows(NamedTuple):
    """A value for each row of each head: [batch, heads, rows]."""

    ptr: tl.tensor
    stride_batch: tl.tensor
    stride_heads: tl.tensor
    stride_rows: tl.tensor


class HeadScalars(NamedTuple):
    """A value for each head: [batch, heads]."""

    ptr: tl.tensor
    stride_batch: tl.tensor
    stride_heads: tl.tensor


class Closure(NamedTuple):
    """A function that is inlined where it is called, as `closure.function(..., *closure.operands)`; or None."""

    function: tl.constexpr
    operands: tl.tuple


# Extents and windows of attention.


class Extents(NamedTuple):
    """Extents of q and k; head_dim_v: columns of v and out; None: head_dim.

    With cu_seqlens, seqlen_q and seqlen_k are the rows of all sequences together, and max_seqlen_k limits the keys of a
    sequence; None: no limit.
    """

    heads: tl.tensor
    heads_kv: tl.tensor
    seqlen_q: tl.tensor
    seqlen_k: tl.tensor
    head_dim: tl.tensor
    head_dim_v: tl.tensor = None
    max_seqlen_k: tl.tensor = None


class LatentExtents(NamedTuple):
    """Extents of the tensors of `mla.mla_prefill`."""

    heads: tl.tensor
    seqlen_q: tl.tensor
    seqlen_k: tl.tensor
    head_dim: tl.tensor
    head_dim_v: tl.tensor
    rope: tl.tensor
    latent: tl.tensor


class Window(NamedTuple):
    """Keys that a query sees before and after its diagonal, which for query i is key i, or key
    i + seqlen_k - seqlen_q if bottom_right. chunk: if > 0, keys are in chunks of so many, and a query sees only those
    of the chunk with its diagonal; tested only where both sides are bound."""

    left: tl.tensor = 0
    right: tl.tensor = 0
    bottom_right: tl.tensor = False
    chunk: tl.tensor = 0
