"""Stream-K: matrix products in which the k blocks of all tiles are divided evenly among the programs.

A second launch adds up the tiles that several programs share. So no program waits for another, no memory has to be
zeroed, and sums are added in the same order each time.
"""

import triton
import triton.language as tl

from kernels.common.tensors import Matrix
from kernels.gemm.epilogue import Epilogue, finish
from kernels.gemm.order import tile_of
from kernels.gemm.product import product

AREA: tl.constexpr = tl.constexpr(128 * 256)
"""Elements of the workspace for each part of a tile: the largest tile."""


@triton.jit
def stream_k(
    a: Matrix, b: Matrix, e: Matrix, epilogue: Epilogue, partial, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    WHOLE_N: tl.constexpr = False,
):  # fmt: skip
    """e = epilogue(a b), except in tiles that several programs share: their parts go to `partial`.

    a: [m, k], b: [k, n], of one dtype; e: [m, n]. partial: fp32 [programs, 2, AREA], a program's part of the tile that
        another program began, and of the tile that another program will continue. WHOLE_N: as `product` has it.
        Grid: any number of programs.
    """
    tl.static_assert(BLOCK_M * BLOCK_N <= AREA, "a tile is larger than its place in the workspace")
    program, programs = tl.program_id(0), tl.num_programs(0)
    tiles, blocks = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N), tl.maximum(tl.cdiv(k, BLOCK_K), 1)
    at, end = begin_of(program, programs, tiles * blocks), begin_of(program + 1, programs, tiles * blocks)
    while at < end:
        tile, first = at // blocks, at % blocks
        last = tl.minimum(blocks, first + end - at)
        tile_m, tile_n = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M, 1)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        acc = product(
            a, b, row, column, m, n, first * BLOCK_K, tl.minimum(last * BLOCK_K, k), BLOCK_M, BLOCK_N, BLOCK_K,
            WHOLE_N=WHOLE_N,
        )  # fmt: skip
        if (first == 0) & (last == blocks):
            rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
            finish(acc, rows, columns, tl.program_id(1), m, n, e, epilogue)
        else:
            tl.store(_place(partial, program, (first == 0).to(tl.int32), BLOCK_M, BLOCK_N), acc)
        at += last - first


@triton.jit
def stream_k_finish(
    partial, e: Matrix, epilogue: Epilogue, m, n, k, programs,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Complete the tiles that programs of `stream_k` began without finishing them. Grid: (programs)."""
    program = tl.program_id(0)
    tiles, blocks = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N), tl.maximum(tl.cdiv(k, BLOCK_K), 1)
    end = begin_of(program + 1, programs, tiles * blocks)
    tile = end // blocks
    if (end % blocks == 0) | (tile * blocks < begin_of(program, programs, tiles * blocks)):
        return
    acc = tl.load(_place(partial, program, 1, BLOCK_M, BLOCK_N))
    follower = program + 1
    while begin_of(follower, programs, tiles * blocks) < tile * blocks + blocks:
        acc += tl.load(_place(partial, follower, 0, BLOCK_M, BLOCK_N))
        follower += 1
    tile_m, tile_n = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP_M, 1)
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    finish(acc, rows, columns, tl.program_id(1), m, n, e, epilogue)


@triton.jit
def begin_of(program, programs, blocks):
    """Return the first of `blocks` that a program computes; shares differ by one at most."""
    return blocks // programs * program + tl.minimum(program, blocks % programs)


@triton.jit
def _place(partial, program, part, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return addresses of the accumulator of one of a program's two shared tiles."""
    at = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    return partial + (tl.cast(program, tl.int64) * 2 + part) * AREA + at
