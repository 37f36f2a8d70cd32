"""Matrix products without matrix units: for dtypes that these units do not support, and for few rows."""

import triton
import triton.language as tl

from kernels.common.tensors import Matrix
from kernels.gemm.epilogue import Epilogue, finish


@triton.jit
def plain_matmul(
    a: Matrix, b: Matrix, e: Matrix, epilogue: Epilogue, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """e = epilogue(a b). Grid: (cdiv(m, BLOCK_M), cdiv(n, BLOCK_N)).

    a: [m, k], b: [k, n], of one dtype; e: [m, n]; integers are summed in int32, all others in fp32.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    a_at = a.ptr + (rows % m)[:, None] * a.stride_rows + inner[None, :] * a.stride_columns
    b_at = b.ptr + inner[:, None] * b.stride_rows + (columns % n)[None, :] * b.stride_columns
    wide: tl.constexpr = tl.int32 if a.ptr.dtype.element_ty.is_int() else tl.float32
    acc = tl.zeros([BLOCK_M, BLOCK_K, BLOCK_N], wide)
    for start in range(0, k, BLOCK_K):
        known = inner < k - start
        left = tl.load(a_at, known[None, :], 0.0).to(wide)
        right = tl.load(b_at, known[:, None], 0.0).to(wide)
        acc += left[:, :, None] * right[None, :, :]
        a_at += BLOCK_K * a.stride_columns
        b_at += BLOCK_K * b.stride_rows
    finish(tl.sum(acc, 1), rows, columns, tl.program_id(2), m, n, e, epilogue)


@triton.jit
def multiply_reduce(
    a: Matrix, b: Matrix, e: Matrix, epilogue: Epilogue, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """e = epilogue(a b) for floats. Grid: (cdiv(m, BLOCK_M), cdiv(n, BLOCK_N)).

    a: [m, k], b: [k, n], of one dtype of 16 bits, its columns without gaps; k is a multiple of 8, rows of a and columns
    of b begin at multiples of 16 bytes. e: [m, n]. A lane has runs of 8 along k of each column, and of each row what
    belongs to them. BLOCK_K is 8 times the program's lanes, or more: then both are spread over lanes alike, and nothing
    moves between them until the end.
    """
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)[None, None, :]
    a_at = a.ptr + (rows % m)[:, None, None] * a.stride_rows + inner
    b_at = b.ptr + (columns % n)[None, :, None] * b.stride_columns + inner
    acc = tl.zeros([BLOCK_M, BLOCK_N, BLOCK_K // 8], tl.float32)
    for start in range(0, k, BLOCK_K):
        known = inner < k - start
        left = tl.load(a_at, known, 0.0).to(tl.float32)
        right = tl.load(b_at, known, 0.0).to(tl.float32)
        acc += tl.sum((left * right).reshape(BLOCK_M, BLOCK_N, BLOCK_K // 8, 8), 3)
        a_at += BLOCK_K
        b_at += BLOCK_K
    finish(tl.sum(acc, 2), rows, columns, tl.program_id(2), m, n, e, epilogue)
