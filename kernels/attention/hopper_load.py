"""The warps of attention for Hopper that fill the buffers: they load by tensor maps, and transpose values of 8 bits.

wgmma takes 8-bit values only by column, with neighbouring keys in neighbouring bytes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents

from kernels.attention.hopper_buffers import matrix, slot_of
from kernels.attention.hopper_tiles import (
    BLOCK_M,
    GROUPS,
    ROWS,
    first_step,
    key_blocks,
    publish_next_step,
    steps_of_program,
    tile_at,
)

PART = gl.constexpr(8192)
"""Values that are transposed together: more would take registers that there are not."""


@gluon.jit
def load_tiles(
    q_map, k_map, v_map, buffers, tiling, queue, BOUND_LEFT: gl.constexpr, BOUND_RIGHT: gl.constexpr,
    V_ROWS: gl.constexpr,
):  # fmt: skip
    """Fills the buffers with all that this program's tiles take; buffers.columns, by four warps, one block behind. Then
    lets the next launch begin.

    V_ROWS: v_map has a row for each key; else a column.
    """
    BLOCK_N: gl.constexpr = buffers.k.slots.shape[-2]
    TRANSPOSED: gl.constexpr = buffers.columns.slots is not None
    RAGGED: gl.constexpr = tiling.cu_seqlens_k is not None
    at = 0
    done = 0
    taken = 0
    left = 0
    step = first_step(tiling)
    while step < steps_of_program(tiling):
        tile = tile_at(step, tiling)
        step = publish_next_step(step, taken, tiling, queue)
        taken += 1
        if tile.first < tile.seqlen_q:
            head_kv = tile.head // tiling.group
            seen = key_blocks(tile.first, BLOCK_M, tile, tiling.window, BLOCK_N, BOUND_LEFT, BOUND_RIGHT)
            for i in range(seen.end - seen.begin):
                key = (seen.end - 1 - i) * BLOCK_N
                slot, phase = slot_of(at, buffers.k)
                fill(k_map, buffers.k, slot, phase, tile.batch, head_kv, tile.row_k + key, 0)
                if i == 0:  # after the keys, whose slot is free before those of the queries
                    for group in gl.static_range(GROUPS):
                        row = tile.row_q + tile.first + group * ROWS
                        fill(q_map, buffers.q, group, done & 1, tile.batch, tile.head, row, 0)
                slot, phase = slot_of(at, buffers.v)
                if V_ROWS:
                    fill(v_map, buffers.v, slot, phase, tile.batch, head_kv, tile.row_k + key, 0)
                else:
                    fill(v_map, buffers.v, slot, phase, tile.batch, head_kv, 0, tile.row_k + key)
                if TRANSPOSED:
                    if at > 0:
                        transpose_values(at - 1, left, buffers, RAGGED)
                    left = tile.seqlen_k - key
                at += 1
            done += 1
    if TRANSPOSED:  # noqa: SIM102 (one is for the compiler, the other for the hardware)
        if at > 0:
            transpose_values(at - 1, left, buffers, RAGGED)
    gdc_launch_dependents()


@gluon.jit
def fill(x_map, ring, slot, phase, batch, head, row, column):
    """Load a block into a slot of a ring, once it has been read."""
    ready = ring.ready.index(slot)
    mbarrier.wait(ring.free.index(slot), phase ^ 1)
    mbarrier.expect(ready, x_map.nbytes_per_cta)
    if len(x_map.block_shape) == 4:
        tma.async_load(x_map, [batch, head, row, column], ready, ring.slots.index(slot))
    else:
        tma.async_load(x_map, [head, row, column], ready, ring.slots.index(slot))


@gluon.jit
def transpose_values(at, left, buffers, RAGGED: gl.constexpr):
    """Puts block number `at` of the values from buffers.v into buffers.columns; `left` as in `transpose_block`."""
    slot, phase = slot_of(at, buffers.v)
    new_slot, new_phase = slot_of(at, buffers.columns)
    mbarrier.wait(buffers.v.ready.index(slot), phase)
    mbarrier.wait(buffers.columns.free.index(new_slot), new_phase ^ 1)
    rows, columns = matrix(buffers.v.slots.index(slot)), matrix(buffers.columns.slots.index(new_slot))
    transpose_block(rows, columns, left, RAGGED)
    fence_async_shared()
    mbarrier.arrive(buffers.v.free.index(slot))
    mbarrier.arrive(buffers.columns.ready.index(new_slot))


@gluon.jit
def transpose_block(rows, columns, left, RAGGED: gl.constexpr):
    """columns [HEAD_DIM, BLOCK_N] = rows [BLOCK_N, HEAD_DIM] transposed, the keys of each 16 in the order
    0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, which is that of `hopper_groups.probabilities`. left: keys that there are;
    others may be another sequence's, and count as zeros.

    Matrix loads and stores move pairs of bytes: pairs of columns come, and pairs of keys go. Even columns alone would
    lie in half of the banks of shared memory: of each eight pairs, four have the even one first, and four the odd one.
    """
    BLOCK_N: gl.constexpr = rows.shape[0]
    HEAD_DIM: gl.constexpr = rows.shape[1]
    PAIRS: gl.constexpr = HEAD_DIM // 2
    PAIRS_IN: gl.constexpr = gl.NVMMASharedLayout(rows.layout.swizzle_byte_width, 16, 2)
    PAIRS_OUT: gl.constexpr = crossed_layout(HEAD_DIM, BLOCK_N // 2)
    KEYS: gl.constexpr = PART // HEAD_DIM
    LOADED: gl.constexpr = loaded_layout(PAIRS, KEYS)
    pairs_in = rows.reinterpret(gl.int16, [BLOCK_N, PAIRS], PAIRS_IN)
    pairs_out = columns.reinterpret(gl.int16, [HEAD_DIM, BLOCK_N // 2], PAIRS_OUT)
    for i in gl.static_range(BLOCK_N // KEYS):
        x = pairs_in.slice(i * KEYS, KEYS).permute((1, 0)).load(LOADED)
        if RAGGED:
            keys = i * KEYS + gl.arange(0, KEYS, layout=gl.SliceLayout(0, LOADED))
            x = gl.where((keys < left)[None, :], x, gl.zeros_like(x))
        near, far = x.reshape([PAIRS, KEYS // 16, 2, 8]).permute((0, 1, 3, 2)).split()
        first, second = gl.inline_asm_elementwise(
            "{ .reg .b32 others; xor.b32 others, $4, 0x1111; prmt.b32 $0, $2, $3, $4; prmt.b32 $1, $2, $3, others; }",
            "=r,=r,r,r,r,r", [near, far, crossed_bytes(near)], dtype=(gl.int16, gl.int16), is_pure=True, pack=2,
        )  # fmt: skip
        both = gl.join(first.reshape([PAIRS, KEYS // 2]), second.reshape([PAIRS, KEYS // 2]))
        pairs_out.slice(i * KEYS // 2, KEYS // 2, 1).store(both.permute((0, 2, 1)).reshape([HEAD_DIM, KEYS // 2]))


@gluon.constexpr_function
def loaded_layout(pairs, keys):
    """[pairs, keys]: what transposing loads of matrices, 8 x 8, give the lanes of four warps."""
    registers = [[0, 1], [0, 8]] + [[0, key] for key in (16, 32, 64) if key < keys]
    registers += [[pair, 0] for pair in (32, 64) if pair < pairs]
    return gl.DistributedLinearLayout(
        reg_bases=registers, lane_bases=[[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
        warp_bases=[[8, 0], [16, 0]], block_bases=[], shape=[pairs, keys],
    )  # fmt: skip


@gluon.jit
def crossed_bytes(x):
    """For each number of x, whose first dim is pairs of columns: the bytes that make keys of the column that goes
    first."""
    LAYOUT: gl.constexpr = x.type.layout
    pairs = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    return gl.where(pairs & 4 == 0, 0x6420, 0x7531)[:, None, None] + gl.zeros(x.shape, gl.int32, LAYOUT)


@gluon.constexpr_function
def crossed_layout(columns, pairs):
    """[columns, pairs of keys]: that of a block of columns, swizzled, but for each column's place in its pair where the
    odd one goes first."""
    swizzled = {64: [8, 16, 32], 32: [0, 8, 16]}[pairs]
    rows = [[1 << i | (i == 3), swizzled[i] if i < 3 else 0] for i in range(columns.bit_length() - 1)]
    return gl.SharedLinearLayout([[0, 1 << i] for i in range(pairs.bit_length() - 1)] + rows, [], 1024)
