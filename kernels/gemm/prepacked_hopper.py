"""Products of many rows with prepacked weights, for Hopper: eᵀ = w xᵀ.

The decoded weights are the left operand, which wgmma takes from registers.

One warp loads into a ring of stages by tensor maps; two warpgroups each have 64 outputs of a tile. A group decodes its
next weights while the other group multiplies.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.common.hopper import GROUP_0, GROUP_1, accumulator_layout, halves, make_barriers, next_stage
from kernels.common.tensors import given
from kernels.gemm.prepacked import TILE, decode, for_words, in_order, scaled, table_of, values_of

GROUPS = gl.constexpr(2)
"""Warpgroups that multiply; each has a tile of outputs."""


class Maps(NamedTuple):
    """Tensor maps.

    x: in boxes of [BLOCK_M, BLOCK_K]. w: words, in boxes of GROUPS tiles of outputs by BLOCK_K. scales, zeros: in boxes
    of the same outputs and one group; zeros may be None. e: in boxes of [at most 64, TILE].
    """

    x: gl.tensor
    w: gl.tensor
    scales: gl.tensor
    zeros: gl.tensor
    e: gl.tensor


class Pointers(NamedTuple):
    """Tensors that are accessed without maps, and their extents. codebook may be None; n: outputs."""

    codebook: gl.tensor
    bias: gl.tensor
    partial: gl.tensor
    m: gl.tensor
    n: gl.tensor


class UnitGrid(NamedTuple):
    """Units of work: each of the `parts` parts of k of each tile of e.

    rows, columns: tiles of e; steps: blocks of k; band: rows of tiles that are walked together.
    """

    rows: gl.tensor
    columns: gl.tensor
    parts: gl.tensor
    steps: gl.tensor
    band: gl.tensor
    group_size: gl.tensor


class WeightStages(NamedTuple):
    """Shared memory: a ring of stages, each with a `ready` and a `free` barrier, and a box of e for each group.

    A stage has boxes of words and of x, and boxes of scales and zeros for each TILE of k.
    """

    w: gl.shared_memory_descriptor
    x: gl.shared_memory_descriptor
    scales: gl.shared_memory_descriptor
    zeros: gl.shared_memory_descriptor
    e: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor


@gluon.jit
def units_of_program(grid):
    return gl.cdiv(grid.rows * grid.columns * grid.parts - gl.program_id(0), gl.num_programs(0))


@gluon.jit
def unit_at(number, grid):
    """Return (row, column, part, first step, steps) of a program's unit.

    Units are in bands of rows of tiles, each walked column by column, with the parts of a tile together.
    """
    unit = gl.program_id(0) + number * gl.num_programs(0)
    tile, part = unit // grid.parts, unit % grid.parts
    first = tile // (grid.band * grid.columns) * grid.band
    height = gl.minimum(grid.band, grid.rows - first)
    place = tile - first * grid.columns
    begin = part * grid.steps // grid.parts
    return first + place % height, place // height, part, begin, (part + 1) * grid.steps // grid.parts - begin


@gluon.jit
def load_units(maps, stages, grid):
    """Load all units of a program."""
    STAGES: gl.constexpr = stages.ready.shape[0]
    BLOCK_M: gl.constexpr = stages.x.shape[1]
    BLOCK_K: gl.constexpr = stages.x.shape[2]
    TILES: gl.constexpr = BLOCK_K // TILE
    BYTES: gl.constexpr = maps.w.nbytes_per_cta + maps.x.nbytes_per_cta + TILES * maps.scales.nbytes_per_cta
    stage, phase = 0, 1
    for number in range(units_of_program(grid)):
        row, column, _, begin, steps = unit_at(number, grid)
        for step in range(begin, begin + steps):
            mbarrier.wait(stages.free.index(stage), phase)
            ready = stages.ready.index(stage)
            if maps.zeros is None:
                mbarrier.expect(ready, BYTES)
            else:
                mbarrier.expect(ready, BYTES + TILES * maps.zeros.nbytes_per_cta)
            for i in gl.static_range(TILES):
                at = [(step * BLOCK_K + i * TILE) // grid.group_size, column * GROUPS, 0]
                tma.async_load(maps.scales, at, ready, stages.scales.index(stage * TILES + i))
                if maps.zeros is not None:
                    tma.async_load(maps.zeros, at, ready, stages.zeros.index(stage * TILES + i))
            tma.async_load(maps.w, [column * GROUPS, step * maps.w.block_shape[1], 0], ready, stages.w.index(stage))
            tma.async_load(maps.x, [row * BLOCK_M, step * BLOCK_K], ready, stages.x.index(stage))
            stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def _by_output(buffers, stage, TILES: gl.constexpr, GROUP: gl.constexpr, words):
    """Load scales or zeros of a stage, shaped like `words`."""
    LANES: gl.constexpr = [[0, 0, 0], [0, 0, 0], [0, 0, 8], [0, 0, 16], [0, 0, 32]]
    LAYOUT: gl.constexpr = gl.DistributedLinearLayout([[0, 0, 1]], LANES, [[0, 0, 2], [0, 0, 4]], [], [1, 1, 64])
    first = buffers.index(stage * TILES).slice(GROUP, 1, dim=1).load(LAYOUT).reshape([1, 1, 8, 4, 1, 1, 2])
    if TILES == 2:
        second = buffers.index(stage * TILES + 1).slice(GROUP, 1, dim=1).load(LAYOUT).reshape([1, 1, 8, 4, 1, 1, 2])
        first = gl.join(first, second).permute((0, 7, 3, 2, 4, 5, 6, 1)).reshape([1, 2, 4, 8, 1, 1, 2])
    else:
        first = first.permute((0, 1, 3, 2, 4, 5, 6))
    return for_words(first, words)


@gluon.constexpr_function
def words_layout(tiles, bits):
    """Layout of [1, rows, 32], the words of tiles of k: each warp has those of a slice."""
    half, slice_rows = ([], 4) if bits == 4 else ([[0, 4, 0]], 8)
    tile = [[0, 4 * slice_rows, 0]] if tiles == 2 else []
    lanes = [[0, 0, 4], [0, 0, 8], [0, 0, 16], [0, 1, 0], [0, 2, 0]]
    warps = [[0, slice_rows, 0], [0, 2 * slice_rows, 0]]
    return gl.DistributedLinearLayout(
        [[0, 0, 1], [0, 0, 2], *half, *tile], lanes, warps, [], [1, 4 * slice_rows * tiles, 32]
    )


@gluon.jit
def weights_of(stages, stage, table, GROUP: gl.constexpr, LAYOUT: gl.constexpr):
    """Decode the weights of a stage, [TILE, BLOCK_K], as a left operand."""
    TILES: gl.constexpr = stages.x.shape[2] // TILE
    BITS: gl.constexpr = stages.w.shape[2] // (4 * TILES)
    dtype: gl.constexpr = stages.x.dtype
    words = in_order(stages.w.index(stage).slice(GROUP, 1, dim=0).load(words_layout(TILES, BITS)), TILES, BITS)
    zeros = gl.to_tensor(1 << BITS - 1)
    if stages.zeros is not None:
        zeros = _by_output(stages.zeros, stage, TILES, GROUP, words).to(gl.int32)
    p0, p1, p2, p3 = decode(words, zeros, table, dtype)
    scales = _by_output(stages.scales, stage, TILES, GROUP, words)
    p0, p1, p2, p3 = scaled(p0, scales), scaled(p1, scales), scaled(p2, scales), scaled(p3, scales)
    return gl.convert_layout(
        values_of(p0, p1, p2, p3, dtype).reshape([TILE, TILE * TILES]), LAYOUT, assert_trivial=True
    )


@gluon.jit
def store_transposed(e, acc, row, column, buffer):
    """Store acc [TILE, rows] transposed in e from (row, column) on, in pieces of at most 64 rows."""
    if acc.shape[1] == buffer.shape[0]:
        tma.store_wait(0)
        buffer.permute((1, 0)).store(acc.to(e.dtype))
        fence_async_shared()
        tma.async_store(e, [row, column], buffer)
    else:
        left, right = halves(acc)
        store_transposed(e, left, row, column, buffer)
        store_transposed(e, right, row + left.shape[1], column, buffer)


@gluon.jit
def finish(maps, pointers, acc, first_row, first_output, parts, part, buffer):
    """Store acc [TILE, rows] in e, or in `partial` if k has several parts."""
    ACC: gl.constexpr = acc.type.layout
    places = first_output + gl.arange(0, TILE, gl.SliceLayout(1, ACC))[:, None]
    if parts > 1:
        rows = first_row + gl.arange(0, acc.shape[1], gl.SliceLayout(0, ACC))[None, :]
        at = pointers.partial + (part * pointers.m + rows).to(gl.int64) * pointers.n + places
        gl.store(at, acc, (rows < pointers.m) & (places < pointers.n))
    else:
        acc += gl.load(pointers.bias + places, given(pointers.bias) & (places < pointers.n), 0.0).to(gl.float32)
        store_transposed(maps.e, acc, first_row, first_output, buffer)


@gluon.jit
def multiply_units(maps, pointers, stages, grid, GROUP: gl.constexpr):
    """Compute the TILE outputs of warpgroup GROUP in each unit of a program."""
    STAGES: gl.constexpr = stages.ready.shape[0]
    BLOCK_M: gl.constexpr = stages.x.shape[1]
    ACC: gl.constexpr = accumulator_layout(BLOCK_M, stages.x.dtype)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    table = None
    if pointers.codebook is not None:
        table = table_of(pointers.codebook, maps.x.dtype)
    stage, phase = 0, 0
    for number in range(units_of_program(grid)):
        row, column, part, _, steps = unit_at(number, grid)
        acc = gl.zeros([TILE, BLOCK_M], gl.float32, ACC)
        mbarrier.wait(stages.ready.index(stage), phase)
        weights = weights_of(stages, stage, table, GROUP, LEFT)
        for step in range(steps):
            acc = warpgroup_mma(weights, stages.x.index(stage).permute((1, 0)), acc, use_acc=step > 0, is_async=True)
            last = stage
            stage, phase = next_stage(stage, phase, STAGES)
            # What is decoded after the last step is not used.
            mbarrier.wait(stages.ready.index(stage), phase, pred=step + 1 < steps)
            following = weights_of(stages, stage, table, GROUP, LEFT)
            acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
            mbarrier.arrive(stages.free.index(last))
            weights = following
        outputs = (column * GROUPS + GROUP) * TILE
        finish(maps, pointers, acc, row * BLOCK_M, outputs, grid.parts, part, stages.e.index(GROUP))
    tma.store_wait(0)


@gluon.jit
def prepacked_hopper(
    x, w, scales, zeros, codebook, group_size, e, bias, partial, m, k, tiles, parts,
    BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr, BAND: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """e = x wᵀ + bias, summed in fp32; or, if k has several `parts`, the products of each, for `add_parts`.

    x, w, scales, zeros, e: tensor maps, as `Maps` has them; codebook: fp32 [16]; zeros and codebook may be None. bias:
    [outputs], or a null pointer; partial: fp32 [parts, m, outputs], of several parts. Grid: (tiles of e times parts, or
    fewer). BAND: rows of tiles that are walked together. REGISTERS: registers of a thread that multiplies.
    """
    gl.static_assert(x.block_shape[1] == BLOCK_K)
    grid = UnitGrid(gl.cdiv(m, BLOCK_M), gl.cdiv(tiles, GROUPS), parts, gl.cdiv(k, BLOCK_K), BAND, group_size)
    gdc_launch_dependents()
    gdc_wait()
    OF_TILES: gl.constexpr = STAGES * (BLOCK_K // TILE)
    zero_buffers = None
    if zeros is not None:
        zero_buffers = gl.allocate_shared_memory(zeros.dtype, [OF_TILES] + zeros.block_shape, zeros.layout)  # noqa: RUF005
    w_buffers = gl.allocate_shared_memory(w.dtype, [STAGES] + w.block_shape, w.layout)  # noqa: RUF005
    x_buffers = gl.allocate_shared_memory(x.dtype, [STAGES] + x.block_shape, x.layout)  # noqa: RUF005
    scale_buffers = gl.allocate_shared_memory(scales.dtype, [OF_TILES] + scales.block_shape, scales.layout)  # noqa: RUF005
    e_buffers = gl.allocate_shared_memory(e.dtype, [GROUPS] + e.block_shape, e.layout)  # noqa: RUF005
    ready, free = make_barriers(STAGES, 1, GROUPS)
    stages = WeightStages(w_buffers, x_buffers, scale_buffers, zero_buffers, e_buffers, ready, free)
    maps = Maps(x, w, scales, zeros, e)
    pointers = Pointers(codebook, bias, partial, m, tiles * TILE)
    gl.warp_specialize([
        (multiply_units, (maps, pointers, stages, grid, GROUP_0)),
        (multiply_units, (maps, pointers, stages, grid, GROUP_1)),
        (load_units, (maps, stages, grid)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip
