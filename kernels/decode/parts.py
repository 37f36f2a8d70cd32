"""What decoding kernels share: the part of a sequence that a program takes, an online softmax, and where parts meet.

Scores are in units of log2 throughout, so that one instruction makes a probability of them.
"""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def part(begin, end, split, splits, BLOCK_N: tl.constexpr):
    """Begin and end of one of `splits` even parts of the keys [begin, end), in whole tiles from `begin` on."""
    length = tl.cdiv(tl.cdiv(tl.maximum(end - begin, 0), BLOCK_N), splits) * BLOCK_N
    first = begin + split * length
    return first, tl.minimum(end, first + length)


@triton.jit
def queries_of(cu_seqlens_q, batch, total):
    """First query of a sequence among `total`, and how many it has; both within them, whatever cu_seqlens_q says."""
    first = tl.minimum(tl.maximum(tl.load(cu_seqlens_q + batch), 0), total)
    return first, tl.minimum(tl.load(cu_seqlens_q + batch + 1), total) - first


@triton.jit
def find(table, start, at, blocks, block_size, WHOLE_BLOCKS: tl.constexpr):
    """Block and place in it of the keys `at`, a tile that begins at `start`, a multiple of its size.

    WHOLE_BLOCKS: block_size is a multiple of 64, so that a tile of up to 64 keys is of one block.
    """
    if WHOLE_BLOCKS and at.shape[0] <= 64:
        block = tl.load(table + start // block_size)
        place = at - start // block_size * block_size
    else:
        block = tl.load(table + at // block_size)
        place = at % block_size
    return tl.minimum(tl.maximum(block, 0), blocks - 1), place


@triton.jit
def load_rows(array, at, columns, head_dim, PADDED: tl.constexpr):
    """Rows of an array, [len(at), len(columns)]; 0 in columns that it does not have."""
    pointers = array + at[:, None] + columns[None, :]
    return tl.load(pointers, (columns < head_dim)[None, :], 0.0) if PADDED else tl.load(pointers)


@triton.jit
def fold(scores, row_max, row_sum):
    """Probabilities of a tile of scores [rows, keys], the factor of what was summed before, new maximum and sum."""
    new_max = tl.maximum(row_max, tl.max(scores, 1))
    origin = tl.where(new_max == float("-inf"), 0.0, new_max)  # -inf - -inf is not a number
    p = tl.exp2(scores - origin[:, None])
    rescale = tl.exp2(row_max - origin)
    return p, rescale, new_max, row_sum * rescale + tl.sum(p, 1)


@triton.jit
def finish(acc, row_max, row_sum):
    """Normalised rows, and their logarithms (to base 2) of sums of exponentials: 0 and -inf where no key was seen."""
    return acc * (1.0 / tl.where(row_sum == 0, 1.0, row_sum))[:, None], row_max + tl.log2(row_sum)


@triton.jit
def cap(scores, softcap):
    """softcap * tanh(scores / softcap); the scores where softcap is 0."""
    if softcap > 0:
        scores = softcap - 2 * softcap / (tl.exp2(scores * (2 * LOG2_E / softcap)) + 1)
    return scores


@triton.jit
def merge_parts(
    partial, partial_lse, out, lse, heads, seqlen_q, head_dim, splits,
    stride_out_heads, stride_out_tokens, stride_lse_heads, stride_lse_tokens,
    HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr,
    stride_out_batch=0, stride_lse_batch=0, cu_seqlens_q=None, sequences=0,
):  # fmt: skip
    """Join the parts of each row. Grid: (tokens, heads, batch).

    partial: fp32 [batch, seqlen_q, heads, splits, HEAD_DIM], each part normalised; partial_lse: fp32 [batch, seqlen_q,
    heads, splits], base 2. out: [batch, heads, seqlen_q, head_dim]; lse: fp32 [batch, heads, seqlen_q], natural, or 0.
    SPLITS: power of two, parts that are read at once; they are summed in an order that depends on nothing but their
    number. cu_seqlens_q: int32 [sequences + 1], or None; tokens from its last number on are of none, and left out.
    """
    token, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if cu_seqlens_q is not None and token >= tl.load(cu_seqlens_q + sequences):
        return
    place = ((batch * seqlen_q + token).to(tl.int64) * heads + head) * splits
    columns = tl.arange(0, HEAD_DIM)
    acc = tl.zeros([HEAD_DIM], tl.float32)
    row_sum = 0.0
    row_max = float("-inf")
    for start in range(0, splits, SPLITS):
        at = start + tl.arange(0, SPLITS)
        known = at < splits
        part_lse = tl.load(partial_lse + place + at, mask=known, other=float("-inf"))
        new_max = tl.maximum(row_max, tl.max(part_lse, 0))
        origin = tl.where(new_max == float("-inf"), 0.0, new_max)
        weight = tl.exp2(part_lse - origin)
        rescale = tl.exp2(row_max - origin)
        parts = tl.load(partial + (place + at)[:, None] * HEAD_DIM + columns[None, :], mask=known[:, None], other=0.0)
        acc = acc * rescale + tl.sum(parts * weight[:, None], 0)
        row_sum = row_sum * rescale + tl.sum(weight, 0)
        row_max = new_max
    acc *= 1.0 / tl.where(row_sum == 0, 1.0, row_sum)
    out += batch * stride_out_batch + head * stride_out_heads + token * stride_out_tokens
    tl.store(out + columns, acc.to(out.dtype.element_ty), mask=columns < head_dim)
    if lse.to(tl.int64) != 0:
        lse += batch * stride_lse_batch + head * stride_lse_heads + token * stride_lse_tokens
        tl.store(lse, (row_max + tl.log2(row_sum)) * LN_2)
