"""Scaled dot-product attention, forward, for Hopper: specialised warps, fed by TMA, in Gluon.

A program has two warpgroups that multiply, each with ROWS queries of a tile, and one warp that loads: Q once a tile, K
and V into rings of STAGES blocks that both groups share.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_wait

from kernels.attention.hopper_buffers import Buffers, Ring, make_ring
from kernels.attention.hopper_groups import Result, attend_tiles
from kernels.attention.hopper_load import load_tiles
from kernels.attention.hopper_scores import Factors, Features, Scoring
from kernels.attention.hopper_tiles import GROUPS, Tiling, make_queue, paired
from kernels.attention.problem import Extents, Window
from kernels.common.tensors import HeadRows, Heads, HeadScalars

# An int among the arguments of warp_specialize would have no type, and assigning a constexpr makes a tensor of it.
GROUP_0, GROUP_1 = gl.constexpr(0), gl.constexpr(1)
V_ROWS = gl.constexpr(True)


@gluon.jit
def attention_forward_hopper(
    q, k, v, out: Heads, lse: HeadRows, extents: Extents, query_blocks, batch, window: Window, scale,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr, PINGPONG: gl.constexpr,
    cu_seqlens_q=None, cu_seqlens_k=None, counter=None, bias: Heads = None, alibi_slopes: HeadScalars = None,
    softcap=0.0, BOUND_LEFT: gl.constexpr = False, BOUND_RIGHT: gl.constexpr = False, PADDED: gl.constexpr = True,
    FEATURES: gl.constexpr = False,
):  # fmt: skip
    """out = softmax(scores) v: `forward.attention_forward` without its mods.

    Grid: (programs,), any number of them, best that of the multiprocessors. They share the tiles: query_blocks of 128
    queries of each head and batch, query_blocks * 128 >= the queries of any sequence. Each takes each programs-th tile
    or, with a counter (int32 [1], 0 at first), the next one as soon as it is done with one.
    num_warps is 4: the kernel that is compiled has more.

    q, k, v: tensor maps of float16 or bfloat16 [batch, heads, seqlen, head dim], or [heads, tokens, head dim] with
    cu_seqlens, in boxes of 64 queries and of BLOCK_N keys, of 64, 128 or 256 columns. REGISTERS: of a
    thread that multiplies. PINGPONG: one group issues products while the other does its softmax. A bias has an even
    number of columns.
    """
    gl.static_assert(k.block_shape[-2] == BLOCK_N)
    tiling = Tiling(
        query_blocks, extents.heads, extents.heads // extents.heads_kv, batch, extents.seqlen_q, extents.seqlen_k,
        extents.max_seqlen_k, cu_seqlens_q, cu_seqlens_k, window, counter,
        paired(query_blocks * extents.heads * batch, BOUND_RIGHT and counter is None),
    )  # fmt: skip
    result = Result(out, lse, extents.head_dim_v)
    none = HeadScalars(None, 0, 0)
    features = Features(softcap if FEATURES else None, alibi_slopes, bias)
    scoring = Scoring(Factors(none, none, none), features)
    buffers = Buffers(
        make_ring(GROUPS, q.dtype, q.block_shape, q.layout, 1),
        make_ring(STAGES, k.dtype, k.block_shape, k.layout, GROUPS),
        make_ring(STAGES, v.dtype, v.block_shape, v.layout, GROUPS),
        Ring(None, None, None),
    )
    queue = make_queue(counter)
    gdc_wait()
    # The first partition has the kernel's own warps, and the registers that the others leave.
    gl.warp_specialize([
        (attend_tiles, (result, scoring, buffers, tiling, queue, scale, BOUND_LEFT, BOUND_RIGHT, PADDED, PINGPONG,
                        GROUP_0)),
        (attend_tiles, (result, scoring, buffers, tiling, queue, scale, BOUND_LEFT, BOUND_RIGHT, PADDED, PINGPONG,
                        GROUP_1)),
        (load_tiles, (q, k, v, buffers, tiling, queue, BOUND_LEFT, BOUND_RIGHT, V_ROWS)),
    ], [4, 1], [REGISTERS, 24])  # fmt: skip
