"""The product of a row of tiles and a column of tiles."""

import triton
import triton.language as tl

from kernels.gemm.epilogue import aligned_part


@triton.jit
def product(
    a, b, row, column, m, n, begin, end,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr = "ieee",
    WHOLE_M: tl.constexpr = False, WHOLE_N: tl.constexpr = False,
):  # fmt: skip
    """a[row:, begin:end] b[begin:end, column:]: [BLOCK_M, BLOCK_N]; elements past the edges are meaningless.

    a, b: each a `Matrix`, [m, k] and [k, n]; row, column, begin, end in elements. PRECISION: of fp32 operands, as
    `tl.dot` has it. WHOLE_M: m is a multiple of 16, which loads along columns of a have to know. WHOLE_N: n is a
    multiple of 16 bytes, which loads along rows of b have to know; no hint says it.
    """
    inner = tl.arange(0, BLOCK_K)
    m = m // 16 * 16 if WHOLE_M else m
    n = aligned_part(n, b.ptr.dtype.element_ty) if WHOLE_N else n
    # Rows and columns past the edges wrap to ones inside, so that no load in the loop needs a mask for them.
    rows, columns = (row + tl.arange(0, BLOCK_M)) % m, (column + tl.arange(0, BLOCK_N)) % n
    a_at = a.ptr + begin * a.stride_columns + rows[:, None] * a.stride_rows + inner[None, :] * a.stride_columns
    b_at = b.ptr + begin * b.stride_rows + inner[:, None] * b.stride_rows + columns[None, :] * b.stride_columns
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32 if a.ptr.dtype.element_ty.is_int() else tl.float32)
    return accumulate(a_at, b_at, a.stride_columns, b.stride_rows, acc, end - begin, BLOCK_K, PRECISION)


@triton.jit
def accumulate(
    a_at, b_at, a_step, b_step, acc, k, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr = "ieee", a_rows=None
):
    """Add the product of `k` columns of a and rows of b to acc.

    a_at, b_at: addresses of the first [.., BLOCK_K] of a and [BLOCK_K, ..] of b; a_step, b_step: elements from a column
        or row to the next. a_rows: bool, the rows of a to load; the others are zeros. None: all.
    """
    inner = tl.arange(0, BLOCK_K)
    steps = tl.maximum(k, 0) // BLOCK_K
    for _ in range(steps):
        left = tl.load(a_at) if a_rows is None else tl.load(a_at, mask=a_rows[:, None], other=0.0)
        acc = dot(left, tl.load(b_at), acc, PRECISION)
        a_at += BLOCK_K * a_step
        b_at += BLOCK_K * b_step
    rest = k - steps * BLOCK_K
    if rest > 0:
        known = inner[None, :] < rest if a_rows is None else (inner[None, :] < rest) & a_rows[:, None]
        left = tl.load(a_at, mask=known, other=0.0)
        right = tl.load(b_at, mask=inner[:, None] < rest, other=0.0)
        acc = dot(left, right, acc, PRECISION)
    return acc


@triton.jit
def dot(left, right, acc, PRECISION: tl.constexpr):
    """Return acc + left right, with right of left's dtype, or of float8, which is converted to it.

    Sums of float8 blocks are added in full fp32, which Hopper's matrix units do not do.
    """
    if left.dtype.is_fp8():
        return tl.dot(left, right, acc, max_num_imprecise_acc=left.shape[1])
    return tl.dot(left, right.to(left.dtype), acc, input_precision=PRECISION, out_dtype=acc.dtype)
