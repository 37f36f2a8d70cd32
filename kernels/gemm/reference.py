"""Matrix products in numpy: the exact result, and what its dtypes allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np

Array = np.ndarray

LEAK = 0.01


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
    "gelu_tanh": lambda x: x * (1 + np.tanh(x.dtype.type(math.sqrt(2 / math.pi)) * (x + x.dtype.type(0.044715) * x**3))) / 2,
    "silu": lambda x: x * _sigmoid(x),
}  # fmt: skip


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
        operands = [round_tf32(x) for x in operands]
    with np.errstate(over="ignore", invalid="ignore"):
        value = _finish(sum_in_order(*operands), bias, d, np.float32(alpha), np.float32(beta), activation)
        return value.astype(a.dtype)


def sum_in_order(a: Array, b: Array) -> Array:
    """a b of fp32 matrices, each element of the result summed from one to the next along k."""
    acc = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.float32)
    for i in range(a.shape[-1]):
        acc += a[..., :, i, None] * b[..., i, None, :]
    return acc


def round_tf32(x: Array) -> Array:
    """fp32 numbers with 10 bits of mantissa, to nearest."""
    bits = x.view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


def _finish(
    value: Array, bias: Array | None, d: Array | None, alpha: float, beta: float, activation: str
) -> Array:  # fmt: skip
    value = value * alpha
    if bias is not None:
        value = value + bias.astype(value.dtype)
    if d is not None:
        value = value + d.astype(value.dtype) * beta
    return ACTIVATIONS[activation](value)
