"""Linear layers with weights of 4 or 8 bits, which are dequantised on the way to the matrix units.

`aot_models.quantise` converts checkpoints to the layout: the weights of an output lie next to each other along k,
 two of 4 bits in a byte, the even one low, so that unpacking moves nothing between lanes. Scales and zeros are
by group of k, then by output.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.common.tensors import Matrix, given
from kernels.gemm.epilogue import Epilogue, finish
from kernels.gemm.matmul import part_of, store_part
from kernels.gemm.order import tile_of
from kernels.gemm.w4a8 import codes_of, columns_of_x, product_of_codes

GROUP: tl.constexpr = tl.constexpr(32)
"""Weights along k that are certain to share a scale: divides `group_size` if there are several groups."""


class Weights(NamedTuple):
    """w = (codes - zeros) * scales, or codebook[codes] * scales, of [n, k].

    w: codes, uint8 [n, cdiv(k, 2)] of 4 bits, or int8 or float8 [n, k] of 8; scales: of the activations' dtype [groups,
    n]; zeros: [groups, n], of w's dtype; codebook: fp32 [16]. group_size: weights along k that share a scale.

    CODES: `offset`: neither zeros nor a codebook, and 8 is subtracted from 4-bit codes; `zeros`; `codebook`; `any`:
        zeros and codebook are tested at run time, and may be null. EVEN_K: k is even; if it is known to be a multiple
        of 16, codes are loaded 16 bytes at a time.
    """

    w: tl.tensor
    stride_w_n: tl.tensor
    scales: tl.tensor
    stride_scales_groups: tl.tensor
    zeros: tl.tensor
    stride_zeros_groups: tl.tensor
    group_size: tl.tensor
    CODES: tl.constexpr
    EVEN_K: tl.constexpr
    codebook: tl.tensor = None


@triton.jit
def packed_matmul(
    x: Matrix, weights: Weights, e: Matrix, epilogue: Epilogue, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr = 1, order=None,
):  # fmt: skip
    """e = epilogue(x wᵀ). Grid: (tiles of e).

    x: [m, k]; e: [m, n]. order: int32 [k], or a null pointer: which column of x each weight belongs to; only CODES of
    `any` look at it. GROUP divides BLOCK_K.
    """
    tile_m, tile_n = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = packed_product(x, weights, order, rows % m, columns % n, 0, k, k, BLOCK_K)
    finish(acc, rows, columns, tl.program_id(1), m, n, e, epilogue)


@triton.jit
def packed_parts(
    x: Matrix, weights: Weights, partial, m, n, k, parts,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr = 1, order=None,
):  # fmt: skip
    """Multiply each of `parts` runs of k, fp32 [parts, m, n], for `reduce_parts`. Grid: (tiles of e, parts)."""
    part = tl.program_id(1)
    tile_m, tile_n = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    begin, end = part_of(k, part, parts, BLOCK_K)
    acc = packed_product(x, weights, order, rows % m, columns % n, begin, end, k, BLOCK_K)
    store_part(acc, rows, columns, part, m, n, partial)


@triton.jit
def packed_rows(
    x: Matrix, weights: Weights, e: Matrix, epilogue: Epilogue, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, order=None,
):  # fmt: skip
    """`packed_matmul` for at most BLOCK_M rows, without matrix units. Grid: (cdiv(n, BLOCK_N)).

    Each code is used where it was loaded, and the sums of all lanes are added at the end.
    """
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.arange(0, BLOCK_M)
    inner = tl.arange(0, BLOCK_K)
    acc = tl.zeros([BLOCK_M, BLOCK_N, BLOCK_K], tl.float32)
    for start in range(0, k, BLOCK_K):
        known = start + inner < k
        at = columns_of_x(weights, order, start + inner, known)
        left = tl.load(x.ptr + (rows % m)[:, None] * x.stride_rows + at[None, :], known[None, :], 0.0).to(tl.float32)
        right = _weights(weights, columns % n, start, k, tl.float32, BLOCK_K)
        acc += left[:, None, :] * right[None, :, :]
    finish(tl.sum(acc, 2), rows, columns, tl.program_id(1), m, n, e, epilogue)


@triton.jit
def packed_row(
    x: Matrix, weights: Weights, e: Matrix, epilogue: Epilogue, m, n, k, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    """`packed_matmul` for weights of 4 bits, a row of x for each program. Grid: (cdiv(n, BLOCK_N), m).

    k is a multiple of 32, x float16 or bfloat16; rows of w and x begin at multiples of 16 bytes; CODES are not `any`. A
    lane has 32 codes of each column and the elements of x that belong to them. BLOCK_K is 32 times the program's lanes,
    or more: then all tiles are spread over lanes alike, and nothing moves between them until the end.
    """
    GROUPS: tl.constexpr = BLOCK_K // 32
    # Not `% n`: that columns lie next to each other must not be seen, or scales would be spread differently.
    columns = tl.minimum(tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), n - 1)
    row = tl.program_id(1)
    groups, quads = tl.arange(0, GROUPS), tl.arange(0, 4)
    at = groups[None, :, None] * 4 + quads[None, None, :]
    w_at = weights.w.to(tl.pointer_type(tl.uint32)) + (columns * (weights.stride_w_n // 4))[:, None, None] + at
    x_at = (x.ptr + row.to(tl.int64) * x.stride_rows).to(tl.pointer_type(tl.uint32)) + groups[None, :, None] * 16
    x_at += quads[None, None, :]
    acc = tl.zeros([BLOCK_N, GROUPS], tl.float32)
    for start in range(0, k, BLOCK_K):
        first = start + groups * 32
        known = (first < k)[None, :]
        group = (first // weights.group_size)[None, :]
        words = tl.load(w_at, known[:, :, None], 0)
        scale_at = weights.scales + group * weights.stride_scales_groups + columns[:, None]
        scale = tl.load(scale_at, known, 0.0).to(tl.float32)
        zero = tl.full([1, 1], 8.0, tl.float32)
        if weights.CODES == "zeros":
            zero_at = weights.zeros + group * weights.stride_zeros_groups + columns[:, None]
            zero = tl.load(zero_at, known, 0).to(tl.float32)
        evens, odds = tl.split(words.reshape(BLOCK_N, GROUPS, 2, 2))
        product = tl.zeros([BLOCK_N, GROUPS, 4], tl.float32)
        for word in tl.static_range(4):
            pair = tl.load(x_at + 4 * word, known[:, :, None], 0)
            codes = tl.split(odds if word % 2 else evens)[word // 2][:, :, None]
            for half in tl.static_range(2):
                value = _decode(codes, quads[None, None, :] * 2 + half, zero[:, :, None], weights)
                product += value * _half(pair, half, x.ptr.dtype.element_ty)
        acc += tl.sum(product, 2) * scale
        w_at += BLOCK_K // 8
        x_at += BLOCK_K // 2
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    finish(tl.sum(acc, 1)[None, :], row + tl.arange(0, 1), columns, tl.program_id(2), m, n, e, epilogue)


@triton.jit
def _decode(word, place, zero, weights):
    """Decode the code at place 0 .. 7 of a word, unscaled.

    A code stays where it is in its half of the word and becomes the end of the mantissa of a large fp32 value, which is
    then subtracted, together with the zero: no conversion, and one shift for four codes.
    """
    word = word >> (place // 4 * 16)
    place = place % 4
    if weights.CODES == "codebook":
        value = tl.load(weights.codebook + (word >> (place * 4) & 15))
    else:
        large = 0x4B000000 - place.to(tl.uint32) * 0x02000000
        value = (word & (15 << (place * 4)) | large).to(tl.float32, bitcast=True)
        value -= large.to(tl.float32, bitcast=True) + zero
    return value


@triton.jit
def _half(pair, which: tl.constexpr, dtype: tl.constexpr):
    """Convert one of two 16-bit values in a word to fp32."""
    if dtype == tl.bfloat16:
        value = (pair & 0xFFFF0000 if which else pair << 16).to(tl.float32, bitcast=True)
    else:
        value = (pair >> 16 if which else pair & 0xFFFF).to(tl.uint16).to(dtype, bitcast=True).to(tl.float32)
    return value


@triton.jit
def packed_product(x, weights, order, rows, columns, begin, end, k, BLOCK_K: tl.constexpr):
    """x[rows, begin:end] w[columns, begin:end]ᵀ, fp32. begin: a multiple of BLOCK_K."""
    if x.ptr.dtype.element_ty.primitive_bitwidth == 8:
        acc = product_of_codes(x, weights, order, rows, columns, begin, end, k, BLOCK_K)
    else:
        inner = tl.arange(0, BLOCK_K)
        row_at = x.ptr + rows[:, None] * x.stride_rows
        acc = tl.zeros([rows.shape[0], columns.shape[0]], tl.float32)
        for start in range(begin, end, BLOCK_K):
            known = start + inner < k
            at = columns_of_x(weights, order, start + inner, known)
            left = tl.load(row_at + at[None, :], known[None, :], 0.0)
            right = _weights(weights, columns, start, k, left.dtype, BLOCK_K)
            acc = tl.dot(left, tl.trans(right), acc)
    return acc


@triton.jit
def _weights(weights, columns, start, k, dtype: tl.constexpr, BLOCK_K: tl.constexpr):
    """w[columns, start:start + BLOCK_K] in `dtype`; finite where k ends."""
    COLUMNS: tl.constexpr = columns.shape[0]
    OFFSET: tl.constexpr = 8.0 if weights.w.dtype.element_ty == tl.uint8 else 0.0
    codes = codes_of(weights, columns, start, k, BLOCK_K).reshape(COLUMNS, BLOCK_K // GROUP, GROUP)
    first = start + GROUP * tl.arange(0, BLOCK_K // GROUP)
    group, known = (first // weights.group_size)[None, :], (first < k)[None, :]
    scale_at = weights.scales + group * weights.stride_scales_groups + columns[:, None]
    scale = tl.load(scale_at, known, 0.0)[:, :, None].to(tl.float32)
    if weights.CODES == "codebook":
        value = tl.load(weights.codebook + codes.to(tl.int32))
    elif weights.CODES == "offset":
        value = codes.to(tl.float32) - OFFSET
    else:
        zero_at = weights.zeros + group * weights.stride_zeros_groups + columns[:, None]
        if weights.CODES == "any":
            zero = tl.load(zero_at, known & given(weights.zeros), 0).to(tl.float32)
            zero = tl.where(given(weights.zeros), zero, OFFSET)
        else:
            zero = tl.load(zero_at, known, 0).to(tl.float32)
        value = codes.to(tl.float32) - zero[:, :, None]
        if weights.CODES == "any" and weights.codebook is not None:
            of_codebook = tl.load(weights.codebook + codes.to(tl.int32), given(weights.codebook), 0.0)
            value = tl.where(given(weights.codebook), of_codebook, value)
    return (value * scale).to(dtype).reshape(COLUMNS, BLOCK_K)
