"""LayerNorm with int8 results, which a quantised linear layer takes."""

import triton
import triton.language as tl

from kernels.common.tensors import Matrix
from kernels.gemm.epilogue import convert


@triton.jit
def layer_norm_int8(x: Matrix, weight, bias, e: Matrix, n, eps, BLOCK: tl.constexpr):
    """e = (x - mean) / sqrt(variance + eps) * weight + bias, as int8. Grid: (m).

    x: [m, n]; weight, bias: [n], divided by the scale of e beforehand; e: int8 [m, n]. Computed in fp32, the
    variance in a pass of its own.
    """
    row = tl.program_id(0)
    source = x.ptr + row.to(tl.int64) * x.stride_rows
    target = e.ptr + row.to(tl.int64) * e.stride_rows
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.load(source + columns, columns < n, 0.0).to(tl.float32)
    mean = tl.sum(total, 0) / n
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        distance = tl.where(columns < n, tl.load(source + columns, columns < n, 0.0).to(tl.float32) - mean, 0.0)
        squares += distance * distance
    factor = tl.rsqrt(tl.sum(squares, 0) / n + eps)
    for start in range(0, n, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        known = columns < n
        value = (tl.load(source + columns, known, 0.0).to(tl.float32) - mean) * factor
        value *= tl.load(weight + columns, known, 0.0).to(tl.float32)
        value += tl.load(bias + columns, known, 0.0).to(tl.float32)
        tl.store(target + columns, convert(value, tl.int8), known)
