"""Divide decoding among programs: tiles of query rows, and parts of a sequence's keys, which are merged at the end.

A row is a (token, query head) pair. The query heads that share a key head are rows of one tile, so each byte of the
cache is read once.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.softmax import LN_2, LOG2_E, add_logit, fold, inverse, log2_sum
from kernels.common.tensors import HeadRows, Heads


class Sequence(NamedTuple):
    """A sequence: its number in the batch, its first token in q and out, the number of its first query among those of
    all sequences, and how many queries and keys it has."""

    batch: tl.tensor
    first_token: tl.tensor
    first_query: tl.tensor
    queries: tl.tensor
    keys: tl.tensor


class Rows(NamedTuple):
    """Rows of a tile, each [BLOCK_M]: tokens within the sequence and query heads, int32, and whether the row exists.

    Rows past a sequence's last token repeat that: loads need no masks, and what is made of them is not stored.
    """

    tokens: tl.tensor
    heads: tl.tensor
    present: tl.tensor


class Parts(NamedTuple):
    """Partial results of programs that share a row, for `merge_parts`.

    partial: fp32 [query, head, splits, columns], each part normalised; partial_lse: fp32 [query, head, splits], the
        logarithms of sums of exponentials, to base 2; splits: parts of a sequence. A single part is the result itself,
        and is not stored here, unless `always` is set, which omits the code for that case.
    """

    partial: tl.tensor
    partial_lse: tl.tensor
    splits: tl.tensor
    always: tl.constexpr = False


@triton.jit
def sequence_of(batch, seqlen_q, seqlen_k, cu_seqlens_q, total_q, seqlens_k):
    """Sequence `batch`, of seqlen_q queries, and seqlen_k keys or as many as seqlens_k (int32 [batch], or None or null)
    says. With cu_seqlens_q (int32 [batch + 1]) its queries are some of total_q. Whatever these say, it is within them.
    """
    first_token, queries = 0, seqlen_q
    first_query = batch * seqlen_q
    if cu_seqlens_q is not None:
        first_token = tl.minimum(tl.maximum(tl.load(cu_seqlens_q + batch), 0), total_q)
        queries = tl.minimum(tl.load(cu_seqlens_q + batch + 1), total_q) - first_token
        first_query = first_token
    keys = seqlen_k
    if seqlens_k is not None and seqlens_k.to(tl.int64) != 0:
        keys = tl.minimum(tl.maximum(tl.load(seqlens_k + batch), 0), seqlen_k)
    return Sequence(batch, first_token, first_query, queries, keys)


@triton.jit
def rows_of(tile, head_kv, group, queries, BLOCK_M: tl.constexpr):
    """Make the Rows of a tile of a key head, which `group` query heads share."""
    return rows_at(tile * BLOCK_M + tl.arange(0, BLOCK_M), head_kv, group, queries)


@triton.jit
def rows_at(rows, head_kv, group, queries):
    """Make the Rows with these indices of a key head."""
    tokens, heads = tl.minimum(rows // group, queries - 1), head_kv * group + rows % group
    return Rows(tokens, heads, rows < queries * group)


@triton.jit
def offsets_of(tensor: Heads, sequence: Sequence, rows: Rows):
    """Return offsets of Rows in a tensor [batch, heads, tokens, head_dim], from the address of their batch."""
    return (sequence.first_token + rows.tokens) * tensor.stride_rows + rows.heads * tensor.stride_heads


@triton.jit
def load_queries(q: Heads, sequence: Sequence, rows: Rows, columns, head_dim, PADDED: tl.constexpr):
    """Load columns of Rows of q: [BLOCK_M, len(columns)]; PADDED: 0 from head_dim on. Float8 is widened to float16."""
    pointers = q.ptr + sequence.batch * q.stride_batch + offsets_of(q, sequence, rows)[:, None] + columns[None, :]
    tile = tl.load(pointers, (columns < head_dim)[None, :], 0.0) if PADDED else tl.load(pointers)
    return tile.to(tl.float16) if tile.dtype.is_fp8() else tile


@triton.jit
def given_sinks(sinks):
    """Test whether there are sinks, which may be None or null."""
    return False if sinks is None else sinks.to(tl.int64) != 0


@triton.jit
def part(begin, end, split, splits, BLOCK_N: tl.constexpr):
    """Return (begin, end) of one of `splits` even parts of the keys [begin, end), in whole tiles from `begin` on."""
    length = tl.cdiv(tl.cdiv(tl.maximum(end - begin, 0), BLOCK_N), splits) * BLOCK_N
    first = begin + split * length
    return first, tl.minimum(end, first + length)


@triton.jit
def store_rows(
    acc, row_lse, sequence: Sequence, rows: Rows, columns, split, parts: Parts, out: Heads, lse: HeadRows, heads,
    head_dim, PADDED: tl.constexpr,
):  # fmt: skip
    """Store a program's Rows in Parts, for `merge_parts`; or, if there is only one part, in out [batch, heads, tokens,
    head_dim] and, unless it is null, lse [batch, heads, tokens], as natural logarithms.

    acc: fp32 [BLOCK_M, len(columns)], normalised; columns: their indices, some from head_dim on if PADDED. row_lse:
    fp32 [BLOCK_M], base 2. Triton's conversion to float8 saturates.
    """
    present = rows.present[:, None]
    if parts.always or parts.splits > 1:
        place = ((sequence.first_query + rows.tokens).to(tl.int64) * heads + rows.heads) * parts.splits + split
        tl.store(parts.partial_lse + place, row_lse, mask=rows.present)
        tl.store(parts.partial + place[:, None] * acc.shape[1] + columns[None, :], acc, mask=present)
    else:
        # Before out, whose stores take all the scalar registers that there are.
        if lse.ptr.to(tl.int64) != 0:
            lse_rows = lse.ptr + sequence.batch * lse.stride_batch
            tl.store(lse_rows + offsets_of(lse, sequence, rows), row_lse * LN_2, mask=rows.present)
        out_rows = out.ptr + sequence.batch * out.stride_batch + offsets_of(out, sequence, rows)[:, None]
        stored = present & (columns < head_dim)[None, :] if PADDED else present
        tl.store(out_rows + columns[None, :], acc.to(out.ptr.dtype.element_ty), mask=stored)


@triton.jit
def merge_parts(
    parts: Parts, out: Heads, lse: HeadRows, heads, seqlen_q, head_dim, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr,
    cu_seqlens_q=None, sequences=0, sinks=None,
):  # fmt: skip
    """Join the parts of each row. Grid: (tokens, heads, batch).

    parts: of HEAD_DIM columns, its queries those of [batch, seqlen_q]. out: [batch, heads, seqlen_q, head_dim]; lse:
    fp32 [batch, heads, seqlen_q], natural, or null. SPLITS: power of two, parts that are read at once; they are summed
    in an order that depends on nothing but their number. cu_seqlens_q: int32 [sequences + 1], or None; tokens from its
    last number on are of no sequence, and left out. sinks: fp32 [heads], a logit of each head that is added to the sums
    of exponentials; None or null: none.
    """
    await_earlier_launches()
    token, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if cu_seqlens_q is not None and token >= tl.load(cu_seqlens_q + sequences):
        return
    place = ((batch * seqlen_q + token).to(tl.int64) * heads + head) * parts.splits
    columns = tl.arange(0, HEAD_DIM)
    acc = tl.zeros([1, HEAD_DIM], tl.float32)
    row_max = tl.full([1], float("-inf"), tl.float32)
    row_sum = tl.zeros([1], tl.float32)
    for start in range(0, parts.splits, SPLITS):
        at = start + tl.arange(0, SPLITS)
        known = at < parts.splits
        part_lse = tl.load(parts.partial_lse + place + at, mask=known, other=float("-inf"))
        weights, rescale, row_max, row_sum = fold(part_lse[None, :], row_max, row_sum)
        rows = parts.partial + (place + at)[:, None] * HEAD_DIM + columns[None, :]
        values = tl.load(rows, mask=known[:, None], other=0.0)
        acc = acc * rescale[:, None] + tl.sum(values * tl.trans(weights), 0)[None, :]
    if given_sinks(sinks):
        acc, row_max, row_sum = add_logit(acc, row_max, row_sum, tl.load(sinks + head + tl.arange(0, 1)) * LOG2_E)
    acc *= inverse(row_sum)[:, None]
    out_row = out.ptr + batch * out.stride_batch + head * out.stride_heads + token * out.stride_rows
    tl.store(out_row + columns[None, :], acc.to(out.ptr.dtype.element_ty), mask=(columns < head_dim)[None, :])
    if lse.ptr.to(tl.int64) != 0:
        lse_row = lse.ptr + batch * lse.stride_batch + head * lse.stride_heads + token * lse.stride_rows
        tl.store(lse_row + tl.arange(0, 1), log2_sum(row_max, row_sum) * LN_2)
