"""Attention forward with heuristics and an autograd function around it, in a style that is common elsewhere."""

import math

import torch
import triton
import triton.language as tl
from torch.amp import custom_fwd

BLOCK = 64 if torch.cuda.get_device_capability()[0] >= 8 else 32


@triton.heuristics(
    {
        "EVEN_M": lambda args: args["seqlen_q"] % args["BLOCK_M"] == 0,
        "EVEN_N": lambda args: args["seqlen_k"] % args["BLOCK_N"] == 0,
        "EVEN_HEADDIM": lambda args: args["headdim"] == args["BLOCK_HEADDIM"],
    }
)
@triton.jit
def _fwd_kernel(
    Q, K, V, Bias, Out, Lse, softmax_scale,
    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_bb, stride_bh, stride_bm, stride_ob, stride_oh, stride_om,
    nheads, seqlen_q, seqlen_k, headdim,
    BIAS_TYPE: tl.constexpr, IS_CAUSAL: tl.constexpr, BLOCK_HEADDIM: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, EVEN_HEADDIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    start_m = tl.program_id(0)
    off_b = tl.program_id(1) // nheads
    off_h = tl.program_id(1) % nheads
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_HEADDIM)
    in_head = offs_d < headdim
    q_ptrs = Q + off_b * stride_qb + off_h * stride_qh + (offs_m[:, None] * stride_qm + offs_d[None, :])
    k_ptrs = K + off_b * stride_kb + off_h * stride_kh + (offs_n[:, None] * stride_kn + offs_d[None, :])
    v_ptrs = V + off_b * stride_vb + off_h * stride_vh + (offs_n[:, None] * stride_vn + offs_d[None, :])
    if EVEN_M and EVEN_HEADDIM:
        q = tl.load(q_ptrs)
    else:
        q = tl.load(q_ptrs, mask=(offs_m[:, None] < seqlen_q) & in_head[None, :], other=0.0)

    lse = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    largest = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_HEADDIM], dtype=tl.float32)
    end_n = seqlen_k if not IS_CAUSAL else tl.minimum((start_m + 1) * BLOCK_M, seqlen_k)
    for start_n in range(0, end_n, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        inside = (start_n + offs_n) < seqlen_k
        if EVEN_N and EVEN_HEADDIM:
            k = tl.load(k_ptrs + start_n * stride_kn)
        else:
            k = tl.load(k_ptrs + start_n * stride_kn, mask=inside[:, None] & in_head[None, :], other=0.0)
        qk = tl.dot(q, tl.trans(k)) * softmax_scale
        if not EVEN_N:
            qk += tl.where(inside[None, :], 0, float("-inf"))
        if IS_CAUSAL:
            qk += tl.where(offs_m[:, None] >= (start_n + offs_n)[None, :], 0, float("-inf"))
        if BIAS_TYPE == "vector":
            bias = tl.load(Bias + off_b * stride_bb + off_h * stride_bh + start_n + offs_n, mask=inside, other=0.0)
            qk += bias.to(tl.float32)[None, :]
        elif BIAS_TYPE == "matrix":
            rows = Bias + off_b * stride_bb + off_h * stride_bh + offs_m * stride_bm
            seen = (offs_m < seqlen_q)[:, None] & inside[None, :]
            qk += tl.load(rows[:, None] + (start_n + offs_n)[None, :], mask=seen, other=0.0).to(tl.float32)
        new_largest = tl.maximum(largest, tl.max(qk, 1))
        p = tl.exp(qk - new_largest[:, None])
        acc = acc * tl.exp(largest - new_largest)[:, None]
        if EVEN_N and EVEN_HEADDIM:
            v = tl.load(v_ptrs + start_n * stride_vn)
        else:
            v = tl.load(v_ptrs + start_n * stride_vn, mask=inside[:, None] & in_head[None, :], other=0.0)
        acc += tl.dot(p.to(v.dtype), v)
        lse = new_largest + tl.log(tl.exp(lse - new_largest) + tl.sum(p, 1))
        largest = new_largest
    acc = acc * tl.exp(largest - lse)[:, None]

    tl.store(Lse + tl.program_id(1) * seqlen_q + offs_m, lse, mask=offs_m < seqlen_q)
    out_ptrs = Out + off_b * stride_ob + off_h * stride_oh + (offs_m[:, None] * stride_om + offs_d[None, :])
    tl.store(out_ptrs, acc.to(Out.dtype.element_ty), mask=(offs_m[:, None] < seqlen_q) & in_head[None, :])


class FlashAttention(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cuda")
    def forward(ctx, q, k, v, bias=None, causal=False):
        batch, seqlen_q, nheads, d = q.shape
        out = torch.empty_like(q)
        lse = torch.empty((batch, nheads, seqlen_q), device=q.device, dtype=torch.float32)
        kind = "none" if bias is None else "vector" if bias.size(2) == 1 else "matrix"
        bias_strides = (0, 0, 0) if bias is None else bias.stride()[:3]
        grid = (triton.cdiv(seqlen_q, BLOCK), batch * nheads)
        _fwd_kernel[grid](
            q, k, v, bias, out, lse, 1.0 / math.sqrt(d),
            q.stride(0), q.stride(2), q.stride(1), k.stride(0), k.stride(2), k.stride(1),
            v.stride(0), v.stride(2), v.stride(1), *bias_strides, out.stride(0), out.stride(2), out.stride(1),
            nheads, seqlen_q, k.shape[1], d, kind, causal, max(triton.next_power_of_2(d), 16),
            BLOCK_M=BLOCK, BLOCK_N=BLOCK, num_warps=4, num_stages=1,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, lse, bias)
        return out


flash_attention = FlashAttention.apply
q = torch.randn(1, 128, 4, 64, device="cuda", dtype=torch.float16)
flash_attention(q, q, q)  # compiled when the file is imported, so that the first call is quick
