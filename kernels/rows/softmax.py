"""Softmax of each row of a matrix."""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def softmax_rows(
    x, out, rows, cols, stride_x_rows, stride_out_rows, BLOCK: tl.constexpr, ONE_PASS: tl.constexpr,
):  # fmt: skip
    """out[i, :] = exp(x[i, :]) / sum(exp(x[i, :])), a program for each row, in fp32.

    Grid: (rows,).

    x, out: [rows, cols] of one dtype (float16, bfloat16 or float32), strides in elements, columns contiguous.
    A row that holds a NaN or +inf, or nothing but -inf, becomes NaN throughout, as in torch.

    BLOCK: power of two, columns in registers at a time. ONE_PASS: cols <= BLOCK, so that x is read once.
    """
    row = tl.program_id(0)
    x += row * stride_x_rows
    out += row * stride_out_rows
    block = tl.arange(0, BLOCK)
    if ONE_PASS:
        values = tl.load(x + block, mask=block < cols, other=float("-inf")).to(tl.float32)
        p = _exp(values - tl.max(values, 0))
        tl.store(out + block, (p / tl.sum(p, 0)).to(out.dtype.element_ty), mask=block < cols)
    else:
        # Each lane of the block keeps a maximum and a sum of its own: no reduction, hence no barrier, in the loop.
        lane_max = tl.full([BLOCK], float("-inf"), tl.float32)
        lane_sum = tl.zeros([BLOCK], tl.float32)
        for start in range(0, cols, BLOCK):
            columns = start + block
            values = tl.load(x + columns, mask=columns < cols, other=float("-inf")).to(tl.float32)
            new_max = tl.maximum(lane_max, values)
            # A lane that has seen nothing but -inf: -inf - -inf is not a number.
            origin = tl.where(new_max == float("-inf"), 0.0, new_max)
            lane_sum = lane_sum * _exp(lane_max - origin) + _exp(values - origin)
            lane_max = new_max
        row_max = tl.max(lane_max, 0)
        row_sum = tl.sum(lane_sum * _exp(lane_max - row_max), 0)
        for start in range(0, cols, BLOCK):
            columns = start + block
            values = tl.load(x + columns, mask=columns < cols, other=0.0).to(tl.float32)
            p = _exp(values - row_max) / row_sum
            tl.store(out + columns, p.to(out.dtype.element_ty), mask=columns < cols)


@triton.jit
def _exp(x):
    return tl.exp2(x * LOG2_E)
