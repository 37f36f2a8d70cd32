"""Which tile of a matrix a program computes."""

import triton
import triton.language as tl


@triton.jit
def tile_of(program, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr):
    """(row, column) of the tile, in tiles, for each program below their number.

    GROUP_M rows of tiles are walked together, so that programs that run at a time share operands in the L2. Each of
    NUM_XCDS dies, to which programs are dealt in turn, gets a contiguous run of tiles.
    """
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    if NUM_XCDS > 1:
        tiles = tiles_m * tiles_n
        die = program % NUM_XCDS
        program = die * (tiles // NUM_XCDS) + tl.minimum(die, tiles % NUM_XCDS) + program // NUM_XCDS
    in_group = GROUP_M * tiles_n
    first = program // in_group * GROUP_M
    rows = tl.minimum(tiles_m - first, GROUP_M)
    return first + program % in_group % rows, program % in_group // rows
