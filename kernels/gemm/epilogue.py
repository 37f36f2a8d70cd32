"""What happens to a tile of a product before it is stored."""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
RSQRT_2: tl.constexpr = tl.constexpr(0.7071067811865476)
LEAK: tl.constexpr = tl.constexpr(0.01)
"""Slope of leaky_relu below 0."""

ROUNDER: tl.constexpr = tl.constexpr(12582912.0)
"""1.5 * 2**23: a float32 sum with it has no bits below 1, so adding and subtracting rounds half to even."""

# What `activation` means; 0: nothing.
RELU: tl.constexpr = tl.constexpr(1)
LEAKY_RELU: tl.constexpr = tl.constexpr(2)
GELU: tl.constexpr = tl.constexpr(3)
GELU_TANH: tl.constexpr = tl.constexpr(4)
SILU: tl.constexpr = tl.constexpr(5)


@triton.jit
def finish(
    acc, rows, columns, batch, m, n, e, stride_e_batch, stride_e_m, stride_e_n,
    bias, d, stride_d_batch, stride_d_m, stride_d_n, scale_a, stride_scale_a_m, scale_b, stride_scale_b_n,
    alpha, beta, activation,
):  # fmt: skip
    """Store act(alpha * scale_a * acc * scale_b + bias + beta * d) as e's dtype; what is None is left out.

    acc: [rows, columns], of one batch. Computed in fp32, or, where acc and e both are int32, in int32; then it wraps.
    int8 results are rounded half to even and saturate.
    """
    known_rows, known_columns = rows < m, columns < n
    stored = known_rows[:, None] & known_columns[None, :]
    value = acc * alpha if acc.dtype == e.dtype.element_ty else acc.to(tl.float32) * alpha
    if scale_a is not None:
        value *= tl.load(scale_a + rows * stride_scale_a_m, known_rows, 0.0)[:, None]
    if scale_b is not None:
        value *= tl.load(scale_b + columns * stride_scale_b_n, known_columns, 0.0)[None, :]
    if bias is not None:
        value += tl.load(bias + columns, known_columns, 0.0)[None, :].to(value.dtype)
    if d is not None:
        at = batch.to(tl.int64) * stride_d_batch + rows[:, None] * stride_d_m + columns[None, :] * stride_d_n
        value += tl.load(d + at, stored, 0.0).to(value.dtype) * beta
    if activation != 0:
        value = activate(value, activation)
    at = batch.to(tl.int64) * stride_e_batch + rows[:, None] * stride_e_m + columns[None, :] * stride_e_n
    tl.store(e + at, convert(value, e.dtype.element_ty), stored)


@triton.jit
def activate(value, activation):
    """The function that `activation` names, of fp32 numbers. A NaN stays one."""
    if activation == RELU:
        value = tl.where(value < 0, 0.0, value)
    elif activation == LEAKY_RELU:
        value = tl.where(value < 0, LEAK * value, value)
    elif activation == GELU:
        value = 0.5 * value * (1 + tl.erf(value * RSQRT_2))
    elif activation == GELU_TANH:
        value = _gated(value, value * (1.5957691216057308 + 0.07135481627159907 * value * value))
    elif activation == SILU:
        value = _gated(value, value)
    return value


@triton.jit
def _gated(value, gate):
    """value * sigmoid(gate)."""
    return value / (1 + tl.exp2(-LOG2_E * gate))


@triton.jit
def convert(value, dtype: tl.constexpr):
    """To a dtype. Of fp32 to int8: rounded half to even, saturating; a NaN becomes 0."""
    if dtype == tl.int8 and value.dtype == tl.float32:
        value = tl.where(value == value, tl.minimum(tl.maximum(value, -128.0), 127.0), 0.0)
        value = (value + ROUNDER) - ROUNDER
    return value.to(dtype)
