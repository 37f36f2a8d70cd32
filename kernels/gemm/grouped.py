"""Products of runs of rows, each with a matrix of its own. Only the device knows where the runs begin and end.

Groups are cut into tiles of rows. A program finds the group of its tile in the offsets; programs beyond the last tile,
of which a launch has enough for any sizes of the groups, return at once.
"""

import triton
import triton.language as tl

from kernels.common.tensors import Matrices, Matrix, Vector, given, matrix_of
from kernels.gemm.block_scaled import block_scaled_product
from kernels.gemm.epilogue import Epilogue, finish
from kernels.gemm.order import tile_among
from kernels.gemm.product import product

AT_ONCE: tl.constexpr = tl.constexpr(256)
"""Groups that are looked at together."""


@triton.jit
def grouped_matmul(
    a: Matrix, b: Matrices, e: Matrix, offsets: Vector, counts: Vector, indices: Vector, bias: Matrix,
    rows, groups, matrices, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1, scale_a: Vector = None, scale_b: Matrix = None,
):  # fmt: skip
    """e[i] = scale_a[i] * a[i] b[g] * scale_b[g] + bias[g] of each row i of each group g.

    Grid: ((rows // BLOCK_M + min(groups, rows)) * cdiv(n, BLOCK_N)).

    a: [rows, k], b: [matrices, k, n], of one dtype; e: [rows, n], of which rows of no group are left as they are.
    offsets, counts, indices: see `group_of`. bias: [groups, n], or a null pointer. scale_a: fp32 [rows], scale_b: fp32
    [groups, n], or None.
    """
    tile_m, tile_n = _tile(rows, groups, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    group, first, size, row = group_of(tile_m, offsets, counts, rows, groups, BLOCK_M)
    if size > 0:
        left, right = _run_of(a, first), matrix_of(b, _index_of(indices, group, matrices))
        acc = product(left, right, row, tile_n * BLOCK_N, size, n, 0, k, BLOCK_M, BLOCK_N, BLOCK_K)
        scale_a_at, scale_b_at = scale_a.ptr, scale_b.ptr
        if scale_a.ptr is not None:
            scale_a_at += first * scale_a.stride_rows
            scale_b_at += group * scale_b.stride_rows
        of_bias = bias.ptr + tl.where(given(bias.ptr), group.to(tl.int64) * bias.stride_rows, 0)
        inside_m, inside_n = row + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        finish(
            acc, inside_m, inside_n, tl.program_id(1), size, n, _run_of(e, first),
            Epilogue(bias=of_bias, scale_a=scale_a_at, stride_scale_a_m=scale_a.stride_rows,
                     scale_b=scale_b_at, stride_scale_b_n=scale_b.stride_columns, EPILOGUE="bias"),
        )  # fmt: skip


@triton.jit
def grouped_block_scaled_matmul(
    a: Matrix, b: Matrices, scale_a: Matrix, scale_b: Matrices, e: Matrix, offsets: Vector, counts: Vector,
    indices: Vector, rows, groups, matrices, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    NUM_XCDS: tl.constexpr = 1,
):  # fmt: skip
    """e[i] = (scale_a[i] a[i]) (scale_b[g] b[g]) of each row i of each group g; grid and groups as in `grouped_matmul`.

    a: [rows, k], b: [matrices, k, n], both int8 or float8. scale_a: fp32 [rows, cdiv(k, 128)], scale_b: fp32 [matrices,
    cdiv(k, 128), cdiv(n, 128)]. BLOCK_K divides 128, BLOCK_N divides it or is a multiple.
    """
    tile_m, tile_n = _tile(rows, groups, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    group, first, size, row = group_of(tile_m, offsets, counts, rows, groups, BLOCK_M)
    if size > 0:
        index = _index_of(indices, group, matrices)
        inside_m, inside_n = row + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = block_scaled_product(
            _run_of(a, first), matrix_of(b, index), _run_of(scale_a, first), matrix_of(scale_b, index),
            inside_m % size, inside_n % n, 1, k, BLOCK_K,
        )  # fmt: skip
        finish(acc, inside_m, inside_n, tl.program_id(1), size, n, _run_of(e, first), Epilogue())


@triton.jit
def group_of(tile, offsets: Vector, counts: Vector, rows, groups, BLOCK_M: tl.constexpr):
    """Find the group of a tile of BLOCK_M rows: its index, its first row, its size, and the tile's first row in it.

    A size of 0 says that there is no such tile. offsets: int32 [groups + 1], where groups begin, and where the last one
    ends; they do not decrease. counts: int32 [groups], as many of a group's first rows belong to it, or a null pointer:
    all.
    """
    group, first, size, row, before = 0, 0, 0, 0, 0
    for start in range(0, groups, AT_ONCE):
        index = start + tl.arange(0, AT_ONCE)
        at = offsets.ptr + index * offsets.stride_rows
        begin = _inside(tl.load(at, index < groups, 0), 0, rows)
        end = _inside(tl.load(at + offsets.stride_rows, index < groups, 0), begin, rows)
        of_group = counts.ptr + index * counts.stride_rows
        count = _inside(tl.load(of_group, (index < groups) & given(counts.ptr), rows), 0, end - begin)
        tiles = tl.cdiv(count, BLOCK_M)
        after = before + tl.cumsum(tiles, 0)
        is_own = (after - tiles <= tile) & (tile < after)
        group += tl.sum(tl.where(is_own, index, 0), 0)
        first += tl.sum(tl.where(is_own, begin, 0), 0)
        size += tl.sum(tl.where(is_own, count, 0), 0)
        row += tl.sum(tl.where(is_own, (tile - (after - tiles)) * BLOCK_M, 0), 0)
        before += tl.sum(tiles, 0)
    return group, first, size, row


@triton.jit
def _tile(rows, groups, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr):
    """Return the (row, column) of the program's tile, in tiles."""
    most = rows // BLOCK_M + tl.minimum(groups, rows)
    return tile_among(tl.program_id(0), most, tl.cdiv(n, BLOCK_N), GROUP_M, NUM_XCDS)


@triton.jit
def _inside(value, least, most):
    return tl.minimum(tl.maximum(value, least), most)


@triton.jit
def _index_of(indices: Vector, group, matrices):
    """Return the index of a group's matrix: its own number if there are no indices."""
    index = tl.load(indices.ptr + group * indices.stride_rows, given(indices.ptr), group)
    return _inside(index, 0, matrices - 1)


@triton.jit
def _run_of(x: Matrix, first):
    """Return the rows of a `Matrix` from `first` on."""
    return Matrix(x.ptr + first.to(tl.int64) * x.stride_rows, x.stride_rows, x.stride_columns)
