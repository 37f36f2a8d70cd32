"""Scaled dot-product attention, forward, of float8 for Hopper: `hopper` with a factor for each head.

Values that lie by row are transposed on their way, by the warps that load: there are four of them then.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_wait

from kernels.attention.hopper_buffers import Buffers, Ring, columns_map, heads_map, make_ring
from kernels.attention.hopper_groups import Result, attend_tiles
from kernels.attention.hopper_load import load_tiles
from kernels.attention.hopper_scores import Factors, Features, Scoring
from kernels.attention.hopper_tiles import GROUPS, ROWS, Tiling, make_queue, paired
from kernels.attention.problem import Extents, Window
from kernels.common.tensors import HeadRows, Heads, HeadScalars

GROUP_0, GROUP_1 = gl.constexpr(0), gl.constexpr(1)


@gluon.jit
def attention_fp8_hopper(
    q: Heads, k: Heads, v: Heads, out: Heads, q_scale: HeadScalars, k_scale: HeadScalars, v_scale: HeadScalars,
    lse: HeadRows, extents: Extents, query_blocks, batch, window: Window, scale,
    HEAD_DIM: gl.constexpr, V_ROWS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr, PINGPONG: gl.constexpr,
    cu_seqlens_q=None, cu_seqlens_k=None, counter=None,
    BOUND_LEFT: gl.constexpr = False, BOUND_RIGHT: gl.constexpr = False, PADDED: gl.constexpr = True,
):  # fmt: skip
    """out = softmax(scale * q k * q_scale * k_scale) v * v_scale. Grid and what is not said here: as in
    `hopper.attention_forward_hopper` with 2 groups.

    q, k, v: float8_e4m3fn, v with contiguous rows if V_ROWS, else with contiguous columns, whose strides are multiples
    of 16 bytes then. out: float16 or bfloat16. scale >= 0. HEAD_DIM: 64, 128 or 256, of q, k, v and out.
    """
    DTYPE: gl.constexpr = q.ptr.dtype.element_ty
    gdc_wait()  # the maps are written to memory, where those of an earlier launch may still be in use
    batches = batch if cu_seqlens_q is None else 1
    q_map = heads_map(q, batches, extents.heads, extents.seqlen_q, extents.head_dim, HEAD_DIM, ROWS, DTYPE)
    k_map = heads_map(k, batches, extents.heads_kv, extents.seqlen_k, extents.head_dim, HEAD_DIM, BLOCK_N, DTYPE)
    if V_ROWS:
        v_map = heads_map(v, batches, extents.heads_kv, extents.seqlen_k, extents.head_dim, HEAD_DIM, BLOCK_N, DTYPE)
    else:
        v_map = columns_map(v, batches, extents.heads_kv, extents.seqlen_k, extents.head_dim, HEAD_DIM, BLOCK_N, DTYPE)
    tiling = Tiling(
        query_blocks, extents.heads, extents.heads // extents.heads_kv, batch, extents.seqlen_q, extents.seqlen_k,
        extents.max_seqlen_k, cu_seqlens_q, cu_seqlens_k, window, counter,
        paired(query_blocks * extents.heads * batch, BOUND_RIGHT and counter is None),
    )  # fmt: skip
    result = Result(out, lse, extents.head_dim)
    scoring = Scoring(Factors(q_scale, k_scale, v_scale), Features(None, None, None))
    q_ring = make_ring(GROUPS, DTYPE, q_map.block_shape, q_map.layout, 1)
    k_ring = make_ring(STAGES, DTYPE, k_map.block_shape, k_map.layout, GROUPS)
    if V_ROWS:
        COLUMNS: gl.constexpr = [1, 1, HEAD_DIM, BLOCK_N]
        LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for(COLUMNS, DTYPE)
        v_ring = make_ring(STAGES, DTYPE, v_map.block_shape, v_map.layout, 1)
        columns = make_ring(STAGES, DTYPE, COLUMNS, LAYOUT, GROUPS)
    else:
        v_ring = make_ring(STAGES, DTYPE, v_map.block_shape, v_map.layout, GROUPS)
        columns = Ring(None, None, None)
    buffers = Buffers(q_ring, k_ring, v_ring, columns)
    queue = make_queue(counter)
    # The first partition has the kernel's own warps, and the registers that the others leave.
    gl.warp_specialize([
        (attend_tiles, (result, scoring, buffers, tiling, queue, scale, BOUND_LEFT, BOUND_RIGHT, PADDED, PINGPONG,
                            GROUP_0)),
        (attend_tiles, (result, scoring, buffers, tiling, queue, scale, BOUND_LEFT, BOUND_RIGHT, PADDED, PINGPONG,
                            GROUP_1)),
        (load_tiles, (q_map, k_map, v_map, buffers, tiling, queue, BOUND_LEFT, BOUND_RIGHT, V_ROWS)),
    ], [4, 4 if V_ROWS else 1], [REGISTERS, 48 if V_ROWS else 24])  # fmt: skip
