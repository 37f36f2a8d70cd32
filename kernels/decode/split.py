"""Attention of few queries over many keys: each program folds a part of a sequence's keys (flash decoding).

The query heads that share a key head are rows of one tile, so each byte of the cache is read once.
"""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def decode_split(
    q, k, v, out, lse, partial, partial_lse,
    heads, heads_kv, seqlen_q, seqlen_k, head_dim, splits,
    stride_q_batch, stride_q_heads, stride_q_tokens,
    stride_k_batch, stride_k_heads, stride_k_tokens,
    stride_v_batch, stride_v_heads, stride_v_tokens,
    stride_out_batch, stride_out_heads, stride_out_tokens,
    stride_lse_batch, stride_lse_heads, stride_lse_tokens,
    scale,
    HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, SPLIT: tl.constexpr, RETURN_LSE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    # What an op need not have
    seqlens_k=None, cu_seqlens_q=None, block_tables=None, blocks=0, block_size=0, stride_tables_batch=0,
    k_scale=None, stride_k_scale_batch=0, stride_k_scale_heads=0, stride_k_scale_tokens=0,
    v_scale=None, stride_v_scale_batch=0, stride_v_scale_heads=0, stride_v_scale_tokens=0,
    alibi_slopes=None, window=0, softcap=0.0,
    PAGE: tl.constexpr = 0, WINDOW: tl.constexpr = False, SOFTCAP: tl.constexpr = False,
):  # fmt: skip
    """Fold one of `splits` parts of a sequence's keys into a softmax, for BLOCK_M (token, head) rows of a key head.

    Grid: (cdiv(seqlen_q * heads // heads_kv, BLOCK_M) * splits, heads_kv, batch).

    q, out: [batch, heads, tokens, head_dim] of seqlen_q tokens; or, where cu_seqlens_q (int32 [batch + 1]) is given,
    [heads, tokens, head_dim] of all sequences' tokens, with stride 0 along batch and at most seqlen_q tokens a
    sequence. k, v: [batch, heads_kv, tokens, head_dim] of seqlen_k tokens; or, with block_tables (int32 [batch,
    seqlen_k / block_size]), [blocks, heads_kv, block_size, head_dim], the stride along blocks as that along batch.
    seqlens_k: int32 [batch], how many keys each sequence has; None: seqlen_k. Its queries are its last tokens: query
    t sees keys j <= t + keys - queries, with WINDOW only those with j >= t + keys - queries - window.

    alibi_slopes: fp32 [heads] or None; adds -slope * |distance|. SOFTCAP: scores become softcap * tanh(score /
    softcap). k_scale, v_scale: fp32, factors of
    the cache's numbers, with strides along its batch (or blocks), heads_kv and tokens, 0 where one serves all.

    SPLIT: writes partial fp32 [row, splits, HEAD_DIM], each part normalised, and partial_lse fp32 [row, splits] in
    units of log2, with row = (batch * seqlen_q + token) * heads + head, for `decode_merge`; else out and lse (natural).
    PAGE: block_size if that is a multiple of BLOCK_N, so that a tile lies in one block; else 0. What a length or a
    block table says is clamped: nothing outside of the cache is read.
    """
    tile, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    head_kv, batch = tl.program_id(1), tl.program_id(2)
    group = heads // heads_kv

    first_row, queries = batch * seqlen_q, seqlen_q
    first_token = 0
    if cu_seqlens_q is not None:
        first_token = tl.load(cu_seqlens_q + batch)
        queries = tl.load(cu_seqlens_q + batch + 1) - first_token
        first_row = first_token
    keys = seqlen_k
    if seqlens_k is not None:
        keys = tl.minimum(tl.maximum(tl.load(seqlens_k + batch), 0), seqlen_k)
    if tile * BLOCK_M >= queries * group:
        return

    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    tokens, heads_q = rows // group, head_kv * group + rows % group
    present = tokens < queries
    columns = tl.arange(0, HEAD_DIM)
    inside = columns[None, :] < head_dim if PADDED else columns[None, :] >= 0
    offsets = batch * stride_q_batch + (first_token + tokens) * stride_q_tokens + heads_q * stride_q_heads
    q_tile = tl.load(q + offsets[:, None] + columns[None, :], mask=present[:, None] & inside, other=0.0)

    last = tokens + (keys - queries)  # the last key that each row sees
    end = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // group + 1 + keys - queries, keys)
    begin = tl.maximum(tile * BLOCK_M // group + keys - queries - window, 0) // BLOCK_N * BLOCK_N if WINDOW else 0
    part = tl.cdiv(tl.cdiv(tl.maximum(end - begin, 0), BLOCK_N), splits) * BLOCK_N
    begin += split * part
    end = tl.minimum(end, begin + part)

    slopes = tl.load(alibi_slopes + heads_q) * LOG2_E if alibi_slopes is not None else None
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start in range(begin, end, BLOCK_N):
        at = start + tl.arange(0, BLOCK_N)
        known = at < keys
        if block_tables is not None:
            table = block_tables + batch * stride_tables_batch
            block, place = _find(table, start, at, known, blocks, block_size, PAGE)
        else:
            block, place = batch, at
        k_at = block * stride_k_batch + head_kv * stride_k_heads + place * stride_k_tokens
        k_tile = tl.load(k + k_at[:, None] + columns[None, :], mask=known[:, None] & inside, other=0.0)
        scores = tl.dot(q_tile, tl.trans(k_tile.to(q_tile.dtype)))
        if k_scale is not None:
            k_scale_at = block * stride_k_scale_batch + head_kv * stride_k_scale_heads + place * stride_k_scale_tokens
            scores *= tl.load(k_scale + k_scale_at + tl.zeros_like(at), mask=known, other=0.0)[None, :]
        if SOFTCAP:
            scores = _cap(scores * scale, softcap) * LOG2_E
        else:
            scores *= scale * LOG2_E
        distance = last[:, None] - at[None, :]
        if alibi_slopes is not None:
            scores -= slopes[:, None] * tl.abs(distance).to(tl.float32)
        visible = known[None, :] & (distance >= 0)
        if WINDOW:
            visible = visible & (distance <= window)
        scores = tl.where(visible, scores, float("-inf"))

        new_max = tl.maximum(row_max, tl.max(scores, 1))
        origin = tl.where(new_max == float("-inf"), 0.0, new_max)  # -inf - -inf is not a number
        p = tl.exp2(scores - origin[:, None])
        rescale = tl.exp2(row_max - origin)
        row_sum = row_sum * rescale + tl.sum(p, 1)
        row_max = new_max
        v_at = block * stride_v_batch + head_kv * stride_v_heads + place * stride_v_tokens
        v_tile = tl.load(v + v_at[:, None] + columns[None, :], mask=known[:, None] & inside, other=0.0)
        if v_scale is not None:
            v_scale_at = block * stride_v_scale_batch + head_kv * stride_v_scale_heads + place * stride_v_scale_tokens
            p *= tl.load(v_scale + v_scale_at + tl.zeros_like(at), mask=known, other=0.0)[None, :]
        acc = tl.dot(p.to(q_tile.dtype), v_tile.to(q_tile.dtype), acc * rescale[:, None])

    acc *= (1.0 / tl.where(row_sum == 0, 1.0, row_sum))[:, None]
    row_lse = row_max + tl.log2(row_sum)  # -inf where no key was seen
    if SPLIT:
        place = ((first_row + tokens).to(tl.int64) * heads + heads_q) * splits + split
        tl.store(partial + place[:, None] * HEAD_DIM + columns[None, :], acc, mask=present[:, None])
        tl.store(partial_lse + place, row_lse, mask=present)
    else:
        offsets = batch * stride_out_batch + (first_token + tokens) * stride_out_tokens + heads_q * stride_out_heads
        stored = present[:, None] & inside
        tl.store(out + offsets[:, None] + columns[None, :], acc.to(out.dtype.element_ty), mask=stored)
        if RETURN_LSE:
            offsets = batch * stride_lse_batch + (first_token + tokens) * stride_lse_tokens + heads_q * stride_lse_heads
            tl.store(lse + offsets, row_lse * LN_2, mask=present)


@triton.jit
def decode_merge(
    partial, partial_lse, out, lse, heads, seqlen_q, head_dim, splits,
    stride_out_batch, stride_out_heads, stride_out_tokens,
    stride_lse_batch, stride_lse_heads, stride_lse_tokens,
    HEAD_DIM: tl.constexpr, RETURN_LSE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Join the parts that `decode_split` wrote. Grid: (seqlen_q, heads, batch); cu_seqlens_q: (tokens, heads, 1).

    SPLITS: power of two, how many parts are read at once. The parts are summed in an order that depends on nothing but
    their number.
    """
    token, head, batch = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = ((batch * seqlen_q + token).to(tl.int64) * heads + head) * splits
    columns = tl.arange(0, HEAD_DIM)
    acc = tl.zeros([HEAD_DIM], tl.float32)
    total = 0.0
    maximum = float("-inf")
    for start in range(0, splits, SPLITS):
        at = start + tl.arange(0, SPLITS)
        known = at < splits
        part_lse = tl.load(partial_lse + place + at, mask=known, other=float("-inf"))
        new_max = tl.maximum(maximum, tl.max(part_lse, 0))
        origin = tl.where(new_max == float("-inf"), 0.0, new_max)
        weight = tl.exp2(part_lse - origin)
        rescale = tl.exp2(maximum - origin)
        parts = tl.load(partial + (place + at)[:, None] * HEAD_DIM + columns[None, :], mask=known[:, None], other=0.0)
        acc = acc * rescale + tl.sum(parts * weight[:, None], 0)
        total = total * rescale + tl.sum(weight, 0)
        maximum = new_max
    acc *= 1.0 / tl.where(total == 0, 1.0, total)
    out += batch * stride_out_batch + head * stride_out_heads + token * stride_out_tokens
    tl.store(out + columns, acc.to(out.dtype.element_ty), mask=columns < head_dim)
    if RETURN_LSE:
        lse += batch * stride_lse_batch + head * stride_lse_heads + token * stride_lse_tokens
        tl.store(lse, (maximum + tl.log2(total)) * LN_2)


@triton.jit
def _find(table, start, at, known, blocks, block_size, PAGE: tl.constexpr):
    """Block and place in it of the keys `at`, which begin at `start`."""
    if PAGE:
        block = tl.load(table + start // PAGE)
        place = start % PAGE + (at - start)
    else:
        block = tl.load(table + at // block_size, mask=known, other=0)
        place = at % block_size
    return tl.minimum(tl.maximum(block, 0), blocks - 1), place


@triton.jit
def _cap(scores, softcap):
    """softcap * tanh(scores / softcap)."""
    e = tl.exp2(scores * (2 * LOG2_E / softcap))
    return softcap * (1 - 2 / (e + 1))
