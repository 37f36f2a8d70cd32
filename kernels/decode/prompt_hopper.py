"""Chunks of prompts over a paged cache, for Hopper, in Gluon: `attention.hopper` with keys from a block table."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from kernels.attention.hopper import (
    BLOCK_M,
    GROUPS,
    Buffers,
    Factors,
    Features,
    Result,
    Tiling,
    Transforms,
    attend_tiles,
    end_step,
    first_step,
    key_blocks,
    load_queries,
    make_queue,
    publish_next_step,
    tile_at,
)
from kernels.common.hopper import GROUP_0, GROUP_1, Ring, make_ring, slot_of
from kernels.common.tensors import HeadRows, Heads, HeadScalars, Window
from kernels.decode.cache import BlockTables


@gluon.jit
def attend_prompt_hopper(
    q, k, v, out: Heads, lse: HeadRows, block_tables: BlockTables, seqlens_k, cu_seqlens_q, counter, query_blocks,
    batch, heads, heads_kv, total_q, seqlen_k, scale,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr, PINGPONG: gl.constexpr,
    PADDED: gl.constexpr = False, head_dim_v=None,
):  # fmt: skip
    """`split.decode_split` with 128 queries of a head a tile, K and V of 16 bits, and all keys in one part.

    Grid: (programs,), any number of them, best that of the multiprocessors. They share the tiles: query_blocks of 128
    queries of each head and sequence, query_blocks * 128 >= the queries of any sequence. Each takes the next one of
    `counter` (int32 [1], 0 at first) as soon as it is done with one. num_warps is 4: the kernel that is compiled has
    more.

    q: a tensor map of [heads, tokens, columns] in boxes of 64 queries. k, v: those of [blocks, heads_kv, block_size,
    columns] in boxes [1, 1, HEIGHT, columns]; columns are 64 or 128, and block_size is a multiple of HEIGHT. PADDED:
    rows of out have head_dim_v elements, which may be fewer. out and the rest are as in `decode_split`. BLOCK_N: keys
    of a tile, a multiple of HEIGHT. REGISTERS: registers of a thread that multiplies. PINGPONG: one group issues
    products while the other does its softmax.
    """
    tiling = Tiling(
        query_blocks, heads, heads // heads_kv, batch, total_q, seqlen_k, None, cu_seqlens_q, None, Window(0, 0, True),
        counter, False, seqlens_k,
    )  # fmt: skip
    none = HeadScalars(None, 0, 0)
    transforms = Transforms(Factors(none, none, none), Features(None, None, None))
    BLOCK: gl.constexpr = [1, 1, BLOCK_N, k.block_shape[3]]
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for(BLOCK, k.dtype)
    buffers = Buffers(
        make_ring(GROUPS, q.dtype, q.block_shape, q.layout, 1),
        make_ring(STAGES, k.dtype, BLOCK, LAYOUT, GROUPS),
        make_ring(STAGES, v.dtype, BLOCK, LAYOUT, GROUPS),
        Ring(None, None, None),
    )
    queue = make_queue(counter)
    result = Result(out, lse, head_dim_v)
    gl.warp_specialize([
        (attend_tiles, (result, transforms, buffers, tiling, queue, scale, False, True, PADDED, PINGPONG, GROUP_0)),
        (attend_tiles, (result, transforms, buffers, tiling, queue, scale, False, True, PADDED, PINGPONG, GROUP_1)),
        (load_pages, (q, k, v, block_tables, buffers, tiling, queue)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip


@gluon.jit
def load_pages(q_map, k_map, v_map, tables, buffers, tiling, queue):
    """Fill the buffers with all that this program's tiles take."""
    BLOCK_N: gl.constexpr = buffers.k.slots.shape[-2]
    at = 0
    done = 0
    taken = 0
    step = first_step(tiling)
    while step < end_step(tiling):
        tile = tile_at(step, tiling)
        step = publish_next_step(step, taken, tiling, queue)
        taken += 1
        if tile.first < tile.seqlen_q:
            head_kv = tile.head // tiling.group
            seen = key_blocks(tile.first, BLOCK_M, tile, tiling.window, BLOCK_N, False, True)
            for i in range(seen.end - seen.begin):
                start = (seen.end - 1 - i) * BLOCK_N
                slot, phase = slot_of(at, buffers.k)
                fill_from_pages(k_map, buffers.k, slot, phase, tables, tile, head_kv, start)
                if i == 0:  # after the keys, whose slot is free before those of the queries
                    load_queries(q_map, buffers.q, done, tile, 0)
                fill_from_pages(v_map, buffers.v, slot, phase, tables, tile, head_kv, start)
                at += 1
            done += 1


@gluon.jit
def fill_from_pages(x_map, ring, slot, phase, tables, tile, head_kv, start):
    """Load keys from `start` on into a slot of a ring, once that is free, HEIGHT rows of a block at a time.

    Past the end of the sequence, its last rows are loaded again.
    """
    BLOCK_N: gl.constexpr = ring.slots.shape[-2]
    HEIGHT: gl.constexpr = x_map.block_shape[2]
    last = gl.maximum(tile.seqlen_k - 1, 0) // HEIGHT * HEIGHT
    row = tables.ptr + tile.sequence.to(gl.int64) * tables.stride_batch
    ready = ring.ready.index(slot)
    mbarrier.wait(ring.free.index(slot), phase ^ 1)
    mbarrier.expect(ready, BLOCK_N // HEIGHT * x_map.nbytes_per_cta)
    for i in gl.static_range(BLOCK_N // HEIGHT):
        key = gl.minimum(start + i * HEIGHT, last)
        entry = key // tables.block_size
        block = gl.minimum(gl.maximum(gl.load(row + entry), 0), tables.blocks - 1)
        box = ring.slots.index(slot).slice(i * HEIGHT, HEIGHT, dim=2)
        tma.async_load(x_map, [block, head_kv, key - entry * tables.block_size, 0], ready, box)
