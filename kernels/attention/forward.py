"""Scaled dot-product attention, forward: one pass over the keys with an online softmax (FlashAttention-2)."""

import triton
import triton.language as tl

LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN_2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def attention_forward(
    q, k, v, out, lse,
    heads, heads_kv, seqlen_q, seqlen_k, head_dim,
    stride_q_batch, stride_q_heads, stride_q_seqlen_q,
    stride_k_batch, stride_k_heads_kv, stride_k_seqlen_k,
    stride_v_batch, stride_v_heads_kv, stride_v_seqlen_k,
    stride_out_batch, stride_out_heads, stride_out_seqlen_q,
    stride_lse_batch, stride_lse_heads,
    scale,
    HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, CAUSAL: tl.constexpr, RETURN_LSE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, NUM_XCDS: tl.constexpr, HAS_BF16_CVT: tl.constexpr,
):  # fmt: skip
    """out = softmax(scale * q k^T + mask) v, a program for each BLOCK_M queries of a head.

    Grid: (cdiv(seqlen_q, BLOCK_M), heads, batch).

    q, out: [batch, heads, seqlen_q, head_dim] and k, v: [batch, heads_kv, seqlen_k, head_dim], float16 or bfloat16,
    strides in elements, the last one 1. lse: float32 [batch, heads, seqlen_q], the natural logarithm of each row's
    sum of exponentials; None unless RETURN_LSE. Query head h reads key head h // (heads // heads_kv).

    CAUSAL is bottom-right aligned: query i sees keys j <= i + seqlen_k - seqlen_q. A row that sees no key gives
    out = 0 and lse = -inf. scale is any finite fp32. Offsets take the width of the strides: 32 bits only if every
    tensor spans less than 2 GiB.

    HEAD_DIM: power of two >= head_dim; PADDED: head_dim may be less. NUM_XCDS: dies that the hardware deals
    workgroups to in turn, each with an L2 of its own (gfx942, gfx950: 8; elsewhere 1). HAS_BF16_CVT: the hardware
    rounds fp32 to bfloat16 in one instruction (gfx950, sm_80 and later); ignored unless the dtype is bfloat16.
    """
    block, head = _place(tl.cdiv(seqlen_q, BLOCK_M), heads, CAUSAL, NUM_XCDS)
    batch = tl.program_id(2)
    head_kv = head // (heads // heads_kv)
    k += batch * stride_k_batch + head_kv * stride_k_heads_kv
    v += batch * stride_v_batch + head_kv * stride_v_heads_kv

    first_query = block * BLOCK_M
    queries = first_query + tl.arange(0, BLOCK_M)
    q += batch * stride_q_batch + head * stride_q_heads
    q_tile = _load_tile(q, queries, stride_q_seqlen_q, seqlen_q, head_dim, HEAD_DIM, True, PADDED)
    # Taking the row's maximum before scaling saves a product per score; it needs scale >= 0, so Q takes the sign.
    q_tile = tl.where(scale < 0, -q_tile, q_tile)
    scale_log2 = tl.abs(scale) * LOG2_E

    last_key = queries + (seqlen_k - seqlen_q)
    if CAUSAL:
        end = tl.minimum(tl.maximum(first_query + BLOCK_M + seqlen_k - seqlen_q, 0), seqlen_k)
        unmasked = tl.minimum(tl.maximum(first_query + 1 + seqlen_k - seqlen_q, 0), seqlen_k) // BLOCK_N * BLOCK_N
    else:
        end = seqlen_k
        unmasked = seqlen_k // BLOCK_N * BLOCK_N

    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q_tile, k, v, 0, unmasked, last_key, seqlen_k, head_dim, stride_k_seqlen_k,
        stride_v_seqlen_k, scale_log2, HEAD_DIM, BLOCK_N, PADDED, CAUSAL, False, HAS_BF16_CVT,
    )  # fmt: skip
    acc, row_max, row_sum = _attend(
        acc, row_max, row_sum, q_tile, k, v, unmasked, end, last_key, seqlen_k, head_dim, stride_k_seqlen_k,
        stride_v_seqlen_k, scale_log2, HEAD_DIM, BLOCK_N, PADDED, CAUSAL, True, HAS_BF16_CVT,
    )  # fmt: skip

    columns = tl.arange(0, HEAD_DIM)
    stored = queries[:, None] < seqlen_q
    if PADDED:
        stored = stored & (columns[None, :] < head_dim)
    out += batch * stride_out_batch + head * stride_out_heads
    offsets = queries[:, None] * stride_out_seqlen_q + columns[None, :]
    # A sum is at least 1 (the maximum's own term), or 0 in a row that saw no key.
    result = acc * (1.0 / tl.where(row_sum == 0, 1.0, row_sum))[:, None]
    tl.store(out + offsets, result.to(out.dtype.element_ty), mask=stored)
    if RETURN_LSE:
        lse += batch * stride_lse_batch + head * stride_lse_heads
        tl.store(lse + queries, (row_max + tl.log2(row_sum)) * LN_2, mask=queries < seqlen_q)


@triton.jit
def _place(blocks, heads, CAUSAL: tl.constexpr, NUM_XCDS: tl.constexpr):
    """Query block and head of this program."""
    block = tl.program_id(0)
    head = tl.program_id(1)
    if NUM_XCDS > 1:
        # Neighbours in launch order land on different dies. Renumbering gives each die a contiguous run of
        # (head, block), so that the blocks that read the same K and V share an L2.
        programs = blocks * heads
        linear = head * blocks + block
        die = linear % NUM_XCDS
        linear = die * (programs // NUM_XCDS) + tl.minimum(die, programs % NUM_XCDS) + linear // NUM_XCDS
        block = linear % blocks
        head = linear // blocks
    if CAUSAL:
        block = blocks - 1 - block  # the last queries see the most keys: start them first
    return block, head


@triton.jit
def _attend(
    acc, row_max, row_sum, q_tile, k, v, begin, end, last_key, seqlen_k, head_dim, stride_k_seqlen_k,
    stride_v_seqlen_k, scale_log2, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, PADDED: tl.constexpr,
    CAUSAL: tl.constexpr, MASKED: tl.constexpr, HAS_BF16_CVT: tl.constexpr,
):  # fmt: skip
    """Fold keys [begin, end) into the online softmax. row_max is in units of log2; MASKED: some scores are masked."""
    keys = tl.arange(0, BLOCK_N)
    for start in range(begin, end, BLOCK_N):
        left = seqlen_k - start
        k_block = k + start * stride_k_seqlen_k
        v_block = v + start * stride_v_seqlen_k
        k_tile = _load_tile(k_block, keys, stride_k_seqlen_k, left, head_dim, HEAD_DIM, MASKED, PADDED)
        scores = tl.dot(q_tile, tl.trans(k_tile))

        if MASKED:
            # Differences, not comparisons with `keys`: those are loop-invariant, a register each, and would spill.
            visible = (last_key - start)[:, None] - keys[None, :] >= 0 if CAUSAL else left - keys[None, :] > 0
            # Scaled before it is masked: 0 * -inf is not a number.
            scores = tl.where(visible, scores * scale_log2, float("-inf"))
            new_max = tl.maximum(row_max, tl.max(scores, 1))
            # Rows that have seen no key yet: -inf - -inf is not a number.
            origin = tl.where(new_max == float("-inf"), 0.0, new_max) if CAUSAL else new_max
            p = tl.exp2(scores - origin[:, None])
        else:
            new_max = tl.maximum(row_max, tl.max(scores, 1) * scale_log2)
            origin = new_max
            p = tl.exp2(scores * scale_log2 - origin[:, None])

        rescale = tl.exp2(row_max - origin)
        row_sum = row_sum * rescale + tl.sum(p, 1)
        row_max = new_max
        v_tile = _load_tile(v_block, keys, stride_v_seqlen_k, left, head_dim, HEAD_DIM, MASKED, PADDED)
        acc = tl.dot(_narrow(p, v_tile.dtype, HAS_BF16_CVT), v_tile, acc * rescale[:, None])
    return acc, row_max, row_sum


@triton.jit
def _narrow(p, dtype: tl.constexpr, HAS_BF16_CVT: tl.constexpr):
    """fp32 probabilities rounded to the nearest of `dtype`."""
    if dtype == tl.bfloat16 and not HAS_BF16_CVT:
        # Half up: one addition, and one permutation a pair. Half to even and the check for NaN would take nine
        # instructions a pair, a quarter of the loop; ties are rare, and a NaN gets to the result through the row's sum.
        return ((p.to(tl.uint32, bitcast=True) + 0x8000) >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return p.to(dtype)


@triton.jit
def _load_tile(
    matrix, rows, stride, row_end, column_end,
    COLUMNS: tl.constexpr, MASK_ROWS: tl.constexpr, MASK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """Rows of a matrix with contiguous columns, [len(rows), COLUMNS]; 0 outside (row_end, column_end)."""
    columns = tl.arange(0, COLUMNS)
    pointers = matrix + rows[:, None] * stride + columns[None, :]
    if MASK_ROWS and MASK_COLUMNS:
        tile = tl.load(pointers, mask=(rows[:, None] < row_end) & (columns[None, :] < column_end), other=0.0)
    elif MASK_ROWS:
        tile = tl.load(pointers, mask=rows[:, None] < row_end, other=0.0)
    elif MASK_COLUMNS:
        tile = tl.load(pointers, mask=columns[None, :] < column_end, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile
