"""What happens to a tile of a product before it is stored."""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def finish(
    acc, rows, columns, stored, batch, e, stride_e_batch, stride_e_m, stride_e_n,
    bias, d, stride_d_batch, stride_d_m, stride_d_n, scale_a, stride_scale_a_batch, stride_scale_a_m,
    scale_b, stride_scale_b_batch, stride_scale_b_n, alpha, beta, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Store act(alpha * scale_a * acc * scale_b + bias + beta * d) as e's dtype; what is None is left out.

    An int32 product that goes to int32 with nothing else to do is stored as it is. int8 results are rounded half to
    even and saturate.
    """
    exact: tl.constexpr = e.dtype.element_ty == tl.int32 and d is None and bias is None and scale_a is None
    if exact and ACTIVATION == "none":
        value = acc
    else:
        value = acc.to(tl.float64 if acc.dtype == tl.float64 else tl.float32) * alpha
        if scale_a is not None:
            at = batch * stride_scale_a_batch + rows * stride_scale_a_m
            value *= tl.load(scale_a + at, mask=tl.max(stored.to(tl.int32), 1) > 0, other=0.0)[:, None]
        if scale_b is not None:
            at = batch * stride_scale_b_batch + columns * stride_scale_b_n
            value *= tl.load(scale_b + at, mask=tl.max(stored.to(tl.int32), 0) > 0, other=0.0)[None, :]
        if bias is not None:
            value += tl.load(bias + columns, mask=tl.max(stored.to(tl.int32), 0) > 0, other=0.0)[None, :].to(value.dtype)
        if d is not None:
            at = batch.to(tl.int64) * stride_d_batch + rows[:, None] * stride_d_m + columns[None, :] * stride_d_n
            value += beta * tl.load(d + at, mask=stored, other=0.0).to(value.dtype)
        value = _activate(value, ACTIVATION)
    at = batch.to(tl.int64) * stride_e_batch + rows[:, None] * stride_e_m + columns[None, :] * stride_e_n
    tl.store(e + at, convert(value, e.dtype.element_ty), mask=stored)


@triton.jit
def _activate(value, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        value = tl.maximum(value, 0.0)
    elif ACTIVATION == "leaky_relu":
        value = tl.where(value >= 0, value, 0.01 * value)
    elif ACTIVATION == "silu":
        value = value / (1 + tl.exp2(-value * LOG2_E))
    elif ACTIVATION == "gelu":
        value = 0.5 * value * (1 + tl.erf(value * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        value = value / (1 + tl.exp2(-2 * LOG2_E * inner))
    return value


@triton.jit
def convert(value, dtype: tl.constexpr):
    """To a dtype: integers are rounded half to even and saturate."""
    if dtype == tl.int8 and value.dtype.is_floating():
        value = tl.minimum(tl.maximum(value, -128.0), 127.0)
        rounded = tl.floor(value + 0.5)
        tie = rounded - value == 0.5
        odd = rounded - 2 * tl.floor(rounded * 0.5) == 1.0
        value = tl.where(tie & odd, rounded - 1, rounded)
    return value.to(dtype)
