"""Scaled dot-product attention, forward, of 8-bit tensors: `attention_forward` with a factor for each head."""

import triton
import triton.language as tl

from kernels.attention.forward import attend_tile, place
from kernels.attention.problem import Problem, Work, make_form
from kernels.common.tensors import Extents, HeadRows, Heads, HeadScalars, Window


@triton.jit
def attention_quantised(
    q: Heads, k: Heads, v: Heads, out: Heads, k_scale: HeadScalars, v_scale: HeadScalars, extents: Extents, work: Work,
    window: Window, scale,
    HEAD_DIM: tl.constexpr, BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_XCDS: tl.constexpr,
    # What an op need not have
    q_scale: HeadScalars = None, lse: HeadRows = None, bias: Heads = None, alibi_slopes: HeadScalars = None,
    cu_seqlens_q=None, cu_seqlens_k=None, softcap=0.0, sinks=None, out_scale=None, FEATURES: tl.constexpr = False,
    INT8_P: tl.constexpr = False, HAS_BF16_CVT: tl.constexpr = False,
):  # fmt: skip
    """out = softmax(scale * q k * q_scale * k_scale) v * v_scale, a program for each BLOCK_M queries of a head.

    Grid, masks, head dims and all else are as in `attention_forward`; the bias has any float dtype.

    q, k, v: all of int8, or all of one float8; or q of float16 or bfloat16, and k and v of an 8-bit dtype. out:
    float16, bfloat16 or float8. q_scale: fp32 [batch, heads], k_scale and v_scale: fp32 [batch, heads_kv], with
    strides, positive factors of the values. scale >= 0. out_scale: fp32 [1], with FEATURES only: divides the result;
    None or null: 1.

    Products of q and k are summed exactly where they are int8. Probabilities get the dtype that `attend` says; with
    INT8_P, of int8 tensors only, they are rounded to int8 as `attend_int8` says.
    """
    problem = Problem(
        q=q, k=k, v=v, out=out, lse=lse, extents=extents, window=window, scale=scale, q_scale=q_scale, k_scale=k_scale,
        v_scale=v_scale, bias=bias, alibi_slopes=alibi_slopes, softcap=softcap, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k, sinks=sinks, out_scale=out_scale,
    )  # fmt: skip
    form: tl.constexpr = make_form(
        HEAD_DIM, HEAD_DIM, PADDED, BLOCK_M, BLOCK_N, BOUND_LEFT, BOUND_RIGHT, FEATURES, HAS_BF16_CVT, INT8_P=INT8_P
    )
    LAST_FIRST: tl.constexpr = BOUND_RIGHT and not BOUND_LEFT
    block, head, batch = place(work.query_blocks, extents.heads, work.batch, LAST_FIRST, NUM_XCDS)
    attend_tile(block, head, batch, problem, form)
