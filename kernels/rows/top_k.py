"""The largest elements of each row, and their columns."""

import triton
import triton.language as tl

from kernels.common.tensors import Matrix, given
from kernels.rows.sample import LOWEST, order_key, search

LAST: tl.constexpr = tl.constexpr(1)
"""Value of `ties`; 0: the first."""


@triton.jit
def select_rows(
    x: Matrix, lengths, chosen_keys, chosen_columns, cols, k, ties, STEP: tl.constexpr, SAME_BITS: tl.constexpr
):
    """Choose the k largest elements of each row, the first of equal ones or, if ties is LAST, the last. Grid: (rows,).

    x: [rows, cols], columns contiguous. lengths: int32 [rows], columns of a row that take part, or a null pointer.
    chosen_keys, chosen_columns: int32 [rows, k]; their keys (`sample.order_key`) and columns, in the order of columns;
    past those of a row with fewer than k, LOWEST and -1. SAME_BITS: as in `sample.threshold_rows`.
    """
    row = tl.program_id(0)
    source = x.ptr + row * x.stride_rows
    end = tl.minimum(tl.maximum(tl.load(lengths + row, given(lengths), cols), 0), cols)
    wanted = tl.minimum(k, end)
    threshold = search(source, end, LOWEST, 0.0, 0.0, wanted.to(tl.float32), STEP, SAME_BITS, False, False)
    last_equal = threshold + ((1 << SAME_BITS) - 1)
    lanes_above = tl.zeros([STEP], tl.int32)
    lanes_equal = tl.zeros([STEP], tl.int32)
    for start in range(0, end, STEP):
        columns = start + tl.arange(0, STEP)
        keys = _keys(source, columns, end)
        lanes_above += (keys > last_equal).to(tl.int32)
        lanes_equal += ((keys >= threshold) & (keys <= last_equal) & (columns < end)).to(tl.int32)
    equals_taken = wanted - tl.sum(lanes_above, 0)
    equals_skipped = tl.where(ties == LAST, tl.sum(lanes_equal, 0) - equals_taken, 0)

    to_keys = chosen_keys + row.to(tl.int64) * k
    to_columns = chosen_columns + row.to(tl.int64) * k
    count = 0
    equal_count = 0
    for start in range(0, end, STEP):
        columns = start + tl.arange(0, STEP)
        keys = _keys(source, columns, end)
        is_equal = (keys >= threshold) & (keys <= last_equal) & (columns < end)
        equals = equal_count + tl.cumsum(is_equal.to(tl.int32), 0)
        equals -= equals_skipped
        taken = (keys > last_equal) | (is_equal & (equals > 0) & (equals <= equals_taken))
        places = count + tl.cumsum(taken.to(tl.int32), 0) - 1
        tl.store(to_keys + places, keys, taken)
        tl.store(to_columns + places, columns, taken)
        count += tl.sum(taken.to(tl.int32), 0)
        equal_count += tl.sum(is_equal.to(tl.int32), 0)
    for start in range(wanted, k, STEP):
        places = start + tl.arange(0, STEP)
        tl.store(to_keys + places, tl.full([STEP], LOWEST, tl.int32), places < k)
        tl.store(to_columns + places, tl.full([STEP], -1, tl.int32), places < k)


@triton.jit
def _keys(source, columns, end):
    """Load the keys of columns; LOWEST from `end` on."""
    inside = columns < end
    return tl.where(inside, order_key(tl.load(source + columns, inside, 0.0).to(tl.float32)), LOWEST)


@triton.jit
def order_rows(
    x: Matrix, chosen_keys, chosen_columns, offsets, table: Matrix, values: Matrix, columns: Matrix, k, is_sorted,
    ties, page_size, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store what `select_rows` chose: if is_sorted, the largest first, of equal ones the one that `ties` prefers; else
    in the order of columns.

    Grid: (rows, cdiv(k, BLOCK)). values, columns: [rows, k], -inf and -1 where nothing was chosen. offsets: int32
    [rows], added to columns, or a null pointer. table: int32 [rows, pages] or a null pointer; column i becomes
    table[row, i // page_size] * page_size + i % page_size.
    """
    row = tl.program_id(0)
    at = row.to(tl.int64) * k
    slot = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = slot < k
    key = tl.load(chosen_keys + at + slot, inside, LOWEST)
    column = tl.load(chosen_columns + at + slot, inside, -1)
    place = slot
    if is_sorted:
        place = tl.zeros([BLOCK], tl.int32)
        for start in range(0, k, BLOCK):
            other = start + tl.arange(0, BLOCK)
            other_key = tl.load(chosen_keys + at + other, other < k, LOWEST)
            is_equal = other_key[None, :] == key[:, None]
            ahead = slot[:, None] - other[None, :]
            ahead = tl.where(ties == LAST, -ahead, ahead)
            is_before = (other_key[None, :] > key[:, None]) | (is_equal & (ahead > 0) & (other < k)[None, :])
            place += tl.sum(is_before.to(tl.int32), 1)
    there = inside & (column >= 0)
    value = tl.load(x.ptr + row * x.stride_rows + column, there, float("-inf"))
    tl.store(values.ptr + row * values.stride_rows + place, value, inside)
    page = tl.load(table.ptr + row * table.stride_rows + column // page_size, there & given(table.ptr), 0)
    number = tl.where(given(table.ptr), page * page_size + column % page_size, column)
    number += tl.load(offsets + row, given(offsets), 0)
    tl.store(columns.ptr + row * columns.stride_rows + place, tl.where(there, number, -1), inside)
