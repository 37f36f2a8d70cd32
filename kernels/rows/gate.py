"""Gated activations: a function of one matrix times another."""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
SQRT_HALF: tl.constexpr = tl.constexpr(0.7071067811865476)
SQRT_8_OVER_PI: tl.constexpr = tl.constexpr(1.5957691216057308)
"""2 * sqrt(2 / pi)"""


@triton.jit
def gate_rows(
    gate, up, out, cols, stride_gate_rows, stride_up_rows, stride_out_rows,
    BLOCK: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """out = ACTIVATION(gate) * up, in fp32. Grid: (rows, cdiv(cols, BLOCK)).

    gate, up, out: [rows, cols] of one dtype, columns contiguous. ACTIVATION: silu, gelu (of the error function) or
    gelu_tanh (its usual approximation).
    """
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < cols
    x = tl.load(gate + row * stride_gate_rows + columns, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(up + row * stride_up_rows + columns, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        x *= _sigmoid(x)
    elif ACTIVATION == "gelu":
        x *= 0.5 + 0.5 * tl.math.erf(x * SQRT_HALF)
    else:
        # 0.5 + 0.5 * tanh(z / 2) is sigmoid(z).
        x *= _sigmoid(SQRT_8_OVER_PI * (x + 0.044715 * x * x * x))
    tl.store(out + row * stride_out_rows + columns, (x * y).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(x * -LOG2_E))
