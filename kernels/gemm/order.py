"""Which tile of a matrix a program computes."""

from typing import NamedTuple

import triton
import triton.language as tl


@triton.jit
def tile_of(program, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr):
    """(row, column) of the tile, in tiles, for each program below their number.

    GROUP_M rows of tiles are walked together, so that programs that run at a time share operands in the L2. Each of
    NUM_XCDS dies, to which programs are dealt in turn, gets a contiguous run of tiles.
    """
    return tile_among(program, tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M, NUM_XCDS)


@triton.jit
def tile_among(program, tiles_m, tiles_n, GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr):
    """`tile_of`, of so many rows and columns of tiles."""
    if NUM_XCDS > 1:
        tiles = tiles_m * tiles_n
        die = program % NUM_XCDS
        program = die * (tiles // NUM_XCDS) + tl.minimum(die, tiles % NUM_XCDS) + program // NUM_XCDS
    in_group = GROUP_M * tiles_n
    first = program // in_group * GROUP_M
    rows = tl.minimum(tiles_m - first, GROUP_M)
    return first + program % in_group % rows, program % in_group // rows


class Part(NamedTuple):
    """The tiles of a result that a launch computes: `tiles_m` rows and `tiles_n` columns of them, behind the first
    `skipped_m` and `skipped_n`; None: all that there are."""

    skipped_m: tl.tensor = 0
    skipped_n: tl.tensor = 0
    tiles_m: tl.tensor = None
    tiles_n: tl.tensor = None


@triton.jit
def extent_of(part, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(rows, columns) of the tiles of a `Part` of a result [m, n]."""
    tiles_m = tl.cdiv(m, BLOCK_M) if part.tiles_m is None else part.tiles_m
    tiles_n = tl.cdiv(n, BLOCK_N) if part.tiles_n is None else part.tiles_n
    return tiles_m, tiles_n


@triton.jit
def tiles_of(part, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The number of tiles of a `Part`."""
    tiles_m, tiles_n = extent_of(part, m, n, BLOCK_M, BLOCK_N)
    return tiles_m * tiles_n
