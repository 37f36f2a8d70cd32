"""Softmax of each row of a matrix."""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def softmax_rows(
    x, out, rows, cols, scale, stride_x_rows, stride_out_rows,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, PERSISTENT: tl.constexpr = False, mask=None, stride_mask_rows=0,
):  # fmt: skip
    """out[i, :] = exp(scale * x[i, :]) / sum(exp(scale * x[i, :])), ROWS rows at a time, in fp32.

    Grid: (cdiv(rows, ROWS),), or any number of programs where PERSISTENT.

    x, out: [rows, cols] of one dtype (float16, bfloat16 or float32), strides in elements, columns contiguous.
    mask: bool [rows, cols] or None; where it is false, x counts as -inf. A row that holds a NaN or +inf, or nothing but
    -inf, becomes NaN throughout, as in torch.

    BLOCK: power of two >= cols, so that x is read once. PERSISTENT: programs take several tiles of rows, and load a
    tile while they compute and store the one before.
    """
    columns = tl.arange(0, BLOCK)[None, :]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    values = tl.load(x + row * stride_x_rows + columns, mask=(row < rows) & (columns < cols), other=0.0)
    if PERSISTENT:
        step = tl.num_programs(0) * ROWS
        for first in range(tl.program_id(0) * ROWS, rows, step):
            row = first + tl.arange(0, ROWS)[:, None]
            following = row + step
            next_inside = (following < rows) & (columns < cols)
            next_values = tl.load(x + following * stride_x_rows + columns, mask=next_inside, other=0.0)
            _softmax(values, mask, out, row, rows, columns, cols, scale, stride_mask_rows, stride_out_rows)
            values = next_values
    else:
        _softmax(values, mask, out, row, rows, columns, cols, scale, stride_mask_rows, stride_out_rows)


@triton.jit
def softmax_long_rows(
    x, out, cols, scale, stride_x_rows, stride_out_rows, STEP: tl.constexpr, mask=None, stride_mask_rows=0
):  # fmt: skip
    """`softmax_rows` of rows that do not fit in registers, STEP columns at a time: x is read twice. Grid: (rows,)."""
    row = tl.program_id(0)
    x += row * stride_x_rows
    out += row * stride_out_rows
    if mask is not None:
        mask += row * stride_mask_rows
    block = tl.arange(0, STEP)
    # Each lane of a step keeps a maximum and a sum of its own: no reduction, hence no barrier, in the loop.
    lane_max = tl.full([STEP], float("-inf"), tl.float32)
    lane_sum = tl.zeros([STEP], tl.float32)
    for start in range(0, cols, STEP):
        columns = start + block
        inside = columns < cols
        scores = _scores(tl.load(x + columns, mask=inside, other=0.0), mask, columns, inside, scale)
        new_max = tl.maximum(lane_max, scores)
        # A lane that has seen nothing but -inf: -inf - -inf is not a number.
        origin = tl.where(new_max == float("-inf"), 0.0, new_max)
        lane_sum = lane_sum * _exp(lane_max - origin) + _exp(scores - origin)
        lane_max = new_max
    row_max = tl.max(lane_max, 0)
    factor = 1.0 / tl.sum(lane_sum * _exp(lane_max - row_max), 0)
    for start in range(0, cols, STEP):
        columns = start + block
        inside = columns < cols
        scores = _scores(tl.load(x + columns, mask=inside, other=0.0), mask, columns, inside, scale)
        p = _exp(scores - row_max) * factor
        tl.store(out + columns, p.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _softmax(values, mask, out, row, rows, columns, cols, scale, stride_mask_rows, stride_out_rows):
    """Softmax of whole rows, which are loaded."""
    inside = (row < rows) & (columns < cols)
    if mask is not None:
        mask += row * stride_mask_rows
    scores = _scores(values, mask, columns, inside, scale)
    p = _exp(scores - tl.max(scores, 1)[:, None])
    p *= (1.0 / tl.sum(p, 1))[:, None]
    tl.store(out + row * stride_out_rows + columns, p.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _scores(values, mask, columns, inside, scale):
    """scale * values in fp32; -inf outside, and where there is a mask and it is false."""
    values = values.to(tl.float32) * scale
    if mask is not None:
        inside = inside & tl.load(mask + columns, mask=inside, other=0)
    return tl.where(inside, values, float("-inf"))


@triton.jit
def _exp(x):
    return tl.exp2(x * LOG2_E)
