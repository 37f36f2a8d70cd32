"""A gated linear recurrence, h[t] = a[t] h[t - 1] + x[t], over a sequence in chunks: three launches."""

import sys

import torch
import triton
import triton.language as tl

if not torch.cuda.is_available():
    print("no GPU: the recurrence would be slow")
    sys.exit(1)


@triton.jit
def combine(a_left, h_left, a_right, h_right):
    return a_left * a_right, a_right * h_left + h_right


@triton.jit
def chunk_scan_kernel(
    x_ptr, a_ptr, h_ptr, total_ptr, T, D, stride_b, stride_t, n_chunks, CHUNK: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Each chunk by itself, from h = 0; the product of its gates."""
    chunk, batch = tl.program_id(0), tl.program_id(1)
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    t = chunk * CHUNK + tl.arange(0, CHUNK)
    offsets = batch * stride_b + t[:, None] * stride_t + d[None, :]
    inside = (t < T)[:, None] & (d < D)[None, :]
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(a_ptr + offsets, mask=inside, other=1.0).to(tl.float32)
    products, h = tl.associative_scan((a, x), 0, combine)
    tl.store(h_ptr + offsets, h.to(h_ptr.dtype.element_ty), mask=inside)
    last = tl.arange(0, CHUNK)[:, None] == CHUNK - 1
    totals = total_ptr + ((batch * n_chunks + chunk) * 2) * D + d
    tl.store(totals, tl.sum(tl.where(last, products, 0.0), 0), mask=d < D)
    tl.store(totals + D, tl.sum(tl.where(last, h, 0.0), 0), mask=d < D)


@triton.jit
def carry_kernel(total_ptr, carry_ptr, D, n_chunks, BLOCK_D: tl.constexpr):
    """What enters each chunk, one after the other."""
    batch = tl.program_id(0)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    h = tl.zeros([BLOCK_D], tl.float32)
    for chunk in range(n_chunks):
        tl.store(carry_ptr + (batch * n_chunks + chunk) * D + d, h, mask=d < D)
        totals = total_ptr + ((batch * n_chunks + chunk) * 2) * D + d
        h = tl.load(totals, mask=d < D, other=0.0) * h + tl.load(totals + D, mask=d < D, other=0.0)


@triton.jit
def add_carry_kernel(
    a_ptr, h_ptr, carry_ptr, T, D, stride_b, stride_t, n_chunks, CHUNK: tl.constexpr, BLOCK_D: tl.constexpr
):
    chunk, batch = tl.program_id(0), tl.program_id(1)
    d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    t = chunk * CHUNK + tl.arange(0, CHUNK)
    offsets = batch * stride_b + t[:, None] * stride_t + d[None, :]
    inside = (t < T)[:, None] & (d < D)[None, :]
    gates = tl.cumprod(tl.load(a_ptr + offsets, mask=inside, other=1.0).to(tl.float32), 0)
    carry = tl.load(carry_ptr + (batch * n_chunks + chunk) * D + d, mask=d < D, other=0.0)
    h = tl.load(h_ptr + offsets, mask=inside, other=0.0).to(tl.float32) + gates * carry[None, :]
    tl.store(h_ptr + offsets, h.to(h_ptr.dtype.element_ty), mask=inside)


def scan(x, a, chunk=64, block_d=32):
    B, T, D = x.shape
    assert x.stride() == a.stride() and x.is_contiguous()
    n_chunks = triton.cdiv(T, chunk)
    h = torch.empty_like(x, dtype=torch.float32)
    totals = torch.empty((B, n_chunks, 2, D), device=x.device, dtype=torch.float32)
    carry = torch.empty((B, n_chunks, D), device=x.device, dtype=torch.float32)
    blocks = triton.cdiv(D, block_d)
    shape = (T, D, x.stride(0), x.stride(1), n_chunks, chunk, block_d)
    chunk_scan_kernel[(n_chunks, B, blocks)](x, a, h, totals, *shape)
    carry_kernel[(B, blocks)](totals, carry, D, n_chunks, block_d)
    add_carry_kernel[(n_chunks, B, blocks)](a, h, carry, *shape)
    return h


if __name__ == "__main__":
    x, a = (torch.rand((2, 1000, 96), device="cuda") for _ in range(2))
    h = torch.zeros(2, 96, device="cuda")
    for t in range(1000):
        h = a[:, t] * h + x[:, t]
    print("largest error", (scan(x, a)[:, -1] - h).abs().max().item())
