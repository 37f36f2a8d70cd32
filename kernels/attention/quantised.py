"""Scaled dot-product attention, forward, of 8-bit tensors: `attention_forward` with a factor for each head."""

import triton
import triton.language as tl

from kernels.attention.forward import Problem, attend_tile, place
from kernels.attention.inner import Matrix, make_form


@triton.jit
def attention_quantised(
    q, k, v, out, k_scale, v_scale,
    heads, heads_kv, seqlen_q, seqlen_k, head_dim,
    stride_q_batch, stride_q_heads, stride_q_seqlen_q,
    stride_k_batch, stride_k_heads_kv, stride_k_seqlen_k,
    stride_v_batch, stride_v_heads_kv, stride_v_seqlen_k,
    stride_out_batch, stride_out_heads, stride_out_seqlen_q,
    stride_k_scale_batch, stride_k_scale_heads_kv, stride_v_scale_batch, stride_v_scale_heads_kv,
    query_blocks, scale, left, right, bottom_right,
    HEAD_DIM: tl.constexpr, BOUND_LEFT: tl.constexpr, BOUND_RIGHT: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_XCDS: tl.constexpr,
    # What an op need not have
    q_scale=None, stride_q_scale_batch=0, stride_q_scale_heads=0,
    lse=None, stride_lse_batch=0, stride_lse_heads=0, stride_lse_seqlen_q=0,
    stride_v_head_dim=1,
    INT8_P: tl.constexpr = False, HAS_BF16_CVT: tl.constexpr = False,
):  # fmt: skip
    """out = softmax(scale * q k * q_scale * k_scale) v * v_scale, a program for each BLOCK_M queries of a head.

    Grid, masks, head dims and what is not said here are as in `attention_forward`.

    q, k, v: all of int8, or all of one float8; or q of float16 or bfloat16, and k and v of an 8-bit dtype. out: float16
    or bfloat16. q_scale: fp32 [batch, heads], k_scale and v_scale: fp32 [batch, heads_kv], with strides, positive; what
    the numbers are to be multiplied by. scale >= 0.

    Products of q and k are summed exactly where they are int8. Probabilities get the dtype that `attend` says; with
    INT8_P, of int8 tensors only, they are rounded to int8 as `attend_int8` says.
    """
    problem = Problem(
        Matrix(q, stride_q_batch, stride_q_heads, stride_q_seqlen_q, 1),
        Matrix(k, stride_k_batch, stride_k_heads_kv, stride_k_seqlen_k, 1),
        Matrix(v, stride_v_batch, stride_v_heads_kv, stride_v_seqlen_k, stride_v_head_dim),
        Matrix(out, stride_out_batch, stride_out_heads, stride_out_seqlen_q, 1),
        Matrix(lse, stride_lse_batch, stride_lse_heads, stride_lse_seqlen_q, 0),
        Matrix(None, 0, 0, 0, 0), Matrix(None, 0, 0, 0, 0),
        Matrix(q_scale, stride_q_scale_batch, stride_q_scale_heads, 0, 0),
        Matrix(k_scale, stride_k_scale_batch, stride_k_scale_heads_kv, 0, 0),
        Matrix(v_scale, stride_v_scale_batch, stride_v_scale_heads_kv, 0, 0),
        None, None, heads // heads_kv, seqlen_q, seqlen_k, head_dim, head_dim, scale, left, right, bottom_right,
        None, (), (),
    )  # fmt: skip
    form: tl.constexpr = make_form(
        HEAD_DIM, HEAD_DIM, PADDED, BLOCK_M, BLOCK_N, BOUND_LEFT, BOUND_RIGHT, HAS_BF16_CVT, INT8_P=INT8_P
    )
    block, head = place(query_blocks, heads, BOUND_RIGHT and not BOUND_LEFT, NUM_XCDS)
    attend_tile(block, head, tl.program_id(2), problem, form)
