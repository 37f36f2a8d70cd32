"""Layer norm and RMS norm of each row of a matrix, optionally after adding a residual, and with a quantised result."""

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.rounding import scale_of
from kernels.common.tensors import Matrix, given
from kernels.rows.parts import MOST_PARTS, load_pairs, share_of, store_pair
from kernels.rows.quantise import quantise


@triton.jit
def norm_rows(
    x: Matrix, weight, residual: Matrix, out: Matrix, rows, cols, eps, zero_centred,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, SUBTRACT_MEAN: tl.constexpr,
    PERSISTENT: tl.constexpr = False, bias=None, row_scales=None, LARGEST: tl.constexpr = 0.0, scale=None, bound=0.0,
    smooth=None,
):  # fmt: skip
    """out[i, :] = (x[i, :] - mean) / sqrt(variance + eps) * weight + bias, ROWS rows at a time, in fp32.

    Grid: (cdiv(rows, ROWS),), or any number of programs where PERSISTENT.

    x, out: [rows, cols], columns contiguous. weight, bias: [cols]; bias may be None or a null pointer. zero_centred: 1
    is added to weight. SUBTRACT_MEAN: layer norm; else mean is 0, and the variance the mean square: RMS norm.

    residual: [rows, cols] of x's dtype, or a null pointer; it becomes residual + x, rounded to that dtype, and x is
    that sum. HAS_RESIDUAL: it may be there.

    row_scales: fp32 [rows] or None; out is int8 or float8, and out * scale the result. A scale takes the largest value
    of its row, or `bound` if that is less and not 0, to LARGEST, and is 0 in a row of zeros. scale: fp32 [1], the scale
    of all rows, or a null pointer. Larger results saturate. smooth: fp32 [cols], factors of the results, None or a
    null pointer.

    BLOCK: power of two >= cols. PERSISTENT: programs take several tiles of rows, keep weight and bias, and load a tile
    while they compute and store the one before.
    """
    await_earlier_launches()
    columns = tl.arange(0, BLOCK)[None, :]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = (row < rows) & (columns < cols)
    values, added = _load(x, residual, row, columns, inside, HAS_RESIDUAL)
    if PERSISTENT:
        gain, shift = _affine(weight, bias, smooth, columns, columns < cols, zero_centred)
        step = tl.num_programs(0) * ROWS
        for first in range(tl.program_id(0) * ROWS, rows, step):
            row = first + tl.arange(0, ROWS)[:, None]
            inside = (row < rows) & (columns < cols)
            next_inside = (row + step < rows) & (columns < cols)
            next_values, next_added = _load(x, residual, row + step, columns, next_inside, HAS_RESIDUAL)
            values = _sum(values, added, residual, row, columns, inside, HAS_RESIDUAL, True)
            values = _normalise(values, cols, eps, inside, SUBTRACT_MEAN) * gain + shift
            _store(values, out, row_scales, scale, bound, row, rows, columns, inside, LARGEST)
            values, added = next_values, next_added
    else:
        values = _sum(values, added, residual, row, columns, inside, HAS_RESIDUAL, True)
        values = _normalise(values, cols, eps, inside, SUBTRACT_MEAN)
        gain, shift = _affine(weight, bias, smooth, columns, columns < cols, zero_centred)
        _store(values * gain + shift, out, row_scales, scale, bound, row, rows, columns, inside, LARGEST)


@triton.jit
def norm_long_rows(
    x: Matrix, weight, residual: Matrix, out: Matrix, cols, eps, zero_centred,
    STEP: tl.constexpr, HAS_RESIDUAL: tl.constexpr, SUBTRACT_MEAN: tl.constexpr,
    bias=None, row_scales=None, LARGEST: tl.constexpr = 0.0, scale=None, bound=0.0, smooth=None, pairs=None, parts=1,
):  # fmt: skip
    """`norm_rows` of rows that do not fit in registers, STEP columns at a time. Grid: (rows, parts).

    A program writes a part of a row; several are for results that are not quantised, and `norm_part` has run before.
    The sum with the residual is recomputed in each pass and written in the last one, so no pass waits for a write.
    """
    row = tl.program_id(0)
    block = tl.arange(0, STEP)
    first, end = 0, cols
    if pairs is not None:
        share = share_of(cols, parts, STEP)
        first = tl.program_id(1) * share
        end = tl.minimum(first + share, cols)
        if parts > 1:
            means, squared = load_pairs(pairs, row, parts, 0.0)
            counts = tl.minimum(tl.maximum(cols - tl.arange(0, MOST_PARTS) * share, 0), share)
            mean, squares = _join(means, squared, counts, cols)
        else:
            mean, squares = _mean_and_squares(x, residual, row, 0, cols, STEP, HAS_RESIDUAL, SUBTRACT_MEAN)
    else:
        mean, squares = _mean_and_squares(x, residual, row, 0, cols, STEP, HAS_RESIDUAL, SUBTRACT_MEAN)
    rstd = tl.rsqrt(squares / cols + eps)

    if row_scales is not None:
        lane_max = tl.zeros([STEP], tl.float32)
        for start in range(0, cols, STEP):
            columns = start + block
            inside = columns < cols
            values, added = _load(x, residual, row, columns, inside, HAS_RESIDUAL)
            values = _sum(values, added, residual, row, columns, inside, HAS_RESIDUAL, False)
            gain, shift = _affine(weight, bias, smooth, columns, inside, zero_centred)
            lane_max = tl.maximum(lane_max, tl.where(inside, tl.abs((values - mean) * rstd * gain + shift), 0.0))
        row_scale = _scale(tl.max(lane_max, 0), scale, bound, LARGEST)
        tl.store(row_scales + row, row_scale)
    for start in range(first, end, STEP):
        columns = start + block
        inside = columns < cols
        values, added = _load(x, residual, row, columns, inside, HAS_RESIDUAL)
        values = _sum(values, added, residual, row, columns, inside, HAS_RESIDUAL, True)
        gain, shift = _affine(weight, bias, smooth, columns, inside, zero_centred)
        values = (values - mean) * rstd * gain + shift
        if row_scales is not None:
            values = quantise(values, row_scale, out.ptr.dtype.element_ty, LARGEST)
        tl.store(out.ptr + row * out.stride_rows + columns, values.to(out.ptr.dtype.element_ty), mask=inside)


@triton.jit
def norm_blocks(
    x: Matrix, weight, residual: Matrix, out: Matrix, scales: Matrix, cols, eps, zero_centred, block, bound,
    STEP: tl.constexpr, WIDTH: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """RMS norm of each row, quantised with a scale for each `block` columns, WIDTH at most. Grid: (rows,).

    scales: fp32 [rows, cdiv(cols, block)], in any order in memory. The rest as in `norm_rows`.
    """
    row = tl.program_id(0)
    _, squares = _mean_and_squares(x, residual, row, 0, cols, STEP, True, False)
    rstd = tl.rsqrt(squares / cols + eps)
    blocks = tl.cdiv(cols, block)
    lane = tl.arange(0, WIDTH)[None, :]
    for first in range(0, blocks, STEP // WIDTH):
        number = first + tl.arange(0, STEP // WIDTH)[:, None]
        columns = number * block + lane
        inside = (lane < block) & (columns < cols)
        values, added = _load(x, residual, row, columns, inside, True)
        values = _sum(values, added, residual, row, columns, inside, True, True)
        gain, _ = _affine(weight, None, None, columns, inside, zero_centred)
        values = values * rstd * gain
        scale = _scale(tl.max(tl.abs(values), 1)[:, None], None, bound, LARGEST)
        at = scales.ptr + row * scales.stride_rows + number * scales.stride_columns
        tl.store(at, scale, mask=number < blocks)
        values = quantise(values, scale, out.ptr.dtype.element_ty, LARGEST)
        tl.store(out.ptr + row * out.stride_rows + columns, values.to(out.ptr.dtype.element_ty), mask=inside)


@triton.jit
def norm_part(
    x: Matrix, residual: Matrix, pairs, cols, parts,
    STEP: tl.constexpr, HAS_RESIDUAL: tl.constexpr, SUBTRACT_MEAN: tl.constexpr,
):  # fmt: skip
    """Keep the mean of a part of a row and the sum of its squared deviations from it, for `norm_long_rows`.

    Grid: (rows, parts). pairs: fp32 [rows, parts, 2].
    """
    row, part = tl.program_id(0), tl.program_id(1)
    share = share_of(cols, parts, STEP)
    first = part * share
    end = tl.minimum(first + share, cols)
    mean, squares = _mean_and_squares(x, residual, row, first, end, STEP, HAS_RESIDUAL, SUBTRACT_MEAN)
    store_pair(pairs, row, part, parts, mean, squares)


@triton.jit
def _mean_and_squares(
    x, residual, row, begin, end, STEP: tl.constexpr, HAS_RESIDUAL: tl.constexpr, SUBTRACT_MEAN: tl.constexpr
):
    """Return the mean of some columns and the sum of squared deviations from it; without SUBTRACT_MEAN, from 0."""
    block = tl.arange(0, STEP)
    # Each lane keeps a mean and a sum of squared deviations from it (Welford).
    lane_mean = tl.zeros([STEP], tl.float32)
    lane_squares = tl.zeros([STEP], tl.float32)
    count = 0.0
    for start in range(begin, end, STEP):
        columns = start + block
        inside = columns < end
        values, added = _load(x, residual, row, columns, inside, HAS_RESIDUAL)
        values = _sum(values, added, residual, row, columns, inside, HAS_RESIDUAL, False)
        count += 1.0
        if SUBTRACT_MEAN:
            delta = tl.where(inside, values - lane_mean, 0.0)
            lane_mean += delta * (1.0 / count)
            lane_squares += delta * (values - lane_mean)
        else:
            lane_squares += values * values
    mean = 0.0
    squares = tl.sum(lane_squares, 0)
    if SUBTRACT_MEAN:
        size = tl.maximum(end - begin, 0)
        mean, squares = _join(lane_mean, lane_squares, tl.maximum(size - block + STEP - 1, 0) // STEP, size)
    return mean, squares


@triton.jit
def _join(means, squares, counts, size):
    """Join means and squared deviations of parts of these counts, `size` in all (Chan)."""
    mean = tl.sum(means * counts, 0) / tl.maximum(size, 1)
    return mean, tl.sum(squares + counts * (means - mean) * (means - mean), 0)


@triton.jit
def _load(x, residual, row, columns, inside, HAS_RESIDUAL: tl.constexpr):
    """Load (x, residual) as they are stored, 0 outside or for a null residual; x twice without HAS_RESIDUAL."""
    values = tl.load(x.ptr + row * x.stride_rows + columns, mask=inside, other=0.0)
    added = values
    if HAS_RESIDUAL:
        there = inside & given(residual.ptr)
        added = tl.load(residual.ptr + row * residual.stride_rows + columns, mask=there, other=0.0)
    return values, added


@triton.jit
def _sum(values, added, residual, row, columns, inside, HAS_RESIDUAL: tl.constexpr, WRITE_BACK: tl.constexpr):
    """Convert values from `_load` to fp32; with a residual, add it, rounded to its dtype, and write the sum there."""
    total = values.to(tl.float32)
    if HAS_RESIDUAL:
        rounded = (total + added.to(tl.float32)).to(values.dtype)
        if WRITE_BACK:
            there = inside & given(residual.ptr)
            tl.store(residual.ptr + row * residual.stride_rows + columns, rounded, mask=there)
        total = rounded.to(tl.float32)
    return total


@triton.jit
def _affine(weight, bias, smooth, columns, inside, zero_centred):
    """Load the factor and the summand of the columns, fp32."""
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32) + zero_centred.to(tl.float32)
    shift = 0.0
    if bias is not None:
        shift = tl.load(bias + columns, mask=inside & given(bias), other=0.0).to(tl.float32)
    if smooth is not None:  # noqa: SIM102 - the other one is tested at run time
        if given(smooth):
            factor = tl.load(smooth + columns, mask=inside, other=1.0)
            gain *= factor
            if bias is not None:
                shift *= factor
    return gain, shift


@triton.jit
def _normalise(values, cols, eps, inside, SUBTRACT_MEAN: tl.constexpr):
    if SUBTRACT_MEAN:
        values = tl.where(inside, values - (tl.sum(values, 1) / cols)[:, None], 0.0)
    return values * tl.rsqrt(tl.sum(values * values, 1) / cols + eps)[:, None]


@triton.jit
def _store(values, out, row_scales, scale, bound, row, rows, columns, inside, LARGEST: tl.constexpr):
    if row_scales is not None:
        row_scale = _scale(tl.max(tl.where(inside, tl.abs(values), 0.0), 1)[:, None], scale, bound, LARGEST)
        tl.store(row_scales + row, row_scale, mask=row < rows)
        values = quantise(values, row_scale, out.ptr.dtype.element_ty, LARGEST)
    tl.store(out.ptr + row * out.stride_rows + columns, values.to(out.ptr.dtype.element_ty), mask=inside)


@triton.jit
def _scale(largest, scale, bound, LARGEST: tl.constexpr):
    """Return the given scale or, if that is None or null, the one of the largest magnitude, but of `bound` at most, if
    that is more than 0."""
    bound = tl.where(bound > 0, bound, float("inf"))
    made = scale_of(tl.minimum(largest, bound, propagate_nan=tl.PropagateNan.ALL), LARGEST)
    if scale is not None:
        made = tl.where(given(scale), tl.load(scale, given(scale), 0.0), made)
    return made
