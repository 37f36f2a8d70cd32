"""Matrix products in numpy: the exact result, and the result in the kernels' dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from kernels.rows.reference import largest

Array = np.ndarray

LEAK = 0.01
ROOT_2_BY_PI = math.sqrt(2 / math.pi)


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "relu": lambda x: np.where(x < 0, x.dtype.type(0), x),
    "leaky_relu": lambda x: np.where(x < 0, x.dtype.type(LEAK) * x, x),
    "gelu": lambda x: x * (1 + _erf(x * x.dtype.type(math.sqrt(0.5)))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(x * x.dtype.type(ROOT_2_BY_PI) * (1 + x.dtype.type(0.044715) * x * x))) / 2,
    "silu": lambda x: x * _sigmoid(x),
}


def matmul(
    a: Array, b: Array, bias: Array | None = None, d: Array | None = None, alpha: float = 1, beta: float = 1,
    activation: str = "none",
) -> Array:  # fmt: skip
    """act(alpha * a b + bias + beta * d) in float64.

    a: [.., m, k], b: [.., k, n], any dtype; bias: [n]; d: broadcast to the result. Returns [.., m, n].
    """
    return _finish(a.astype(np.float64) @ b.astype(np.float64), bias, d, alpha, beta, activation)


def matmul_same_dtype(
    a: Array, b: Array, bias: Array | None = None, d: Array | None = None, alpha: float = 1, beta: float = 1,
    activation: str = "none", precision: str = "ieee",
) -> Array:  # fmt: skip
    """`matmul` as hardware does it: summed in fp32, one element of k after the other, then rounded to a's dtype."""
    operands = [x.astype(np.float32) for x in (a, b)]
    if precision == "tf32":
        operands = [to_tf32(x) for x in operands]
    with np.errstate(over="ignore", invalid="ignore"):
        value = _finish(sum_in_order(*operands), bias, d, np.float32(alpha), np.float32(beta), activation)
        return value.astype(a.dtype)


def matmul_float32(a: Array, b: Array, bias: Array | None = None) -> Array:
    """`matmul` with a bias."""
    return matmul(a, b, bias)


def matmul_float32_same_dtype(a: Array, b: Array, bias: Array | None = None) -> Array:
    """`matmul_float32` as hardware does it: not rounded after the sum in fp32."""
    return matmul_same_dtype(a.astype(np.float32), b.astype(np.float32), bias)


def sum_in_order(a: Array, b: Array) -> Array:
    """a b of fp32 matrices, each element of the result summed from one to the next along k."""
    acc = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.float32)
    for i in range(a.shape[-1]):
        acc += a[..., :, i, None] * b[..., i, None, :]
    return acc


def to_tf32(x: Array) -> Array:
    """Truncate fp32 to 10 bits of mantissa, as matrix units do."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def integer_matmul(a: Array, b: Array, d: Array | None = None, alpha: int = 1, beta: int = 1) -> Array:
    """alpha * a b + beta * d of integers, int64. a: [m, k], b: [k, n]; d: broadcast to the result."""
    value = alpha * integer_product(a, b)
    return value if d is None else value + beta * d.astype(np.int64)


def integer_matmul_same_dtype(a: Array, b: Array, d: Array | None = None, alpha: int = 1, beta: int = 1) -> Array:
    """`integer_matmul` as int32, which wraps."""
    return integer_matmul(a, b, d, alpha, beta).astype(np.int32)


def integer_product(a: Array, b: Array) -> Array:
    """a b of integers of at most 8 bits, int64; exact, as float64 holds the sums."""
    return np.rint(a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)


def scaled_matmul(
    a: Array, b: Array, scale_a: Array, scale_b: Array, e: Array | None = None, bias: Array | None = None,
    d: Array | None = None, zero_a: Array | None = None, colsum: Array | None = None, beta: float = 1,
    activation: str = "none",
) -> Array:  # fmt: skip
    """act(scale_a * (a b - zero_a colsum) * scale_b + bias + beta * d) in float64.

    a: [.., m, k], b: [.., k, n], scale_a: [.., m|1], scale_b: [.., n|1], bias: [.., n], d: broadcast to the result;
    zero_a: [m|1], colsum: [n].
    """
    value = _less_zeros(a.astype(np.float64) @ b.astype(np.float64), zero_a, colsum)
    return _scaled(value, scale_a, scale_b, bias, d, beta, activation)


def scaled_matmul_same_dtype(
    a: Array, b: Array, scale_a: Array, scale_b: Array, e: Array, bias: Array | None = None, d: Array | None = None,
    zero_a: Array | None = None, colsum: Array | None = None, beta: float = 1, activation: str = "none",
) -> Array:  # fmt: skip
    """`scaled_matmul` as hardware does it: sums of integers exact, those of float8 in fp32; scaled in fp32."""
    value = integer_product(a, b) if a.dtype.kind == "i" else sum_in_order(a.astype(np.float32), b.astype(np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        value = _less_zeros(value, zero_a, colsum).astype(np.float32)
        return _scaled(value, scale_a, scale_b, bias, d, np.float32(beta), activation).astype(e.dtype)


def _less_zeros(value: Array, zero_a: Array | None, colsum: Array | None) -> Array:
    return value if zero_a is None else value - zero_a.astype(np.int64)[:, None] * colsum.astype(np.int64)


def _scaled(
    value: Array, scale_a: Array, scale_b: Array, bias: Array | None, d: Array | None, beta: float, activation: str
) -> Array:
    """Scale and finish a product, in its dtype."""
    value = value * scale_a.astype(value.dtype)[..., :, None] * scale_b.astype(value.dtype)[..., None, :]
    bias = None if bias is None else bias[..., None, :]
    return _finish(value, bias, d, value.dtype.type(1), beta, activation)


SCALED = 128
"""Elements of k, and columns, that share a scale in `block_scaled_matmul`."""


def block_scaled_matmul(
    a: Array, b: Array, scale_a: Array, scale_b: Array, e: Array | None = None, rows_per_scale: int = 1
) -> Array:
    """(scale_a a) (scale_b b) in float64.

    a: [m, k], b: [k, n]; scale_a: [cdiv(m, rows_per_scale), cdiv(k, 128)], scale_b: [cdiv(k, 128), cdiv(n, 128)].
    """
    return _block_scaled(np.dtype(np.float64), a, b, scale_a, scale_b, rows_per_scale)


def block_scaled_matmul_same_dtype(
    a: Array, b: Array, scale_a: Array, scale_b: Array, e: Array, rows_per_scale: int = 1
) -> Array:
    """`block_scaled_matmul` as hardware does it: blocks of k one after the other, scaled and summed in fp32."""
    return _block_scaled(np.dtype(np.float32), a, b, scale_a, scale_b, rows_per_scale).astype(e.dtype)


def _block_scaled(dtype: np.dtype, a: Array, b: Array, scale_a: Array, scale_b: Array, rows_per_scale: int) -> Array:
    acc = np.zeros((a.shape[0], b.shape[1]), dtype)
    for block in range(-(-a.shape[1] // SCALED)):
        part = slice(block * SCALED, block * SCALED + SCALED)
        left = np.repeat(scale_a[:, block], rows_per_scale)[: a.shape[0], None]
        right = np.repeat(scale_b[block], SCALED)[None, : b.shape[1]]
        acc += (a[:, part].astype(dtype) @ b[part].astype(dtype)) * (left.astype(dtype) * right.astype(dtype))
    return acc


def int8_linear(a: Array, w: Array, d: Array, alpha: float, beta: float = 1) -> Array:
    """alpha * a w' + beta * d in float64, not yet rounded to int8. a: [m, k], w: [n, k], d: [m|1, n|1]."""
    return alpha * integer_product(a, w.T).astype(np.float64) + beta * d.astype(np.float64)


def int8_linear_same_dtype(a: Array, w: Array, d: Array, alpha: float, beta: float = 1) -> Array:
    """`int8_linear` as int8, computed in fp32."""
    return to_int8(_fp32_linear(a, w, d, alpha, beta))


def int8_linear_relu(a: Array, w: Array, d: Array, alpha: float, beta: float = 1) -> Array:
    """max(0, `int8_linear`)."""
    return np.maximum(int8_linear(a, w, d, alpha, beta), 0)


def int8_linear_relu_same_dtype(a: Array, w: Array, d: Array, alpha: float, beta: float = 1) -> Array:
    """`int8_linear_relu` as int8, computed in fp32."""
    return to_int8(np.maximum(_fp32_linear(a, w, d, alpha, beta), 0))


def int8_linear_float32(a: Array, w: Array, d: Array, alpha: float, beta: float = 1) -> Array:
    """`int8_linear` with d of float32."""
    return int8_linear(a, w, d, alpha, beta)


def int8_linear_float32_same_dtype(a: Array, w: Array, d: Array, alpha: float, beta: float = 1) -> Array:
    """`int8_linear_float32`, computed in fp32."""
    return _fp32_linear(a, w, d, alpha, beta)


def _fp32_linear(a: Array, w: Array, d: Array, alpha: float, beta: float) -> Array:
    product = integer_product(a, w.T).astype(np.float32) * np.float32(alpha)
    return product + np.float32(beta) * d.astype(np.float32)


def int8_bmm(a: Array, w: Array, alpha: float) -> Array:
    """alpha * a w' in float64, not yet rounded to int8. a: [batch, m, k], w: [batch, n, k]."""
    return alpha * integer_product(a, np.swapaxes(w, 1, 2)).astype(np.float64)


def int8_bmm_same_dtype(a: Array, w: Array, alpha: float) -> Array:
    """`int8_bmm` as int8."""
    return to_int8(int8_bmm_float32_same_dtype(a, w, alpha))


def int8_bmm_float32(a: Array, w: Array, alpha: float) -> Array:
    """`int8_bmm`, which is not rounded."""
    return int8_bmm(a, w, alpha)


def int8_bmm_float32_same_dtype(a: Array, w: Array, alpha: float) -> Array:
    """`int8_bmm_float32`, computed in fp32."""
    return integer_product(a, np.swapaxes(w, 1, 2)).astype(np.float32) * np.float32(alpha)


def to_int8(x: Array) -> Array:
    """Round to int8, half to even and saturating; NaN becomes 0."""
    return np.rint(np.clip(np.nan_to_num(x, nan=0.0), -128, 127)).astype(np.int8)


def layer_norm_int8(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    """LayerNorm of each row in float64, not yet rounded to int8. x: [m, n], weight and bias: [n]."""
    return _layer_norm(np.dtype(np.float64), x, weight, bias, eps)


def layer_norm_int8_same_dtype(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    """`layer_norm_int8` as int8, computed in fp32."""
    return to_int8(_layer_norm(np.dtype(np.float32), x, weight, bias, eps))


def _layer_norm(dtype: np.dtype, x: Array, weight: Array, bias: Array, eps: float) -> Array:
    x = x.astype(dtype)
    x = x - x.mean(1, keepdims=True)
    return x / np.sqrt((x * x).mean(1, keepdims=True) + dtype.type(eps)) * weight.astype(dtype) + bias.astype(dtype)


TINY = 1e-12
"""Smallest scale of a quantised part."""


def quantise(
    x: Array, q: Array, block: int | None = None, rows_per_scale: int = 1, bound: float = 0.0,
    powers_of_two: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    """(x / scale, scale) in float64, not yet rounded to q's dtype.

    x, q: [m, n]; scale: [cdiv(m, rows_per_scale), cdiv(n, block)], block by default n. bound: if not 0, the largest
    magnitude of which scales are made. powers_of_two: scales are rounded up to them.
    """
    compute = np.dtype(np.float64)
    return quantised(compute, x, q.dtype, block or x.shape[1], rows_per_scale, bound, powers_of_two)


def quantise_same_dtype(
    x: Array, q: Array, block: int | None = None, rows_per_scale: int = 1, bound: float = 0.0,
    powers_of_two: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    """`quantise` in q's dtype, computed in fp32."""
    compute = np.dtype(np.float32)
    value, scale = quantised(compute, x, q.dtype, block or x.shape[1], rows_per_scale, bound, powers_of_two)
    return to_8_bits(value, q.dtype), scale


def quantise_shifted(x: Array) -> tuple[Array, Array, Array]:
    """(x / scale + zero, scale, zero) in float64, not yet rounded to int8. x: [m, n], scale: [m], zero: int32 [m]."""
    return _shifted(np.dtype(np.float64), x)


def quantise_shifted_same_dtype(x: Array) -> tuple[Array, Array, Array]:
    """`quantise_shifted` in int8, computed in fp32."""
    codes, scale, zero = _shifted(np.dtype(np.float32), x)
    return to_int8(codes), scale, zero


def _shifted(dtype: np.dtype, x: Array) -> tuple[Array, Array, Array]:
    """Map the smallest value of each row to -128, and its largest to 127; codes are computed in a dtype."""
    x = x.astype(dtype)
    low, high = x.min(1), x.max(1)
    scale = np.where(high > low, (high - low) / dtype.type(255), np.abs(high) / dtype.type(127))
    scale = np.maximum(scale, dtype.type(TINY))
    zero = np.rint(-128 - low / scale).astype(np.int32)
    codes = np.rint(x / scale[:, None]) if dtype == np.float32 else x / scale[:, None]
    return np.clip(codes + zero[:, None], -128, 127), scale, zero


def quantise_all(x: Array, q: Array) -> tuple[Array, Array]:
    """`quantise` with one scale, [1], for all."""
    value, scale = quantised(np.dtype(np.float64), x, q.dtype, x.shape[1], x.shape[0])
    return value, scale[0]


def quantise_all_same_dtype(x: Array, q: Array) -> tuple[Array, Array]:
    """`quantise_all` in q's dtype, computed in fp32."""
    value, scale = quantised(np.dtype(np.float32), x, q.dtype, x.shape[1], x.shape[0])
    return to_8_bits(value, q.dtype), scale[0]


def quantise_static(x: Array, q: Array, scale: Array, zero: Array | None = None) -> Array:
    """x / scale + zero in float64, not yet rounded to q's dtype, where it saturates. x, q: [m, n]; scale, zero: [1]."""
    value = x.astype(np.float64) / scale.astype(np.float64)
    if zero is not None:
        return np.clip(value + zero, -128, 127)
    return np.clip(value, -largest(q.dtype), largest(q.dtype))


def quantise_static_same_dtype(x: Array, q: Array, scale: Array, zero: Array | None = None) -> Array:
    """`quantise_static` in q's dtype, computed in fp32. Codes with a zero are rounded before it is added."""
    with np.errstate(over="ignore"):
        value = x.astype(np.float32) / scale
    if zero is not None:
        return to_int8(np.rint(value).astype(np.float64) + zero)
    return to_8_bits(np.clip(value, -largest(q.dtype), largest(q.dtype)), q.dtype)


def quantised(
    compute: np.dtype, x: Array, dtype: np.dtype, block: int, rows_per_scale: int, bound: float = 0.0,
    powers_of_two: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    """Return (value, scale) of x for quantising to 8 bits, not yet rounded, computed in a dtype."""
    m, n = x.shape
    rows, blocks = -(-m // rows_per_scale), -(-n // block)
    padded = np.zeros((rows * rows_per_scale, blocks * block), compute)
    padded[:m, :n] = x
    tiles = padded.reshape(rows, rows_per_scale, blocks, block)
    most = np.minimum(np.abs(tiles).max((1, 3)), compute.type(bound or np.inf))
    scale = np.maximum(most / compute.type(largest(dtype)), compute.type(TINY))
    if powers_of_two:
        scale = np.exp2(np.ceil(np.log2(scale.astype(np.float64)))).astype(compute)
    value = np.clip(tiles / scale[:, None, :, None], -largest(dtype), largest(dtype))
    return value.reshape(padded.shape)[:m, :n], scale


def to_8_bits(value: Array, dtype: np.dtype) -> Array:
    """Round to int8 or float8, half to even."""
    return to_int8(value) if dtype == np.int8 else value.astype(dtype)


def _finish(value: Array, bias: Array | None, d: Array | None, alpha: float, beta: float, activation: str) -> Array:
    value = value * alpha
    if bias is not None:
        value = value + bias.astype(value.dtype)
    if d is not None:
        value = value + d.astype(value.dtype) * beta
    return ACTIVATIONS[activation](value)


def linear_int4(
    x: Array, w: Array, scales: Array, group_size: int, zeros: Array | None = None, codebook: Array | None = None,
    order: Array | None = None, bias: Array | None = None,
) -> Array:  # fmt: skip
    """x w' + bias in float64, with w = (codes - zeros) * scales, or codebook[codes] * scales, exactly.

    x: [m, k]; w: uint8 [n, cdiv(k, 2)], two codes in a byte; scales: [groups, n]; zeros: uint8 [groups, n], by default
    8; codebook: [16]; order: int [k], which column of x each weight belongs to; bias: [n].
    """
    weight = int4_weights(np.dtype(np.float64), w, scales, group_size, x.shape[1], zeros, codebook)
    return _linear(np.dtype(np.float64), x, weight, order, bias)


def linear_int4_same_dtype(
    x: Array, w: Array, scales: Array, group_size: int, zeros: Array | None = None, codebook: Array | None = None,
    order: Array | None = None, bias: Array | None = None,
) -> Array:  # fmt: skip
    """`linear_int4` as hardware does it: weights of x's dtype, summed in fp32."""
    weight = int4_weights(np.dtype(np.float32), w, scales, group_size, x.shape[1], zeros, codebook)
    return _linear(np.dtype(np.float32), x, weight.astype(x.dtype), order, bias).astype(x.dtype)


def linear_int8(
    x: Array, w: Array, scales: Array, group_size: int, zeros: Array | None = None, order: Array | None = None,
    bias: Array | None = None,
) -> Array:  # fmt: skip
    """x w' + bias in float64, with w = (codes - zeros) * scales. w: int8 [n, k]; the others as in `linear_int4`."""
    weight = dequantised(np.dtype(np.float64), w, scales, group_size, zeros, 0)
    return _linear(np.dtype(np.float64), x, weight, order, bias)


def linear_int8_same_dtype(
    x: Array, w: Array, scales: Array, group_size: int, zeros: Array | None = None, order: Array | None = None,
    bias: Array | None = None,
) -> Array:  # fmt: skip
    """`linear_int8` as hardware does it: weights of x's dtype, summed in fp32."""
    weight = dequantised(np.dtype(np.float32), w, scales, group_size, zeros, 0)
    return _linear(np.dtype(np.float32), x, weight.astype(x.dtype), order, bias).astype(x.dtype)


def nibbles(packed: Array, k: int) -> Array:
    """Codes of 4 bits, uint8 [n, k], from two in a byte, the even one low. packed: uint8 [n, cdiv(k, 2)]."""
    return np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)[:, :k]


def int4_weights(
    dtype: np.dtype, w: Array, scales: Array, group_size: int, k: int, zeros: Array | None, codebook: Array | None
) -> Array:
    """Dequantise 4-bit codes to weights [n, k]."""
    codes = nibbles(w, k)
    if codebook is None:
        return dequantised(dtype, codes, scales, group_size, zeros, 8)
    return codebook.astype(dtype)[codes] * _spread(scales, group_size, k).astype(dtype)


def dequantised(dtype: np.dtype, codes: Array, scales: Array, group_size: int, zeros: Array | None, zero: int) -> Array:
    """Return (codes - zeros) * scales, [n, k]; `zero` is used if zeros are None."""
    k = codes.shape[1]
    shift = np.asarray(zero) if zeros is None else _spread(zeros, group_size, k)
    return (codes.astype(dtype) - shift.astype(dtype)) * _spread(scales, group_size, k).astype(dtype)


def _spread(by_group: Array, group_size: int, k: int) -> Array:
    """Repeat values of groups, [groups, n], to [n, k]."""
    return np.repeat(by_group.T, group_size, 1)[:, :k]


def _linear(dtype: np.dtype, x: Array, weight: Array, order: Array | None, bias: Array | None) -> Array:
    x = x if order is None else x[:, order]
    if dtype == np.float32:
        value = sum_in_order(x.astype(dtype), weight.T.astype(dtype))
    else:
        value = x.astype(dtype) @ weight.T.astype(dtype)
    return value if bias is None else value + bias.astype(dtype)
