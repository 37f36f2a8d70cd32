"""Quantise floats to 8 bits, with their scales."""

import triton
import triton.language as tl

from kernels.common.rounding import half_to_even, power_of_two_above, quotient, scale_of
from kernels.common.tensors import Matrix, given

TINY: tl.constexpr = tl.constexpr(1e-12)
"""Smallest scale, which avoids divisions by 0."""
FAR: tl.constexpr = tl.constexpr(2**30 - 1)
"""A magnitude of codes and zeros beyond all of int8, of which two sums fit int32."""


@triton.jit
def eight_bits(x, scale, dtype: tl.constexpr, LARGEST: tl.constexpr):
    """x / scale between -LARGEST and LARGEST, of int8 or float8, rounded half to even; a NaN becomes 0 in int8."""
    value = quotient(x, scale)
    if dtype == tl.int8:
        value = tl.where(value == value, value, 0.0)
        value = half_to_even(tl.minimum(tl.maximum(value, -LARGEST), LARGEST))
    else:
        value = tl.clamp(value, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return value.to(dtype)


@triton.jit
def shifted(x, scale, zero):
    """x / scale, rounded half to even, plus zero, int32: int8, saturating. A NaN becomes that of 0."""
    value = quotient(x, scale)
    codes = nearest_code(tl.where(value == value, value, 0.0)) + tl.minimum(tl.maximum(zero, -FAR), FAR)
    return tl.minimum(tl.maximum(codes, -128), 127).to(tl.int8)


@triton.jit
def nearest_code(value):
    """Round fp32 half to even to int32, of magnitudes up to FAR."""
    value = tl.minimum(tl.maximum(value, -1.0 * FAR), 1.0 * FAR)
    return tl.where(tl.abs(value) < 4194304.0, half_to_even(value), value).to(tl.int32)


@triton.jit
def quantise_blocks(
    x: Matrix, q: Matrix, scale: Matrix, m, n, block, rows_per_scale,
    LARGEST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, bound=None, powers_of_two=None, static=None,
):  # fmt: skip
    """q * scale = x, with a scale for `rows_per_scale` rows of `block` columns. Grid: the shape of scale.

    x, q: [m, n]; scale: fp32 [cdiv(m, rows_per_scale), cdiv(n, block)], the largest magnitude of its part over LARGEST,
    in any order in memory. bound, powers_of_two, static: as for `quantise_part`.
    """
    part, first_column = tl.program_id(0), tl.program_id(1) * block
    first_row = part * rows_per_scale
    last_row, last_column = tl.minimum(first_row + rows_per_scale, m), tl.minimum(first_column + block, n)
    scale_at = scale.ptr + part * scale.stride_rows + tl.program_id(1) * scale.stride_columns
    quantise_part(
        x, q, scale_at, first_row, first_column, last_row, last_column, LARGEST, BLOCK_M, BLOCK_N, bound, powers_of_two,
        static,
    )  # fmt: skip


@triton.jit
def quantise_part(
    x, q, scale_at, first_row, first_column, last_row, last_column,
    LARGEST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, bound=None, powers_of_two=None, static=None,
):  # fmt: skip
    """q * scale = x for these rows and columns of two `Matrix`es, which get one scale.

    bound: if more than 0, the largest magnitude of which the scale is made; larger values saturate. powers_of_two: the
    scale is rounded up to one. static: fp32 [1], the scale to take; None, or a null pointer: one is made.
    """
    largest = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    end = last_row if static is None else tl.where(given(static), first_row, last_row)
    for row in range(first_row, end, BLOCK_M):
        for column in range(first_column, last_column, BLOCK_N):
            value = _load(x, row, column, last_row, last_column, BLOCK_M, BLOCK_N)
            largest = tl.maximum(largest, tl.abs(value))
    most = tl.max(tl.max(largest, 1), 0)
    if bound is not None:
        most = tl.minimum(most, tl.where(bound > 0, bound, float("inf")))
    factor = tl.maximum(scale_of(most, LARGEST), TINY)
    if powers_of_two is not None:
        factor = tl.where(powers_of_two, power_of_two_above(factor), factor)
    if static is not None:
        factor = tl.load(static) if given(static) else factor
    tl.store(scale_at, factor)
    for row in range(first_row, last_row, BLOCK_M):
        for column in range(first_column, last_column, BLOCK_N):
            value = _load(x, row, column, last_row, last_column, BLOCK_M, BLOCK_N)
            at, inside = _place(q, row, column, last_row, last_column, BLOCK_M, BLOCK_N)
            tl.store(at, eight_bits(value, factor, q.ptr.dtype.element_ty, LARGEST), inside)


@triton.jit
def quantise_shifted(x: Matrix, q: Matrix, scale, zero, m, n, BLOCK_N: tl.constexpr):
    """(q - zero) * scale = x, with a scale and a zero for each row. Grid: (m).

    They map the smallest value of a row to -128, and its largest to 127.
    x: [m, n], q: int8 [m, n]; scale: fp32 [m], zero: int32 [m]. A row of one value has a scale of its magnitude / 127.
    """
    row = tl.program_id(0)
    least, most = tl.full([1, BLOCK_N], float("inf"), tl.float32), tl.full([1, BLOCK_N], float("-inf"), tl.float32)
    for column in range(0, n, BLOCK_N):
        value = _load(x, row, column, m, n, 1, BLOCK_N)
        inside = (column + tl.arange(0, BLOCK_N) < n)[None, :]
        least = tl.where(inside, tl.minimum(least, value), least)
        most = tl.where(inside, tl.maximum(most, value), most)
    low, high = tl.min(tl.min(least, 1), 0), tl.max(tl.max(most, 1), 0)
    factor = tl.where(high > low, scale_of(high - low, 255.0), scale_of(tl.abs(high), 127.0))
    factor = tl.maximum(factor, TINY)
    shift = nearest_code(-128.0 - quotient(low, factor))
    tl.store(scale + row, factor)
    tl.store(zero + row, shift)
    for column in range(0, n, BLOCK_N):
        value = _load(x, row, column, m, n, 1, BLOCK_N)
        at, inside = _place(q, row, column, m, n, 1, BLOCK_N)
        tl.store(at, shifted(value, factor, shift), inside)


@triton.jit
def largest_of_rows(x: Matrix, partial, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The largest magnitude of BLOCK_M rows each, fp32. Grid: (cdiv(m, BLOCK_M))."""
    largest = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    row = tl.program_id(0) * BLOCK_M
    for column in range(0, n, BLOCK_N):
        largest = tl.maximum(largest, tl.abs(_load(x, row, column, m, n, BLOCK_M, BLOCK_N)))
    tl.store(partial + tl.program_id(0), tl.max(tl.max(largest, 1), 0))


@triton.jit
def scale_of_all(partial, scale, parts, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    """Compute the scale of a matrix from the results of `largest_of_rows` for its `parts` parts. Grid: (1)."""
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, parts, BLOCK):
        at = start + tl.arange(0, BLOCK)
        largest = tl.maximum(largest, tl.load(partial + at, at < parts, 0.0))
    tl.store(scale, tl.maximum(scale_of(tl.max(largest, 0), LARGEST), TINY))


@triton.jit
def quantise_rows(
    x: Matrix, q: Matrix, scale, m, n, LARGEST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, zero=None
):
    """q = x / scale, with one scale for all. Grid: (cdiv(m, BLOCK_M), cdiv(n, BLOCK_N)).

    zero: int32 [1], added to the codes of int8; None, or a null pointer: 0.
    """
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    value = _load(x, row, column, m, n, BLOCK_M, BLOCK_N)
    at, inside = _place(q, row, column, m, n, BLOCK_M, BLOCK_N)
    codes = eight_bits(value, tl.load(scale), q.ptr.dtype.element_ty, LARGEST)
    if zero is not None and codes.dtype == tl.int8 and given(zero):
        codes = shifted(value, tl.load(scale), tl.load(zero))
    tl.store(at, codes, inside)


@triton.jit
def _place(x, row, column, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the addresses of a tile of a row-major `Matrix`, and a mask of those before row m and column n."""
    rows, columns = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    at = x.ptr + (rows[:, None] * x.stride_rows + columns[None, :])
    return at, (rows < m)[:, None] & (columns < n)[None, :]


@triton.jit
def _load(x, row, column, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Load a tile of x in fp32; 0 past the edges."""
    at, inside = _place(x, row, column, m, n, BLOCK_M, BLOCK_N)
    return tl.load(at, inside, 0.0).to(tl.float32)
