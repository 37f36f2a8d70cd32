"""LayerNorm with int8 results, which a quantised linear layer takes."""

import triton
import triton.language as tl

from kernels.gemm.epilogue import convert


@triton.jit
def layer_norm_int8(x, weight, bias, e, m, n, stride_x_m, stride_e_m, eps, BLOCK: tl.constexpr):
    """e = (x - mean) / sqrt(variance + eps) * weight + bias, as int8. Grid: (m).

    x: [m, n]; weight, bias: [n], divided by the scale of e beforehand; e: int8 [m, n]. Computed in fp32, the
    variance in a pass of its own.
    """
    row = tl.program_id(0)
    x += row.to(tl.int64) * stride_x_m
    e += row.to(tl.int64) * stride_e_m
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.load(x + columns, columns < n, 0.0).to(tl.float32)
    mean = tl.sum(total, 0) / n
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        distance = tl.where(columns < n, tl.load(x + columns, columns < n, 0.0).to(tl.float32) - mean, 0.0)
        squares += distance * distance
    factor = tl.rsqrt(tl.sum(squares, 0) / n + eps)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        known = columns < n
        value = (tl.load(x + columns, known, 0.0).to(tl.float32) - mean) * factor
        value *= tl.load(weight + columns, known, 0.0).to(tl.float32)
        value += tl.load(bias + columns, known, 0.0).to(tl.float32)
        tl.store(e + columns, convert(value, tl.int8), known)
