"""Products of tokens and their experts' matrices in each storage format: plain, scaled, or packed codes."""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.common.tensors import given, matrix_of
from kernels.gemm.block_scaled import BLOCK, accumulate_blocks
from kernels.gemm.packed import Weights, packed_product
from kernels.gemm.product import accumulate


class Quantisation(NamedTuple):
    """Storage format of x, [rows, k], and w, [experts, n, k]. All tensors here are packed.

    FORMAT: `plain`: not quantised. `channels`: both are of 8 bits, with a scale for each row of x and of w. `blocks`:
    both are of 8 bits, with a scale for each 128 of k in each row of x, and in each 128 rows of w. `codes`: w holds
    codes of 4 or 8 bits, with scales, zeros and CODES as in `packed.Weights`, by expert; x is not quantised.

    scale_x: fp32 [rows] or [rows, cdiv(k, 128)]. scales: fp32 [experts, n] or [experts, blocks of n, cdiv(k, 128)]; of
    codes, in x's dtype, [experts, groups, n]. zeros: [experts, groups, n]. group_size: of codes along k with one scale.
    order: int32 [experts, k], which column of x each weight belongs to, or null pointers; CODES of `any` look at it.
    """

    FORMAT: tl.constexpr = "plain"
    scale_x: tl.tensor = None
    scales: tl.tensor = None
    zeros: tl.tensor = None
    group_size: tl.tensor = 0
    CODES: tl.constexpr = "offset"
    EVEN_K: tl.constexpr = False
    order: tl.tensor = None


@triton.jit
def product(x, w, quantisation, expert, rows, columns, scale_rows, n, k, BLOCK_K: tl.constexpr, loaded=None):
    """x[rows] w[expert, columns]ᵀ in fp32; x a `Matrix`, w `Matrices` with n rows each.

    scale_rows: for each column, the index of its row of block scales, over all experts. loaded: bool, the rows that
    matter, if FORMAT is not `codes`; None: all.
    """
    rows = rows.to(tl.int64)
    if quantisation.FORMAT == "codes":
        order = _order_of(quantisation, expert, k)
        acc = packed_product(x, _codes_of(w, quantisation, expert, n, k), order, rows, columns, 0, k, k, BLOCK_K)
    else:
        acc = _product(x, matrix_of(w, expert), quantisation, expert, rows, columns, scale_rows, n, k, BLOCK_K, loaded)
    return acc


@triton.jit
def _product(x, w, quantisation, expert, rows, columns, scale_rows, n, k, BLOCK_K: tl.constexpr, loaded):
    """`product` for all formats but `codes`; w: the `Matrix` of the expert."""
    inner = tl.arange(0, BLOCK_K)
    x_at = x.ptr + rows[:, None] * x.stride_rows + inner[None, :] * x.stride_columns
    w_at = w.ptr + columns[None, :].to(tl.int64) * w.stride_rows + inner[:, None] * w.stride_columns
    if quantisation.FORMAT == "blocks":
        blocks = tl.cdiv(k, BLOCK)
        scale_x_at, scale_w_at = (
            quantisation.scale_x + rows * blocks,
            quantisation.scales + scale_rows.to(tl.int64) * blocks,
        )
        acc = accumulate_blocks(
            x_at, w_at, x.stride_columns, w.stride_columns, scale_x_at, scale_w_at, 1, 1, k, BLOCK_K
        )
    else:
        wide: tl.constexpr = tl.int32 if x.ptr.dtype.element_ty.is_int() else tl.float32
        acc = tl.zeros([rows.shape[0], columns.shape[0]], wide)
        acc = accumulate(x_at, w_at, x.stride_columns, w.stride_columns, acc, k, BLOCK_K, "ieee", loaded)
        if quantisation.FORMAT == "channels":
            of_columns = tl.load(quantisation.scales + expert.to(tl.int64) * n + columns)
            acc = acc.to(tl.float32) * tl.load(quantisation.scale_x + rows)[:, None] * of_columns[None, :]
    return acc


@triton.jit
def _codes_of(w, quantisation, expert, n, k):
    """Make the `Weights` of one expert."""
    own, zeros = matrix_of(w, expert), quantisation.zeros
    before = expert.to(tl.int64) * tl.cdiv(k, quantisation.group_size) * n
    if quantisation.zeros is not None:
        zeros += tl.where(given(zeros), before, 0)
    return Weights(
        own.ptr,
        own.stride_rows,
        quantisation.scales + before,
        n,
        zeros,
        n,
        quantisation.group_size,
        quantisation.CODES,
        quantisation.EVEN_K,
    )


@triton.jit
def _order_of(quantisation, expert, k):
    """Return the order of the columns of one expert."""
    order = quantisation.order
    if quantisation.order is not None:
        order += tl.where(given(order), expert.to(tl.int64) * k, 0)
    return order
