"""Leave out all but the largest probabilities or logits of each row, by the thresholds of `sample.threshold_rows`."""

import triton
import triton.language as tl

from kernels.common.tensors import Matrix
from kernels.rows.sample import order_key


@triton.jit
def renormalise_rows(probs: Matrix, thresholds, out: Matrix, cols, STEP: tl.constexpr):
    """Divide probabilities from the row's threshold on by their sum, in fp32; the others become 0. Grid: (rows,).

    probs, out: [rows, cols] of one dtype, columns contiguous. thresholds: int32 [rows].
    """
    row = tl.program_id(0)
    source, target = probs.ptr + row * probs.stride_rows, out.ptr + row * out.stride_rows
    threshold = tl.load(thresholds + row)
    lanes = tl.zeros([STEP], tl.float32)
    for start in range(0, cols, STEP):
        columns = start + tl.arange(0, STEP)
        values = tl.load(source + columns, mask=columns < cols, other=0.0).to(tl.float32)
        lanes += tl.where(order_key(values) >= threshold, values, 0.0)
    total = tl.sum(lanes, 0)
    factor = 1.0 / tl.where(total == 0, 1.0, total)
    for start in range(0, cols, STEP):
        columns = start + tl.arange(0, STEP)
        values = tl.load(source + columns, mask=columns < cols, other=0.0).to(tl.float32)
        values = tl.where(order_key(values) >= threshold, values * factor, 0.0)
        tl.store(target + columns, values.to(out.ptr.dtype.element_ty), mask=columns < cols)


@triton.jit
def mask_pieces(logits: Matrix, thresholds, out: Matrix, cols, BLOCK: tl.constexpr):
    """BLOCK logits of a row; -inf for those below the row's threshold. Grid: (rows, cdiv(cols, BLOCK)).

    logits, out: [rows, cols] of one dtype, columns contiguous. thresholds: int32 [rows].
    """
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < cols
    values = tl.load(logits.ptr + row * logits.stride_rows + columns, mask=inside, other=0.0)
    kept = order_key(values.to(tl.float32)) >= tl.load(thresholds + row)
    tl.store(out.ptr + row * out.stride_rows + columns, tl.where(kept, values, float("-inf")), mask=inside)
