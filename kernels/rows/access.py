"""Loads and stores of rows, 16 bytes at a time wherever they begin, if the hardware can do that."""

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
    """Return Rows of whose columns any may be accessed, not just runs of 16 bytes."""
    return Rows(x.ptr, x.stride_rows, x.stride_columns, True)


@triton.jit
def load_columns(ptr, columns, end, aligned: tl.constexpr, there=True):
    """Load the elements at ptr + columns, 0 from column `end` on, and where not `there`; if not aligned, as fp32.

    columns: runs of 16 bytes, [n] or [rows, n]; ptr, there: scalars or [rows, 1].
    """
    if aligned or not is_hip():
        return tl.load(ptr + columns, mask=there & (columns < end), other=0.0)
    else:
        whole = is_whole(columns, end, ptr.dtype.element_ty)
        values = tl.load(wide(ptr, columns), mask=there & whole, other=0.0).to(tl.float32)
        # Each of these has a register of its own, or each would wait for the one before.
        others = tl.load(ptr + columns, mask=there & (columns < end) & ~whole, other=0.0).to(tl.float32)
        return tl.where(whole, values, others)


@triton.jit
def store_columns(ptr, columns, values, end, aligned: tl.constexpr, there=True):
    """Store elements like `load_columns`."""
    if aligned or not is_hip():
        tl.store(ptr + columns, values, mask=there & (columns < end))
    else:
        whole = is_whole(columns, end, ptr.dtype.element_ty)
        tl.store(wide(ptr, columns), values, mask=there & whole)
        tl.store(ptr + columns, values, mask=there & (columns < end) & ~whole)


@triton.jit
def is_whole(columns, end, dtype: tl.constexpr):
    """Test of each column if its run of 16 bytes ends at `end` or before."""
    WIDTH: tl.constexpr = 128 // dtype.primitive_bitwidth
    ends = columns // WIDTH * WIDTH + WIDTH
    if len(columns.shape) == 1:
        return tl.max_constancy(ends, WIDTH) <= end
    else:
        return tl.max_constancy(ends, [1, WIDTH]) <= end


@triton.jit
def wide(ptr, columns):
    """Return ptr + columns, and tell Triton that runs of 16 bytes are aligned, so that it accesses whole ones.

    That they are not does no harm: HSA lets global memory be accessed at any address.
    """
    WIDTH: tl.constexpr = 128 // ptr.dtype.element_ty.primitive_bitwidth
    at = ptr + columns
    if len(columns.shape) == 1:
        return tl.multiple_of(tl.max_contiguous(at, WIDTH), 16)
    else:
        return tl.multiple_of(tl.max_contiguous(at, [1, WIDTH]), [1, 16])
