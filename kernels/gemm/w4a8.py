"""W4A8: products of 8-bit activations and the codes of packed weights.

As in QServe (Lin et al., arXiv 2405.04532), 8-bit operands are multiplied within a group of weights, and the group's
sum is scaled. QServe has two levels of scales; here there is one, of floats, as GPTQ and AWQ store them.
"""

import triton
import triton.language as tl

from kernels.common.tensors import given
from kernels.gemm.product import dot

MIDDLE: tl.constexpr = tl.constexpr(8)
"""4-bit code that means 0 if there are no zeros."""


@triton.jit
def columns_of_x(weights, order, at, known):
    """Return the columns of x that the weights at places of k belong to."""
    if weights.CODES == "any" and order is not None:
        at = tl.where(given(order), tl.load(order + at, known & given(order), 0), at)
    return at


@triton.jit
def codes_of(weights, columns, start, k, BLOCK_K: tl.constexpr):
    """Load the codes of w[columns, start:start + BLOCK_K]; zeros past the end of k, or one byte after it.

    Codes of 4 bits are [columns, BLOCK_K // 2, 2], codes of 8 bits [columns, BLOCK_K].
    """
    PER_BYTE: tl.constexpr = 2 if weights.w.dtype.element_ty == tl.uint8 else 1
    at = start // PER_BYTE + tl.arange(0, BLOCK_K // PER_BYTE)
    length = k // PER_BYTE if weights.EVEN_K else tl.cdiv(k, PER_BYTE)
    nothing: tl.constexpr = 0.0 if weights.w.dtype.element_ty.is_fp8() else 0
    codes = tl.load(weights.w + columns[:, None] * weights.stride_w_n + at[None, :], (at < length)[None, :], nothing)
    if PER_BYTE == 2:
        codes = tl.join(codes & 15, codes >> 4)
    return codes


@triton.jit
def product_of_codes(x, weights, order, rows, columns, begin, end, k, BLOCK_K: tl.constexpr):
    """x[rows, begin:end] w[columns, begin:end]ᵀ, fp32, with 8-bit x and 4-bit codes. begin: a multiple of BLOCK_K.

    Codes less their zeros, -16 .. 15, are exact in int8 and in float8 with 3 bits of mantissa. Products with int8 are
    summed in int32 over a block of k, which is exact; those sums are scaled, and added in fp32. BLOCK_K divides
    `group_size`, where there are several groups, and k, if CODES are not `any`. Zeros: 0 .. 16; or a null pointer.
    """
    inner = tl.arange(0, BLOCK_K)
    row_at = x.ptr + rows[:, None] * x.stride_rows
    wide: tl.constexpr = tl.int32 if x.ptr.dtype.element_ty.is_int() else tl.float32
    acc = tl.zeros([rows.shape[0], columns.shape[0]], tl.float32)
    group = begin // weights.group_size
    for start in range(begin, end, BLOCK_K):
        group += (start == (group + 1) * weights.group_size).to(tl.int32)
        scale = tl.load(weights.scales + group * weights.stride_scales_groups + columns).to(tl.float32)
        zero_at = weights.zeros + group * weights.stride_zeros_groups + columns
        zero = tl.load(zero_at, given(weights.zeros), MIDDLE)
        if weights.CODES == "any":
            known = start + inner < k
            at = columns_of_x(weights, order, start + inner, known)
            left = tl.load(row_at + at[None, :], known[None, :], 0.0)
        else:
            left = tl.load(row_at + (start + inner)[None, :])
        right = _less_zeros(weights, columns, zero, start, k, left.dtype, BLOCK_K)
        block = dot(left, tl.trans(right), tl.zeros([rows.shape[0], columns.shape[0]], wide), "ieee")
        acc += block.to(tl.float32) * scale[None, :]
    return acc


@triton.jit
def _less_zeros(weights, columns, zero, start, k, dtype: tl.constexpr, BLOCK_K: tl.constexpr):
    """Subtract the zero of each column from the codes of w[columns, start:start + BLOCK_K], in int8 or float8.

    If CODES are not `any`, BLOCK_K divides k, and rows of w begin at multiples of 4 bytes.
    """
    COLUMNS: tl.constexpr = columns.shape[0]
    if weights.CODES == "any":
        codes, zero = codes_of(weights, columns, start, k, BLOCK_K), zero[:, None, None]
        value = codes.to(tl.int8) - zero.to(tl.int8)
    else:
        at = start // 8 + tl.arange(0, BLOCK_K // 8)
        w_at = weights.w.to(tl.pointer_type(tl.uint32)) + columns[:, None] * (weights.stride_w_n // 4) + at[None, :]
        words = tl.load(w_at)
        zeros = zero.to(tl.uint32)[:, None] * 0x01010101
        value = tl.join(_bytes_less(words, zeros), _bytes_less(words >> 4, zeros))
    value = value.reshape(COLUMNS, BLOCK_K)
    return value if dtype == tl.int8 else value.to(tl.float32).to(dtype)


@triton.jit
def _bytes_less(words, zeros):
    """Subtract the bytes of zeros from the low halves of the bytes of words: int8 [.., 2, 2].

    128 is added to each byte before and removed after, so that no borrow reaches the next byte.
    """
    less = ((words & 0x0F0F0F0F | 0x80808080) - zeros) ^ 0x80808080
    first, second = tl.join(less, less >> 16), tl.join(less >> 8, less >> 24)
    return tl.join(first, second).to(tl.uint8).to(tl.int8, bitcast=True)
