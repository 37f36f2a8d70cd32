"""Softmax of each row of a matrix."""

import triton
import triton.language as tl

from kernels.common.softmax import LOG2_E
from kernels.common.tensors import Matrix, Vector, given
from kernels.rows.parts import load_pairs, share_of, store_pair


@triton.jit
def softmax_rows(
    x: Matrix, mask: Matrix, out: Matrix, rows, cols, scale, temperature: Vector,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_OPTIONS: tl.constexpr, PERSISTENT: tl.constexpr = False,
):  # fmt: skip
    """out[i, :] = exp(scale * x[i, :]) / sum(exp(scale * x[i, :])), ROWS rows at a time, in fp32.

    Grid: (cdiv(rows, ROWS),), or any number of programs where PERSISTENT.

    x, out: [rows, cols] of one dtype (float16, bfloat16 or float32), columns contiguous. mask: bool [rows, cols], or a
    null pointer; where it is false, x counts as -inf. temperature: fp32 [rows], which divides scale, or a null pointer.
    HAS_OPTIONS: they may be there. A row that holds a NaN or +inf, or nothing but -inf, becomes NaN throughout, as in
    torch.

    BLOCK: power of two >= cols, so that x is read once. PERSISTENT: programs take several tiles of rows, and load a
    tile while they compute and store the one before.
    """
    columns = tl.arange(0, BLOCK)[None, :]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    values = tl.load(x.ptr + row * x.stride_rows + columns, mask=(row < rows) & (columns < cols), other=0.0)
    if PERSISTENT:
        step = tl.num_programs(0) * ROWS
        for first in range(tl.program_id(0) * ROWS, rows, step):
            row = first + tl.arange(0, ROWS)[:, None]
            following = row + step
            next_inside = (following < rows) & (columns < cols)
            next_values = tl.load(x.ptr + following * x.stride_rows + columns, mask=next_inside, other=0.0)
            _softmax(values, mask, temperature, out, row, rows, columns, cols, scale, HAS_OPTIONS)
            values = next_values
    else:
        _softmax(values, mask, temperature, out, row, rows, columns, cols, scale, HAS_OPTIONS)


@triton.jit
def softmax_long_rows(
    x: Matrix, mask: Matrix, out: Matrix, pairs, cols, parts, scale, temperature: Vector,
    STEP: tl.constexpr, HAS_OPTIONS: tl.constexpr,
):  # fmt: skip
    """`softmax_rows` of rows that do not fit in registers, STEP columns at a time: x is read twice.

    Grid: (rows, parts). A program writes a part of a row. With several parts, `softmax_part` has read x once before.
    """
    row = tl.program_id(0)
    if HAS_OPTIONS:
        scale = _scale(scale, temperature, row)
    share = share_of(cols, parts, STEP)
    begin = tl.program_id(1) * share
    target = out.ptr + row * out.stride_rows
    source = x.ptr + row * x.stride_rows
    if parts > 1:
        maxima, sums = load_pairs(pairs, row, parts, float("-inf"))
        row_max = tl.max(maxima, 0)
        row_sum = tl.sum(sums * _exp(maxima - row_max), 0)
    else:
        row_max, row_sum = _max_and_sum(source, mask, row, 0, cols, scale, STEP, HAS_OPTIONS)
    factor = 1.0 / row_sum
    for start in range(begin, tl.minimum(begin + share, cols), STEP):
        columns = start + tl.arange(0, STEP)
        inside = columns < cols
        scores = _scores(
            tl.load(source + columns, mask=inside, other=0.0), mask, row, columns, inside, scale, HAS_OPTIONS
        )
        p = _exp(scores - row_max) * factor
        tl.store(target + columns, p.to(target.dtype.element_ty), mask=inside)


@triton.jit
def softmax_part(
    x: Matrix, mask: Matrix, pairs, cols, parts, scale, temperature: Vector,
    STEP: tl.constexpr, HAS_OPTIONS: tl.constexpr,
):  # fmt: skip
    """Keep the maximum of a part of a row, and the sum of its exponentials, for `softmax_long_rows`.

    Grid: (rows, parts). pairs: fp32 [rows, parts, 2].
    """
    row, part = tl.program_id(0), tl.program_id(1)
    share = share_of(cols, parts, STEP)
    begin = part * share
    source = x.ptr + row * x.stride_rows
    if HAS_OPTIONS:
        scale = _scale(scale, temperature, row)
    most, total = _max_and_sum(source, mask, row, begin, tl.minimum(begin + share, cols), scale, STEP, HAS_OPTIONS)
    store_pair(pairs, row, part, parts, most, total)


@triton.jit
def _max_and_sum(source, mask, row, begin, end, scale, STEP: tl.constexpr, HAS_OPTIONS: tl.constexpr):
    """Return the maximum of the scores of some columns, and the sum of the exponentials of their distances from it."""
    # Each lane of a step keeps a maximum and a sum of its own: no reduction, hence no barrier, in the loop.
    lane_max = tl.full([STEP], float("-inf"), tl.float32)
    lane_sum = tl.zeros([STEP], tl.float32)
    for start in range(begin, end, STEP):
        columns = start + tl.arange(0, STEP)
        inside = columns < end
        scores = _scores(
            tl.load(source + columns, mask=inside, other=0.0), mask, row, columns, inside, scale, HAS_OPTIONS
        )
        new_max = tl.maximum(lane_max, scores)
        origin = _finite(new_max)
        lane_sum = lane_sum * _exp(lane_max - origin) + _exp(scores - origin)
        lane_max = new_max
    most = tl.max(lane_max, 0)
    return most, tl.sum(lane_sum * _exp(lane_max - _finite(most)), 0)


@triton.jit
def _finite(x):
    """Return 0 in place of -inf, the maximum where nothing but -inf was seen: -inf - -inf is not a number."""
    return tl.where(x == float("-inf"), 0.0, x)


@triton.jit
def _softmax(values, mask, temperature, out, row, rows, columns, cols, scale, HAS_OPTIONS: tl.constexpr):
    """Softmax of whole rows, which are loaded."""
    inside = (row < rows) & (columns < cols)
    wide = values.to(tl.float32)
    if HAS_OPTIONS:  # noqa: SIM102 - the other one is tested at run time
        if given(temperature.ptr):
            wide /= tl.load(temperature.ptr + row * temperature.stride_rows, mask=row < rows, other=1.0)
    scores = _scores(wide, mask, row, columns, inside, scale, HAS_OPTIONS)
    p = _exp(scores - tl.max(scores, 1)[:, None])
    p *= (1.0 / tl.sum(p, 1))[:, None]
    tl.store(out.ptr + row * out.stride_rows + columns, p.to(out.ptr.dtype.element_ty), mask=inside)


@triton.jit
def _scores(values, mask, row, columns, inside, scale, HAS_OPTIONS: tl.constexpr):
    """scale * values in fp32; -inf outside, and where there is a mask and it is false."""
    values = values.to(tl.float32) * scale
    if HAS_OPTIONS:
        there = inside & given(mask.ptr)
        inside = inside & tl.load(mask.ptr + row * mask.stride_rows + columns, mask=there, other=1)
    return tl.where(inside, values, float("-inf"))


@triton.jit
def _scale(scale, temperature, row):
    """Return scale / temperature of a row."""
    if given(temperature.ptr):
        scale = scale / tl.load(temperature.ptr + row * temperature.stride_rows)
    return scale


@triton.jit
def _exp(x):
    return tl.exp2(x * LOG2_E)
