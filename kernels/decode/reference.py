"""Attention over caches in numpy: the exact result, and what its dtypes allow.

Query t of a sequence with `queries` of them sees keys j <= t + keys - queries and, if window >= 0, only those with
j >= t + keys - queries - window. A row that sees no key gives out = 0, lse = -inf.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
Result = Array | tuple[Array, Array]
ScoreMod = Callable[[Array, Array, Array], Array]
"""(scores [queries, keys], positions of the queries [queries, 1], of the keys [1, keys]) -> scores; -inf hides."""


@dataclass(frozen=True)
class Precision:
    """compute: dtype of scores, softmax and sums. storage: what probabilities and results are rounded to."""

    compute: np.dtype
    storage: np.dtype


EXACT = Precision(np.dtype(np.float64), np.dtype(np.float64))


def as_kernel(q: Array) -> Precision:
    """What kernels do: fp32 scores and sums, probabilities and results of q's dtype."""
    return Precision(np.dtype(np.float32), q.dtype)


def flash_decode(q: Array, k: Array, v: Array, **options: object) -> Result:
    """Attention of each sequence's last tokens in float64.

    q: [batch, heads, seqlen_q, head_dim]; k, v: [batch, heads_kv, seqlen_k, head_dim], any dtype; seqlens_k: [batch] or
    None; k_scale, v_scale: [batch|1, heads_kv|1, seqlen_k|1] or None. Returns out as q, or (out, lse) with
    lse [batch, heads, seqlen_q].
    """
    return _flash_decode(EXACT, q, k, v, **options)


def flash_decode_same_dtype(q: Array, k: Array, v: Array, **options: object) -> Result:
    """`flash_decode` as hardware does it."""
    return _flash_decode(as_kernel(q), q, k, v, **options)


def paged_attention(q: Array, k: Array, v: Array, *tables: Array, **options: object) -> Result:
    """Attention of sequences' last tokens over a cache in blocks, in float64.

    q: [tokens, heads, head_dim]; k, v: [blocks, block_size, heads_kv, head_dim]; tables: block_tables [batch,
    blocks_per_sequence], seqlens_k [batch], cu_seqlens_q [batch + 1], by name too; k_scale, v_scale: [blocks|1,
    block_size|1, heads_kv|1] or None; alibi_slopes: [heads] or None. Returns out as q, or (out, lse) with lse [tokens,
    heads].
    """
    return _paged_attention(EXACT, q, k, v, *tables, **options)


def paged_attention_same_dtype(q: Array, k: Array, v: Array, *tables: Array, **options: object) -> Result:
    """`paged_attention` as hardware does it."""
    return _paged_attention(as_kernel(q), q, k, v, *tables, **options)


def attend(
    precision: Precision, q: Array, k: Array, v: Array, scale: float, modify: ScoreMod, v_scale: Array | None = None
) -> tuple[Array, Array]:
    """(out, lse) of one head: q [queries, head_dim], k, v [keys, head_dim]; v_scale [keys]: factors of v's rows."""
    real = precision.compute.type
    keys, queries = len(k), len(q)
    i, j = np.arange(queries)[:, None] + (keys - queries), np.arange(keys)[None, :]
    scores = modify((q.astype(precision.compute) @ k.astype(precision.compute).T) * real(scale), i, j)
    scores = np.where(j <= i, scores, real(-np.inf))
    row_max = scores.max(1, keepdims=True, initial=-np.inf)
    row_max = np.where(np.isneginf(row_max), real(0), row_max)
    p = np.exp(scores - row_max)
    row_sum = p.sum(1, keepdims=True)
    weights = (p if v_scale is None else p * v_scale.astype(precision.compute)).astype(precision.storage)
    weighted = weights.astype(precision.compute) @ v.astype(precision.compute)
    out = np.divide(weighted, row_sum, out=np.zeros_like(weighted), where=row_sum != 0)
    with np.errstate(divide="ignore"):
        return out.astype(precision.storage), (np.log(row_sum) + row_max)[:, 0].astype(precision.compute)


def _flash_decode(
    precision: Precision, q: Array, k: Array, v: Array, *, seqlens_k: Array | None = None,
    k_scale: Array | None = None, v_scale: Array | None = None, scale: float, return_lse: bool = False,
) -> Result:  # fmt: skip
    batch, heads = q.shape[:2]
    heads_kv, seqlen_k = k.shape[1:3]
    out, lse = np.empty(q.shape, precision.storage), np.empty(q.shape[:3], precision.compute)
    k_scale, v_scale = (_spread(factors, (batch, heads_kv, seqlen_k)) for factors in (k_scale, v_scale))
    for b, h in np.ndindex(batch, heads):
        g, keys = h // (heads // heads_kv), seqlen_k if seqlens_k is None else int(seqlens_k[b])
        modify = _modifier(None if k_scale is None else k_scale[b, g, :keys])
        factors = None if v_scale is None else v_scale[b, g, :keys]
        out[b, h], lse[b, h] = attend(precision, q[b, h], k[b, g, :keys], v[b, g, :keys], scale, modify, factors)
    return (out, lse) if return_lse else out


def _paged_attention(
    precision: Precision, q: Array, k: Array, v: Array, block_tables: Array, seqlens_k: Array, cu_seqlens_q: Array, *,
    k_scale: Array | None = None, v_scale: Array | None = None, alibi_slopes: Array | None = None, scale: float,
    window: int = -1, softcap: float = 0.0, return_lse: bool = False,
) -> Result:  # fmt: skip
    heads, (_, block_size, heads_kv, _) = q.shape[1], k.shape
    out, lse = np.empty(q.shape, precision.storage), np.empty(q.shape[:2], precision.compute)
    k_scale, v_scale = (_spread(factors, k.shape[:3]) for factors in (k_scale, v_scale))
    for b, keys in enumerate(seqlens_k):
        at = np.arange(keys)
        block, place = block_tables[b, at // block_size], at % block_size
        tokens = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        for h in range(heads):
            g = h // (heads // heads_kv)
            slope = 0.0 if alibi_slopes is None else float(alibi_slopes[h])
            modify = _modifier(None if k_scale is None else k_scale[block, place, g], window, softcap, slope)
            factors = None if v_scale is None else v_scale[block, place, g]
            out[tokens, h], lse[tokens, h] = attend(
                precision, q[tokens, h], k[block, place, g], v[block, place, g], scale, modify, factors
            )
    return (out, lse) if return_lse else out


def _spread(factors: Array | None, shape: tuple[int, ...]) -> Array | None:
    return None if factors is None else np.broadcast_to(factors, shape)


def _modifier(k_scale: Array | None, window: int = -1, softcap: float = 0.0, slope: float = 0.0) -> ScoreMod:
    def modify(scores: Array, i: Array, j: Array) -> Array:
        real = scores.dtype.type
        if k_scale is not None:
            scores = scores * k_scale.astype(scores.dtype)
        if softcap > 0:
            scores = real(softcap) * np.tanh(scores / real(softcap))
        scores = scores - real(slope) * np.abs(i - j).astype(scores.dtype)
        return np.where(j >= i - window, scores, real(-np.inf)) if window >= 0 else scores

    return modify
