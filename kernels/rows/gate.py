"""Gated activations: a function of one matrix times another."""

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.softmax import LOG2_E
from kernels.common.tensors import Matrix

SQRT_HALF: tl.constexpr = tl.constexpr(0.7071067811865476)
SQRT_8_OVER_PI: tl.constexpr = tl.constexpr(1.5957691216057308)
"""2 * sqrt(2 / pi)"""


ALIGNED: tl.constexpr = tl.constexpr(8)
"""Columns of a row that lie next to each other in a tile, at least."""


@triton.jit
def gate_rows(
    gate: Matrix, up: Matrix, out: Matrix, rows, cols, log2_width, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr
):
    """out = ACTIVATION(gate) * up, in fp32. Grid: (cdiv(rows, BLOCK // width), cdiv(cols, width)).

    gate, up, out: [rows, cols] of one dtype, columns contiguous. ACTIVATION: silu, gelu (of the error function) or
    gelu_tanh (its usual approximation). A tile has BLOCK elements: `width` columns, 8 at least, of as many rows as fit.
    """
    await_earlier_launches()
    place = tl.arange(0, BLOCK)
    row = tl.program_id(0) * (BLOCK >> log2_width) + tl.max_constancy(place >> log2_width, ALIGNED)
    column = place & ((1 << log2_width) - 1)
    columns = (tl.program_id(1) << log2_width) + tl.max_contiguous(tl.multiple_of(column, ALIGNED), ALIGNED)
    inside = (row < rows) & (columns < cols)
    x = tl.load(gate.ptr + row * gate.stride_rows + columns, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(up.ptr + row * up.stride_rows + columns, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        x *= sigmoid(x)
    elif ACTIVATION == "gelu":
        x *= 0.5 + 0.5 * tl.math.erf(x * SQRT_HALF)
    else:
        # 0.5 + 0.5 * tanh(z / 2) is sigmoid(z).
        x *= sigmoid(SQRT_8_OVER_PI * (x + 0.044715 * x * x * x))
    tl.store(out.ptr + row * out.stride_rows + columns, (x * y).to(out.ptr.dtype.element_ty), mask=inside)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(x * -LOG2_E))
