"""Activations that are chosen at run time, also quantised, and elementwise products with sums."""

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.rounding import scale_of
from kernels.common.tensors import Matrix, given
from kernels.rows.gate import SQRT_8_OVER_PI, SQRT_HALF, sigmoid
from kernels.rows.quantise import quantise

SILU: tl.constexpr = tl.constexpr(0)
GELU: tl.constexpr = tl.constexpr(1)
GELU_TANH: tl.constexpr = tl.constexpr(2)
GELU_QUICK: tl.constexpr = tl.constexpr(3)
SIGMOID: tl.constexpr = tl.constexpr(4)
RELU: tl.constexpr = tl.constexpr(5)
"""Values of `kind`; above: the square of relu."""


@triton.jit
def activate_rows(x: Matrix, up: Matrix, out: Matrix, cols, kind, threshold, limit, shift, BLOCK: tl.constexpr):
    """out = activation(x) * up, in fp32. Grid: (rows, cdiv(cols, BLOCK)).

    x, up, out: [rows, cols] of one dtype, columns contiguous; up may be a null pointer. kind: SILU, and so on.
    threshold: relu is 0 up to it. limit: if more than 0, x is at most that, and up between it and its negative.
    shift: added to up after that.
    """
    await_earlier_launches()
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < cols
    values = _activated(x, up, row, columns, inside, kind, threshold, limit, shift)
    tl.store(out.ptr + row * out.stride_rows + columns, values.to(out.ptr.dtype.element_ty), mask=inside)


@triton.jit
def activate_quantised(
    x: Matrix, up: Matrix, q: Matrix, scale, scales: Matrix, cols, kind, threshold, limit, shift, block, bound,
    LARGEST: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """q * scales = activation(x) * up, with a scale for each row and `block` columns. Grid: (rows, cdiv(cols, block)).

    q: int8 or float8 [rows, cols]; scales: fp32 [rows, cdiv(cols, block)], in any order in memory; scale: fp32 [1],
    the scale of all, or a null pointer. bound: if more than 0, the largest magnitude of which scales are made. The rest
    as in `activate_rows`.
    """
    await_earlier_launches()
    row, part = tl.program_id(0), tl.program_id(1)
    begin = part * block
    end = tl.minimum(begin + block, cols)
    factor = tl.load(scale, given(scale), 0.0)
    if not given(scale):
        lanes = tl.zeros([STEP], tl.float32)
        for start in range(begin, end, STEP):
            columns = start + tl.arange(0, STEP)
            inside = columns < end
            values = tl.abs(_activated(x, up, row, columns, inside, kind, threshold, limit, shift))
            lanes = tl.maximum(lanes, tl.where(inside, values, 0.0))
        factor = scale_of(tl.minimum(tl.max(lanes, 0), tl.where(bound > 0, bound, float("inf"))), LARGEST)
    tl.store(scales.ptr + row * scales.stride_rows + part * scales.stride_columns, factor)
    for start in range(begin, end, STEP):
        columns = start + tl.arange(0, STEP)
        inside = columns < end
        values = _activated(x, up, row, columns, inside, kind, threshold, limit, shift)
        values = quantise(values, factor, q.ptr.dtype.element_ty, LARGEST)
        tl.store(q.ptr + row * q.stride_rows + columns, values.to(q.ptr.dtype.element_ty), mask=inside)


@triton.jit
def _activated(x, up, row, columns, inside, kind, threshold, limit, shift):
    values = tl.load(x.ptr + row * x.stride_rows + columns, mask=inside, other=0.0).to(tl.float32)
    factors = tl.load(up.ptr + row * up.stride_rows + columns, mask=inside & given(up.ptr), other=1.0).to(tl.float32)
    if limit > 0:
        values = tl.where(values > limit, limit, values)
        factors = tl.where(factors > limit, limit, tl.where(factors < -limit, -limit, factors))
    factors += tl.where(given(up.ptr), shift, 0.0)
    if kind == SILU:
        values *= sigmoid(values)
    elif kind == SIGMOID:
        values = sigmoid(values)
    elif kind == GELU:
        values *= 0.5 + 0.5 * tl.math.erf(values * SQRT_HALF)
    elif kind == GELU_TANH:
        values *= sigmoid(SQRT_8_OVER_PI * (values + 0.044715 * values * values * values))
    elif kind == GELU_QUICK:
        values *= sigmoid(1.702 * values)
    else:
        values = tl.where(values <= threshold, 0.0, values)
        if kind != RELU:
            values *= values
    return values * factors


@triton.jit
def multiply_add_rows(x: Matrix, a: Matrix, b: Matrix, out: Matrix, cols, BLOCK: tl.constexpr):
    """out = a * x + b, in fp32. Grid: (rows, cdiv(cols, BLOCK)).

    x, out: [rows, cols], columns contiguous; a, b: [rows, cols] with any strides, also 0.
    """
    await_earlier_launches()
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < cols
    values = tl.load(x.ptr + row * x.stride_rows + columns, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(a.ptr + row * a.stride_rows + columns * a.stride_columns, mask=inside, other=0.0)
    summand = tl.load(b.ptr + row * b.stride_rows + columns * b.stride_columns, mask=inside, other=0.0)
    values = values * factor.to(tl.float32) + summand.to(tl.float32)
    tl.store(out.ptr + row * out.stride_rows + columns, values.to(out.ptr.dtype.element_ty), mask=inside)
