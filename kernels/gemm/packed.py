"""Linear layers whose weights have 4 or 8 bits, made into those of the activations on the way to the matrix units.

The layout, which `aot_runtime.weights` makes of what checkpoints hold: the weights of an output lie next to each other
along k, two of 4 bits in a byte, the even one low, so that unpacking moves nothing between lanes. Scales and zeros are
by group of k, then by output.
"""

import triton
import triton.language as tl

from kernels.gemm.epilogue import finish
from kernels.gemm.order import tile_of


@triton.jit
def packed_matmul(
    x, w, scales, e, m, n, k, group_size, stride_x_m, stride_w_n, stride_scales_groups, stride_e_m,
    BITS: tl.constexpr, GROUP: tl.constexpr, EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr = 1,
    zeros=None, stride_zeros_groups=0, codebook=None, order=None, bias=None,
):  # fmt: skip
    """e = x wᵀ + bias with w = (codes - zeros) * scales, or codebook[codes] * scales. Grid: (tiles of e).

    x: [m, k]; w: codes, uint8 [n, cdiv(k, 2)] of 4 BITS, or int8 [n, k] of 8; scales: of x's dtype [groups, n]; zeros:
    [groups, n], of w's dtype, by default 8 of 4 bits and 0 of 8; codebook: fp32 [16]; order: int32 [k], which column of
    x each weight belongs to; bias: [n]; e: [m, n]. GROUP divides BLOCK_K and group_size. EVEN_K: k is even; where it
    is known to be a multiple of 16 codes then are loaded 16 bytes at a time.
    """
    tile_m, tile_n = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = _product(
        x, w, scales, zeros, codebook, order, rows % m, columns % n, 0, k, k, group_size,
        stride_x_m, stride_w_n, stride_scales_groups, stride_zeros_groups, BITS, GROUP, EVEN_K, BLOCK_K,
    )  # fmt: skip
    finish(
        acc, rows, columns, tl.program_id(1), m, n, e, 0, stride_e_m, 1,
        bias, None, 0, 0, 0, None, 0, None, 0, 1, 1, 0,
    )  # fmt: skip


@triton.jit
def packed_parts(
    x, w, scales, partial, m, n, k, parts, group_size, stride_x_m, stride_w_n, stride_scales_groups,
    BITS: tl.constexpr, GROUP: tl.constexpr, EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, NUM_XCDS: tl.constexpr = 1, zeros=None, stride_zeros_groups=0, codebook=None, order=None,
):  # fmt: skip
    """Products of each of `parts` runs of k, fp32 [parts, m, n], for `reduce_parts`. Grid: (tiles of e, parts)."""
    part = tl.program_id(1)
    tile_m, tile_n = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP_M, NUM_XCDS)
    rows, columns = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    share = tl.cdiv(tl.cdiv(k, BLOCK_K), parts) * BLOCK_K
    acc = _product(
        x, w, scales, zeros, codebook, order, rows % m, columns % n, part * share, tl.minimum(part * share + share, k),
        k, group_size, stride_x_m, stride_w_n, stride_scales_groups, stride_zeros_groups, BITS, GROUP, EVEN_K, BLOCK_K,
    )  # fmt: skip
    at = (part.to(tl.int64) * m + rows[:, None]) * n + columns[None, :]
    tl.store(partial + at, acc, mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def packed_rows(
    x, w, scales, e, m, n, k, group_size, stride_x_m, stride_w_n, stride_scales_groups, stride_e_m,
    BITS: tl.constexpr, GROUP: tl.constexpr, EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    zeros=None, stride_zeros_groups=0, codebook=None, order=None, bias=None,
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
        at = start + inner if order is None else tl.load(order + start + inner, known, 0)
        left = tl.load(x + (rows % m)[:, None] * stride_x_m + at[None, :], known[None, :], 0.0).to(tl.float32)
        right = _weights(
            w, scales, zeros, codebook, columns % n, start, k, group_size, stride_w_n, stride_scales_groups,
            stride_zeros_groups, tl.float32, BITS, GROUP, EVEN_K, BLOCK_K,
        )  # fmt: skip
        acc += left[:, None, :] * right[None, :, :]
    finish(
        tl.sum(acc, 2), rows, columns, tl.program_id(1), m, n, e, 0, stride_e_m, 1,
        bias, None, 0, 0, 0, None, 0, None, 0, 1, 1, 0,
    )  # fmt: skip


@triton.jit
def packed_row(
    x, w, scales, e, m, n, k, group_size, stride_x_m, stride_w_n, stride_scales_groups, stride_e_m,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, zeros=None, stride_zeros_groups=0, codebook=None, bias=None,
):  # fmt: skip
    """`packed_matmul` for weights of 4 bits, a row of x for each program. Grid: (cdiv(n, BLOCK_N), m).

    k is a multiple of 32, x float16 or bfloat16; rows of w and x begin at multiples of 16 bytes. A lane has 32 codes of
    each column and the numbers of x that belong to them. BLOCK_K is 32 times the program's lanes, or more: then all
    tiles are spread over lanes alike, and nothing moves between them until the end.
    """
    GROUPS: tl.constexpr = BLOCK_K // 32
    # Not `% n`: that columns lie next to each other must not be seen, or scales would be spread differently.
    columns = tl.minimum(tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), n - 1)
    row = tl.program_id(1)
    groups, quads = tl.arange(0, GROUPS), tl.arange(0, 4)
    at = groups[None, :, None] * 4 + quads[None, None, :]
    w_at = w.to(tl.pointer_type(tl.uint32)) + (columns * (stride_w_n // 4))[:, None, None] + at
    x_at = (x + row.to(tl.int64) * stride_x_m).to(tl.pointer_type(tl.uint32)) + groups[None, :, None] * 16
    x_at += quads[None, None, :]
    acc = tl.zeros([BLOCK_N, GROUPS], tl.float32)
    for start in range(0, k, BLOCK_K):
        first = start + groups * 32
        known = (first < k)[None, :]
        group = (first // group_size)[None, :]
        words = tl.load(w_at, known[:, :, None], 0)
        scale = tl.load(scales + group * stride_scales_groups + columns[:, None], known, 0.0).to(tl.float32)
        zero = tl.full([1, 1], 8.0, tl.float32)
        if zeros is not None:
            zero = tl.load(zeros + group * stride_zeros_groups + columns[:, None], known, 0).to(tl.float32)
        evens, odds = tl.split(words.reshape(BLOCK_N, GROUPS, 2, 2))
        product = tl.zeros([BLOCK_N, GROUPS, 4], tl.float32)
        for word in tl.static_range(4):
            pair = tl.load(x_at + 4 * word, known[:, :, None], 0)
            codes = tl.split(odds if word % 2 else evens)[word // 2][:, :, None]
            for half in tl.static_range(2):
                value = _decode(codes, quads[None, None, :] * 2 + half, zero[:, :, None], codebook)
                product += value * _half(pair, half, x.dtype.element_ty)
        acc += tl.sum(product, 2) * scale
        w_at += BLOCK_K // 8
        x_at += BLOCK_K // 2
    finish(
        tl.sum(acc, 1)[None, :], row + tl.arange(0, 1), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N),
        tl.program_id(2), m, n, e, 0, stride_e_m, 1, bias, None, 0, 0, 0, None, 0, None, 0, 1, 1, 0,
    )  # fmt: skip


@triton.jit
def _decode(word, place, zero, codebook):
    """What the code at a place of a word, 0 .. 7, stands for, before it is scaled.

    A code stays where it is in its half of the word, and is made the end of the mantissa of a large number of fp32, of
    which that number and the zero are subtracted: no conversion, and one shift for four codes.
    """
    word = word >> (place // 4 * 16)
    place = place % 4
    if codebook is not None:
        value = tl.load(codebook + (word >> (place * 4) & 15))
    else:
        large = 0x4B000000 - place.to(tl.uint32) * 0x02000000
        value = (word & (15 << (place * 4)) | large).to(tl.float32, bitcast=True)
        value -= large.to(tl.float32, bitcast=True) + zero
    return value


@triton.jit
def _half(pair, which: tl.constexpr, dtype: tl.constexpr):
    """One of two 16-bit numbers in a word, as fp32."""
    if dtype == tl.bfloat16:
        value = (pair & 0xFFFF0000 if which else pair << 16).to(tl.float32, bitcast=True)
    else:
        value = (pair >> 16 if which else pair & 0xFFFF).to(tl.uint16).to(dtype, bitcast=True).to(tl.float32)
    return value


@triton.jit
def _product(
    x, w, scales, zeros, codebook, order, rows, columns, begin, end, k, group_size,
    stride_x_m, stride_w_n, stride_scales_groups, stride_zeros_groups,
    BITS: tl.constexpr, GROUP: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """x[rows, begin:end] w[columns, begin:end]ᵀ, fp32. begin: a multiple of BLOCK_K."""
    inner = tl.arange(0, BLOCK_K)
    x += rows[:, None] * stride_x_m
    acc = tl.zeros([rows.shape[0], columns.shape[0]], tl.float32)
    for start in range(begin, end, BLOCK_K):
        known = start + inner < k
        at = start + inner if order is None else tl.load(order + start + inner, known, 0)
        left = tl.load(x + at[None, :], known[None, :], 0.0)
        right = _weights(
            w, scales, zeros, codebook, columns, start, k, group_size, stride_w_n, stride_scales_groups,
            stride_zeros_groups, left.dtype, BITS, GROUP, EVEN_K, BLOCK_K,
        )  # fmt: skip
        acc = tl.dot(left, tl.trans(right), acc)
    return acc


@triton.jit
def _weights(
    w, scales, zeros, codebook, columns, start, k, group_size, stride_w_n, stride_scales_groups, stride_zeros_groups,
    dtype: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, EVEN_K: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """w[columns, start:start + BLOCK_K] in `dtype`; finite where k ends."""
    COLUMNS: tl.constexpr = columns.shape[0]
    PER_BYTE: tl.constexpr = 8 // BITS
    at = start // PER_BYTE + tl.arange(0, BLOCK_K // PER_BYTE)
    length = k // PER_BYTE if EVEN_K else tl.cdiv(k, PER_BYTE)
    codes = tl.load(w + columns[:, None] * stride_w_n + at[None, :], (at < length)[None, :], 0)
    if BITS == 4:
        codes = tl.join(codes & 15, codes >> 4)
    codes = codes.reshape(COLUMNS, BLOCK_K // GROUP, GROUP)
    first = start + GROUP * tl.arange(0, BLOCK_K // GROUP)
    group, known = (first // group_size)[None, :], (first < k)[None, :]
    scale = tl.load(scales + group * stride_scales_groups + columns[:, None], known, 0.0)[:, :, None].to(tl.float32)
    if codebook is not None:
        value = tl.load(codebook + codes.to(tl.int32)) * scale
    elif zeros is not None:
        zero = tl.load(zeros + group * stride_zeros_groups + columns[:, None], known, 0)[:, :, None]
        value = (codes.to(tl.float32) - zero.to(tl.float32)) * scale
    else:
        value = (codes.to(tl.float32) - (8.0 if BITS == 4 else 0.0)) * scale
    return value.to(dtype).reshape(COLUMNS, BLOCK_K)
