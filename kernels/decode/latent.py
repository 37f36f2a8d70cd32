"""Append latent vectors and rotated keys to a cache of rows of both, and join the parts of the queries beside them."""

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.tensors import Matrices, Matrix, Vector, given
from kernels.decode.append import Angles, TokenRotation, angles_of, load_heads, load_rotated, quantise, store_heads


@triton.jit
def append_latents(
    c: Matrix, k_pe: Matrix, cache: Matrices, slots: Vector, weight, eps, scale, latent, rope, blocks, block_size,
    rotation: TokenRotation,
    q_latent: Matrices, q_pe: Matrices, q_out: Matrices, q_quantised: Matrices, q_scale: Vector, heads,
    LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_H: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Join c and the rotated k_pe of a token in its slot of a cache, or the two parts of its queries.

    Grid: (tokens, 1 + cdiv(heads, BLOCK_H)); the first one is for the cache, the others for queries.

    c: [tokens, latent], multiplied by `weight` after an RMS norm unless that is null; k_pe: [tokens, rope]; cache:
    [blocks, block_size, latent + rope], of 8 bits divided by scale, fp32 [1]. slots: int32 [tokens], block * block_size
    + place in it; a token whose slot is not in the cache is left out.

    q_latent: [tokens, heads, latent], or null; q_pe: [tokens, heads, rope]. They are joined, the second rotated, in
    q_out, if that is given, and in q_quantised, of the cache's dtype, divided by q_scale, fp32 [heads], null for 1.

    LATENT, ROPE: powers of two >= latent and rope.
    """
    await_earlier_launches()
    token, tile = tl.program_id(0), tl.program_id(1)
    angles = angles_of(token, rotation)
    if tile > 0:
        join_queries(
            q_latent, q_pe, q_out, q_quantised, q_scale, (tile - 1) * BLOCK_H, heads, token, angles, latent, rope,
            LATENT, ROPE, BLOCK_H, LARGEST,
        )  # fmt: skip
        return
    slot = tl.load(slots.ptr + token * slots.stride_rows)
    if slot < 0 or slot // block_size >= blocks:
        return
    at, columns, of_rope = tl.zeros([1], tl.int32), tl.arange(0, LATENT), tl.arange(0, ROPE)
    there = at == 0
    x = load_heads(c.ptr + token * c.stride_rows, at, columns, there, latent)
    if given(weight):
        gain = tl.load(weight + columns, columns < latent, 0.0).to(tl.float32)
        x *= tl.rsqrt(tl.sum(x * x, 1) / latent + eps)[:, None] * gain[None, :]
    pe = load_rotated(k_pe.ptr + token * k_pe.stride_rows, at, of_rope, there, rope, angles)
    dtype: tl.constexpr = cache.ptr.dtype.element_ty
    if dtype.primitive_bitwidth == 8:
        x = quantise(x, scale + at, there, dtype, False, LARGEST)
        pe = quantise(pe, scale + at, there, dtype, False, LARGEST)
    row = cache.ptr + slot // block_size * cache.stride_batch + slot % block_size * cache.stride_rows
    store_heads(x, row, at, columns, there, latent)
    store_heads(pe, row + latent, at, of_rope, there, rope)


@triton.jit
def join_queries(
    q_latent: Matrices, q_pe: Matrices, q_out: Matrices, q_quantised: Matrices, q_scale: Vector, first, heads, token,
    angles: Angles, latent, rope, LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_H: tl.constexpr,
    LARGEST: tl.constexpr,
):  # fmt: skip
    """Join the parts of the queries of BLOCK_H heads from `first` on; arguments as in `append_latents`."""
    dtype: tl.constexpr = q_quantised.ptr.dtype.element_ty
    head, columns, of_rope = first + tl.arange(0, BLOCK_H), tl.arange(0, LATENT), tl.arange(0, ROPE)
    there = head < heads
    latent_row, pe_row = q_latent.ptr + token * q_latent.stride_batch, q_pe.ptr + token * q_pe.stride_batch
    x = load_heads(latent_row, head * q_latent.stride_rows, columns, there, latent)
    pe = load_rotated(pe_row, head * q_pe.stride_rows, of_rope, there, rope, angles)
    if given(q_out.ptr):
        row, at = q_out.ptr + token * q_out.stride_batch, head * q_out.stride_rows
        store_heads(x, row, at, columns, there, latent)
        store_heads(pe, row + latent, at, of_rope, there, rope)
    if dtype.primitive_bitwidth == 8 and given(q_quantised.ptr):
        scales, scaled = q_scale.ptr + head * q_scale.stride_rows, there & given(q_scale.ptr)
        row, at = q_quantised.ptr + token * q_quantised.stride_batch, head * q_quantised.stride_rows
        x = quantise(x, scales, scaled, dtype, False, LARGEST)
        pe = quantise(pe, scales, scaled, dtype, False, LARGEST)
        store_heads(x, row, at, columns, there, latent)
        store_heads(pe, row + latent, at, of_rope, there, rope)
