"""Order of tiles: the tile of a matrix that a program computes."""

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
