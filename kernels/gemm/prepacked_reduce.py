"""The second launch of products for which several programs divide k."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels.common.tensors import Matrix, given


@triton.jit
def add_parts(partial, e: Matrix, bias, m, tiles, parts, MOST: tl.constexpr, BLOCK_N: tl.constexpr):
    """e = the sum of `parts` products, in the order of k, + bias. Grid: (m, cdiv(64 * tiles, BLOCK_N)).

    partial: fp32 [parts, m, 64 * tiles], of at most MOST parts, so that all are loaded at once.
    """
    gdc_launch_dependents()
    row, columns = tl.program_id(0), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    stored = columns < 64 * tiles
    gdc_wait()
    acc = tl.zeros([BLOCK_N], tl.float32)
    for part in tl.static_range(MOST):
        at = partial + (part * tl.cast(m, tl.int64) + row) * (64 * tiles) + columns
        acc += tl.load(at, stored & (part < parts), 0)
    acc += tl.load(bias + columns, stored & given(bias), 0).to(tl.float32)
    at = e.ptr + row.to(tl.int64) * e.stride_rows + columns * e.stride_columns
    tl.store(at, acc.to(e.ptr.dtype.element_ty), stored)
