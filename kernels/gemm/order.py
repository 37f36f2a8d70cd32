"""Order of tiles: the tile of a matrix that a program computes."""

from typing import NamedTuple

import triton
import triton.language as tl


@triton.jit
def tile_of(program, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr):
    """Return the (row, column) of a program's tile, in tiles.

    GROUP_M rows of tiles are walked together, so that programs that run at a time share operands in the L2. Each of
    NUM_XCDS XCDs, to which programs are dealt in turn, gets a contiguous run of tiles.
    """
    return tile_among(program, tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M, NUM_XCDS)


@triton.jit
def tile_among(program, tiles_m, tiles_n, GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr):
    """Like `tile_of`, for a matrix of tiles_m by tiles_n tiles."""
    if NUM_XCDS > 1:
        tiles = tiles_m * tiles_n
        xcd = program % NUM_XCDS
        program = xcd * (tiles // NUM_XCDS) + tl.minimum(xcd, tiles % NUM_XCDS) + program // NUM_XCDS
    in_group = GROUP_M * tiles_n
    first = program // in_group * GROUP_M
    rows = tl.minimum(tiles_m - first, GROUP_M)
    return first + program % in_group % rows, program % in_group // rows


class Part(NamedTuple):
    """Tiles of a result that a launch computes: `tiles_m` rows and `tiles_n` columns of them, after the first
    `skipped_m` and `skipped_n`; None: all."""

    skipped_m: tl.tensor = 0
    skipped_n: tl.tensor = 0
    tiles_m: tl.tensor = None
    tiles_n: tl.tensor = None


@triton.jit
def extent_of(part, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the (rows, columns) of tiles of a `Part` of a result [m, n]."""
    tiles_m = tl.cdiv(m, BLOCK_M) if part.tiles_m is None else part.tiles_m
    tiles_n = tl.cdiv(n, BLOCK_N) if part.tiles_n is None else part.tiles_n
    return tiles_m, tiles_n


@triton.jit
def tiles_of(part, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Count the tiles of a `Part`."""
    tiles_m, tiles_n = extent_of(part, m, n, BLOCK_M, BLOCK_N)
    return tiles_m * tiles_n
