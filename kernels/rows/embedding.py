"""Rows of a table, by number."""

import triton
import triton.language as tl


@triton.jit
def gather_rows(
    table, ids, out, vocabulary, cols, stride_table_vocabulary, stride_out_tokens, BLOCK: tl.constexpr
):  # fmt: skip
    """out[i, :] = table[ids[i], :], or 0 where there is no such row. Grid: (tokens, cdiv(cols, BLOCK)).

    table: [vocabulary, cols], out: [tokens, cols] of one dtype, columns contiguous; ids: int32 or int64 [tokens].
    """
    token = tl.program_id(0)
    row = tl.load(ids + token)
    known = (row >= 0) & (row < vocabulary)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < cols
    table += tl.where(known, row, 0) * stride_table_vocabulary
    values = tl.load(table + columns, mask=inside & known, other=0.0)
    tl.store(out + token * stride_out_tokens + columns, values, mask=inside)
