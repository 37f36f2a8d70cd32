"""Loads and stores of rows, 16 bytes at a time wherever these begin, if the hardware can do that.

AMD's GPUs can: HSA lets memory be accessed at any address. Triton only makes wide accesses of what it takes to be
aligned, so it is told that runs of 16 bytes are.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from triton.language.target_info import is_hip


class Rows(NamedTuple):
    """A tensor of [rows, columns] with contiguous columns.

    aligned: rows begin at multiples of 16 bytes and consist of whole ones, as hints say.
    """

    ptr: tl.tensor
    stride_rows: tl.tensor
    stride_columns: tl.tensor
    aligned: tl.constexpr


@triton.jit
def by_elements(x):
    """Return Rows that are accessed as hints allow, since columns do not come in runs of 16 bytes."""
    return Rows(x.ptr, x.stride_rows, x.stride_columns, True)


class Columns(NamedTuple):
    """Columns of a tile, [1, BLOCK] or [BLOCK].

    If runs of 16 bytes are loaded from any address, the last one begins so early that it is whole, too. Columns that it
    shares with the one before are not `inside`.

    at: the columns; loaded, inside: bool, not beyond the last column; whole: bool, of runs that share none; few: there
    is no whole run, so that single elements are loaded.
    """

    at: tl.tensor
    loaded: tl.tensor
    inside: tl.tensor
    whole: tl.tensor
    few: tl.tensor


@triton.constexpr_function
def run_width(aligned, is_amd, dtype):
    """Return the elements of a run, 1 if hints or single elements serve."""
    return 1 if aligned or not is_amd else 128 // dtype.primitive_bitwidth


@triton.jit
def columns_of(place, end, x):
    """Return the Columns of a tile of x before `end`; place: the columns, in order from a multiple of 16 bytes on."""
    WIDTH: tl.constexpr = run_width(x.aligned, is_hip(), x.ptr.dtype.element_ty)
    if WIDTH == 1:
        inside = place < end
        return Columns(place, inside, inside, inside, False)
    else:
        few = end < WIDTH
        begin = place // WIDTH * WIDTH
        begin = tl.max_constancy(begin, [WIDTH] if len(place.shape) == 1 else [1, WIDTH])
        at = tl.where(few, place, tl.minimum(begin, end - WIDTH) + place % WIDTH)
        loaded = begin < tl.where(few, 0, end)
        return Columns(at, loaded, (at >= begin) & (at < end), begin + WIDTH <= end, few)


@triton.jit
def load_columns(ptr, columns, x, there=True):
    """Load the elements at ptr of some Columns of x, 0 where they are not `inside` or not `there`.

    ptr, there: scalars or [rows, 1].
    """
    WIDTH: tl.constexpr = run_width(x.aligned, is_hip(), x.ptr.dtype.element_ty)
    if WIDTH == 1:
        return tl.load(ptr + columns.at, mask=there & columns.inside, other=0.0)
    else:
        values = tl.load(wide(ptr, columns.at, WIDTH), mask=there & columns.loaded, other=0.0)
        if columns.few:
            values = tl.load(ptr + columns.at, mask=there & columns.inside, other=0.0)
        return tl.where(columns.inside, values, 0.0)


@triton.jit
def store_columns(ptr, columns, values, x, there=True):
    """Store elements like `load_columns`. No element is stored twice."""
    WIDTH: tl.constexpr = run_width(x.aligned, is_hip(), x.ptr.dtype.element_ty)
    if WIDTH == 1:
        tl.store(ptr + columns.at, values, mask=there & columns.inside)
    else:
        tl.store(wide(ptr, columns.at, WIDTH), values, mask=there & columns.whole)
        tl.store(ptr + columns.at, values, mask=there & columns.inside & ~columns.whole)


@triton.jit
def wide(ptr, columns, WIDTH: tl.constexpr):
    """Return ptr + columns, and tell Triton that runs of 16 bytes are aligned."""
    UNIT: tl.constexpr = WIDTH * ptr.dtype.element_ty.primitive_bitwidth // 8
    at = ptr + columns
    if len(columns.shape) == 1:
        return tl.multiple_of(tl.max_contiguous(at, [WIDTH]), [UNIT])
    else:
        return tl.multiple_of(tl.max_contiguous(at, [1, WIDTH]), [1, UNIT])
