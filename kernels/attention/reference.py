"""Scaled dot-product attention in numpy: the exact result, and the result in the kernels' dtypes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Result = Array | tuple[Array, Array]
ScoreMod = Callable[[Array, int, int, Array, Array], Array]
"""Maps (scores, batch, head, queries [seqlen_q, 1], keys [seqlen_k]) to scores."""
MaskMod = Callable[[int, int, Array, Array], Array]
"""Maps (batch, head, queries, keys) to the mask of visible keys."""
Rounding = Callable[[Array], tuple[Array, Array]]
"""Maps probabilities to (the factors of the values, the terms of the sum by which the result is divided)."""


def visible_keys(
    seqlen_q: int,
    seqlen_k: int,
    *,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    mask_align: str = "bottom_right",
    attention_chunk: int = 0,
) -> Array:
    """Return the mask of the keys that each query sees, bool [seqlen_q, seqlen_k].

    Query i has key i on its diagonal, or i + seqlen_k - seqlen_q where mask_align is bottom_right. It sees the
    window_left keys before that one, the key itself, and the window_right keys after it; all of them where the number
    is negative, unless mask_align is generic: then a negative number counts from the diagonal in the other direction.
    causal is a window_right of 0. With an attention_chunk, keys are in chunks of so many, and a query sees only those
    of the chunk with its diagonal.

    Raises ValueError for what the ops refuse, too: a positive window_right beside causal; with generic causal, or a
    last key that is before the first.
    """
    if causal and window_right > 0:
        raise ValueError(f"causal is a window_right of 0; window_right = {window_right} contradicts it")
    if mask_align == "generic" and (causal or window_left + window_right < 0):
        raise ValueError(
            f"generic masks are not causal, and window_left + window_right is 0 or more; given: causal = {causal}, "
            f"window_left = {window_left}, window_right = {window_right}"
        )
    shift = seqlen_k - seqlen_q if mask_align == "bottom_right" else 0
    ahead = np.arange(seqlen_k) - (np.arange(seqlen_q)[:, None] + shift)
    generic = mask_align == "generic"
    right = 0 if causal else window_right
    seen = np.ones(ahead.shape, bool)
    if generic or window_left >= 0:
        seen &= ahead >= -window_left
    if generic or right >= 0:
        seen &= ahead <= right
    if attention_chunk:
        diagonal = np.arange(seqlen_q)[:, None] + shift
        seen &= np.arange(seqlen_k) // attention_chunk == diagonal // attention_chunk
    return seen


def attention(
    q: Array, k: Array, v: Array, bias: Array | None = None, alibi_slopes: Array | None = None, sinks: Array | None =
    None, qv: Array | None = None, *,
    scale: float, causal: bool = False, window_left: int = -1, window_right: int = -1,
    mask_align: str = "bottom_right", attention_chunk: int = 0, softcap: float = 0.0, return_lse: bool = False,
    score_mod: ScoreMod | None = None, mask_mod: MaskMod | None = None, schedule: str = "auto",
    compute: type = np.float64, storage: Any = None, rounding: Rounding | None = None,
) -> Result:  # fmt: skip
    """softmax(scores) v in float64.

    q: [batch, heads, seqlen_q, head_dim]; k: [batch, heads_kv, seqlen_k, head_dim]; v: [batch, heads_kv, seqlen_k,
    head_dim_v], any float dtype; query head h reads key head h // (heads // heads_kv). bias: broadcast to [batch,
    heads, seqlen_q, seqlen_k]; alibi_slopes: to [batch, heads]; sinks: [heads], logits that are added to the sums of
    exponentials.

    qv: [batch, heads, seqlen_q, head_dim_v], queries of the values.

    scores = scale * (q k^T + qv v^T), then softcap * tanh(scores / softcap) unless softcap is 0, + bias, - alibi_slopes
    * distance from the diagonal, then score_mod of that. The diagonal of query i is key i + seqlen_k - seqlen_q where
    mask_align is bottom_right, else key i. A query sees the keys of `visible_keys` that mask_mod shows.

    Returns out [batch, heads, seqlen_q, head_dim_v], or (out, lse) with lse [batch, heads, seqlen_q], the natural
    logarithm of each row's sum of exponentials. A row that sees no key gives out = 0, lse = -inf.

    compute: dtype of the computation; storage: dtype of probabilities and out, by default the same. rounding: another
    rounding of the probabilities. schedule changes nothing.
    """
    storage = np.dtype(compute if storage is None else storage)
    batch, heads, seqlen_q, _ = q.shape
    heads_kv, seqlen_k = k.shape[1:3]
    if heads % heads_kv:
        raise ValueError(f"heads = {heads} is not a multiple of heads_kv = {heads_kv}")
    queries, keys = np.arange(seqlen_q)[:, None], np.arange(seqlen_k)
    seen = visible_keys(
        seqlen_q, seqlen_k, causal=causal, window_left=window_left, window_right=window_right, mask_align=mask_align,
        attention_chunk=attention_chunk,
    )  # fmt: skip
    distance = np.abs(queries + (seqlen_k - seqlen_q if mask_align == "bottom_right" else 0) - keys)
    out = np.empty((*q.shape[:3], v.shape[3]), storage)
    lse = np.empty(q.shape[:3], compute)
    for b, h in np.ndindex(batch, heads):  # a head at a time bounds the memory by one matrix of scores
        h_kv = h // (heads // heads_kv)
        products = q[b, h].astype(compute) @ k[b, h_kv].astype(compute).T
        if qv is not None:
            products = products + qv[b, h].astype(compute) @ v[b, h_kv].astype(compute).T
        scores = products * compute(scale)
        if softcap:
            scores = compute(softcap) * np.tanh(scores / compute(softcap))
        if bias is not None:
            scores = scores + np.broadcast_to(bias, (batch, heads, seqlen_q, seqlen_k))[b, h].astype(compute)
        if alibi_slopes is not None:
            scores = scores - np.broadcast_to(alibi_slopes, (batch, heads))[b, h].astype(compute) * distance
        if score_mod is not None:
            scores = score_mod(scores, b, h, queries, keys)
        shown = seen if mask_mod is None else seen & mask_mod(b, h, queries, keys)
        sink = -np.inf if sinks is None else compute(sinks[h])
        p, rest, lse[b, h] = _exp_rows(np.where(shown, scores, -np.inf).astype(compute), sink)
        factors, weights = (p.astype(storage).astype(compute), p) if rounding is None else rounding(p)
        weight = weights.sum(1, keepdims=True) + rest
        weighted = factors @ v[b, h_kv].astype(compute)
        out[b, h] = np.divide(weighted, weight, out=np.zeros_like(weighted), where=weight != 0).astype(storage)
    return (out, lse) if return_lse else out


def attention_same_dtype(q: Array, k: Array, v: Array, *optional: Array | None, **options: Any) -> Result:
    """`attention` as hardware does it: fp32 scores, softmax and sums; probabilities and out rounded to q's dtype.

    Returns out of q's dtype, lse float32.
    """
    return attention(q, k, v, *optional, **options, compute=np.float32, storage=q.dtype)


def attention_varlen(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, bias: Array | None = None,
    alibi_slopes: Array | None = None, sinks: Array | None = None, qv: Array | None = None,
    seqused_q: Array | None = None, seqused_k: Array | None = None, **options: Any,
) -> Result:  # fmt: skip
    """`attention` of concatenated sequences: see `by_sequence`."""
    slopes = {"alibi_slopes": alibi_slopes}
    return by_sequence(
        attention, q, k, v, cu_seqlens_q, cu_seqlens_k, bias, slopes, qv, (seqused_q, seqused_k), sinks=sinks, **options
    )


def attention_varlen_same_dtype(q: Array, k: Array, v: Array, *rest: Any, **options: Any) -> Result:
    """`attention_varlen` as `attention_same_dtype` does it."""
    return attention_varlen(q, k, v, *rest, **options, compute=np.float32, storage=q.dtype)


def by_sequence(
    function: Callable[..., Any], q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array,
    bias: Array | None, of_batch: dict[str, Array | None], qv: Array | None = None,
    used: tuple[Array | None, Array | None] = (None, None), *, max_seqlen_q: int = 0, max_seqlen_k: int = 0,
    return_lse: bool = False, **options: Any,
) -> Result:  # fmt: skip
    """Apply a function such as `attention` to each of several concatenated sequences.

    q: [tokens_q, heads, head_dim]; k, v: [tokens_k, heads_kv, …]; sequence b is rows cu_seqlens[b] to cu_seqlens[b +
    1]. bias: [heads or 1, tokens_q or 1, columns], a column for each key of a sequence. of_batch: arguments that have
    an entry for each sequence, or one for all. qv: [tokens_q, heads, head_dim_v] or None. used: [batch] of queries and
    of keys, of how many of its rows each sequence consists; None: of all.

    Returns out [tokens_q, heads, head_dim_v], or (out, lse) with lse [heads, tokens_q]. Rows of q that are in no
    sequence are NaN in both. max_seqlen_q and max_seqlen_k change nothing.
    """
    given = {name: x for name, x in of_batch.items() if x is not None}
    spans, results = [], []
    for b in range(len(cu_seqlens_q) - 1):
        rows_q, rows_k = map(partial(_rows_of, b), (cu_seqlens_q, cu_seqlens_k), used)
        found = {"q": q[rows_q], "k": k[rows_k], "v": v[rows_k]} | ({} if qv is None else {"qv": qv[rows_q]})
        tensors = {name: x.swapaxes(0, 1)[None] for name, x in found.items()}
        if bias is not None:
            own = bias if bias.shape[1] == 1 else bias[:, rows_q]
            tensors["bias"] = own[None, :, :, : tensors["k"].shape[2]]
        tensors |= {name: x[[b if len(x) > 1 else 0]] for name, x in given.items()}
        spans.append(rows_q)
        results.append(function(**tensors, return_lse=True, **options))
    out = np.full((*q.shape[:2], v.shape[2]), np.nan, results[0][0].dtype)
    lse = np.full((q.shape[1], q.shape[0]), np.nan, results[0][1].dtype)
    for rows, (own_out, own_lse) in zip(spans, results, strict=True):
        out[rows], lse[:, rows] = own_out[0].swapaxes(0, 1), own_lse[0]
    return (out, lse) if return_lse else out


def _rows_of(sequence: int, cu_seqlens: Array, used: Array | None) -> slice:
    """Return the rows of a sequence, the first `used` of those from cu_seqlens."""
    first, end = cu_seqlens[sequence], cu_seqlens[sequence + 1]
    return slice(first, end if used is None else min(end, first + max(used[sequence], 0)))


def _exp_rows(scores: Array, sink: Any) -> tuple[Array, Array, Array]:
    """Return exp(scores - row maximum), exp(sink - row maximum), and the logarithm of each row's sum of both."""
    maximum = scores.max(1, keepdims=True, initial=sink)
    maximum = np.where(np.isneginf(maximum), scores.dtype.type(0), maximum)  # a row that sees no key
    p = np.exp(scores - maximum)
    with np.errstate(divide="ignore"):
        rest = np.exp(sink - maximum)
        return p, rest, np.log(p.sum(1) + rest[:, 0]) + maximum[:, 0]
