"""Attention over caches in numpy: exactly, and as hardware rounds.

The queries of a sequence are its last tokens; `visible_keys` tells which keys they see. A row that sees no key gives
out = 0, lse = -inf. num_splits and max_seqlen_q, which do not change the result, are accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.rows.reference import largest, rotary, rotary_by_element, row_scale

Array = np.ndarray
Result = Array | tuple[Array, Array]
ScoreMod = Callable[[Array, Array, Array], Array]
"""(scores [queries, keys], positions of the queries [queries, 1], of the keys [1, keys]) -> scores."""


@dataclass(frozen=True)
class Precision:
    """Dtypes of a computation. compute: of scores, softmax and sums. storage: of probabilities. result: of results."""

    compute: np.dtype
    storage: np.dtype
    result: np.dtype


EXACT = Precision(np.dtype(np.float64), np.dtype(np.float64), np.dtype(np.float64))


def as_kernel(q: Array) -> Precision:
    """Return the Precision of the kernels: fp32 scores and sums, probabilities and results of q's dtype."""
    return Precision(np.dtype(np.float32), q.dtype, q.dtype)


def visible_keys(
    queries: int, keys: int, first_key: int = 0, *, causal: bool = True, window_left: int = -1, window_right: int = -1,
    attention_chunk: int = 0,
) -> Array:  # fmt: skip
    """Return the mask of the keys that each query of a sequence sees, bool [queries, keys].

    The diagonal of query t is key t + keys - queries. A query sees the window_left keys before its diagonal, the key on
    it, and the window_right keys after it; all of them where the number is negative. causal is a window_right of 0.
    Keys before first_key are not seen. With an attention_chunk, keys are in chunks of so many, from first_key on, and a
    query sees only those of the chunk with its diagonal.
    """
    i, j = np.arange(queries)[:, None] + (keys - queries), np.arange(keys)[None, :]
    seen = np.broadcast_to(j >= first_key, (queries, keys)).copy()
    right = 0 if causal else window_right
    if window_left >= 0:
        seen &= j >= i - window_left
    if right >= 0:
        seen &= j <= i + right
    if attention_chunk > 0:
        seen &= (j - first_key) // attention_chunk == (i - first_key) // attention_chunk
    return seen


def flash_decode(q: Array, k: Array, v: Array, **options: object) -> Result:
    """Attention of each sequence's last tokens in float64.

    q: [batch, heads, seqlen_q, head_dim]; k, v: [batch, heads_kv, seqlen_k, head_dim], any dtype, of which v may have
    another head_dim; seqlens_k: [batch] or None; first_keys: [batch] or None; sinks: [heads] or None; k_scale, v_scale:
    [batch|1, heads_kv|1, seqlen_k|1] or None. Masks are those of `visible_keys`. Returns out [batch, heads, seqlen_q,
    head_dim of v], or (out, lse) with lse [batch, heads, seqlen_q].
    """
    return _flash_decode(EXACT, q, k, v, **options)


def flash_decode_same_dtype(q: Array, k: Array, v: Array, **options: object) -> Result:
    """`flash_decode` as hardware does it."""
    return _flash_decode(as_kernel(q), q, k, v, **options)


def paged_attention(q: Array, k: Array, v: Array, *tables: Array, **options: object) -> Result:
    """Attention of sequences' last tokens over a cache in blocks, in float64.

    q: [tokens, heads, head_dim]; k, v: [blocks, block_size, heads_kv, head_dim], of which v may have another head_dim;
    tables: block_tables [batch, blocks_per_sequence], seqlens_k [batch], cu_seqlens_q [batch + 1], by name too;
    first_keys: [batch] or None; k_scale, v_scale: [blocks|1, block_size|1, heads_kv|1] or None; alibi_slopes:
    [batch|1, heads] or None; sinks: [heads] or None. Masks are those of `visible_keys`. Returns out [tokens, heads,
    head_dim of v], or (out, lse) with lse [tokens, heads].
    """
    return _paged_attention(EXACT, q, k, v, *tables, **options)


def paged_attention_same_dtype(q: Array, k: Array, v: Array, *tables: Array, **options: object) -> Result:
    """`paged_attention` as hardware does it."""
    return _paged_attention(as_kernel(q), q, k, v, *tables, **options)


def paged_attention_pieces(q: Array, k: Array, v: Array, *tables: Array, **options: object) -> Result:
    """`paged_attention` over a cache in pieces, in float64. k: [blocks, heads_kv, head_dim / pack, block_size, pack];
    v: [blocks, heads_kv, block_size / pack, head_dim, pack].
    """
    return paged_attention(q, *joined_pieces(k, v), *tables, **options)


def paged_attention_pieces_same_dtype(q: Array, k: Array, v: Array, *tables: Array, **options: object) -> Result:
    """`paged_attention_pieces` as hardware does it."""
    return paged_attention_same_dtype(q, *joined_pieces(k, v), *tables, **options)


def paged_attention_rotated(
    q: Array, k: Array, v: Array, cos: Array, sin: Array, *rest: Array, **options: Any
) -> Result:
    """`paged_attention` of queries and keys that are rotated by their positions, in float64. cos, sin: [max_position,
    pairs].
    """
    return _paged_attention_rotated(EXACT, q, k, v, cos, sin, *rest, **options)


def paged_attention_rotated_same_dtype(q: Array, *arrays: Array, **options: Any) -> Result:
    """`paged_attention_rotated` as hardware does it."""
    return _paged_attention_rotated(as_kernel(q), q, *arrays, **options)


def _paged_attention_rotated(
    precision: Precision, q: Array, k: Array, v: Array, cos: Array, sin: Array, block_tables: Array, seqlens_k: Array,
    cu_seqlens_q: Array, *, interleaved: bool = False, **options: Any,
) -> Result:  # fmt: skip
    tables = {"block_tables": block_tables, "seqlens_k": seqlens_k, "cu_seqlens_q": cu_seqlens_q}
    queries = np.concatenate(
        [np.arange(n) + keys - n for n, keys in zip(np.diff(cu_seqlens_q), seqlens_k, strict=True)]
    )
    # Each sequence's keys in blocks of its own, as one block may be at several places.
    block_size, used = k.shape[1], block_tables.clip(0, len(k) - 1)
    k, v, *scales = (
        None if x is None else x if len(x) == 1 else x[used].reshape(-1, *x.shape[1:])
        for x in (k, v, options.pop("k_scale", None), options.pop("v_scale", None))
    )
    places = np.tile(np.arange(used.shape[1] * block_size), len(used))
    tables["block_tables"] = np.arange(used.size).reshape(used.shape)
    angles = {"cos": cos, "sin": sin, "compute": precision.compute.type, "interleaved": interleaved}
    q_turned = rotated(q, positions=queries, **angles).astype(precision.storage)
    k_turned = rotated(k.reshape(-1, *k.shape[2:]), positions=places, **angles).astype(precision.storage)
    return _paged_attention(
        precision, q_turned, k_turned.reshape(k.shape), v, **tables, k_scale=scales[0], v_scale=scales[1], **options
    )


def paged_attention_fp8_pieces(q: Array, k: Array, v: Array, *rest: Array, **options: object) -> Result:
    """`paged_attention_fp8` over a cache in pieces, see `paged_attention_pieces`, in float64."""
    return paged_attention_fp8(q, *joined_pieces(k, v), *rest, **options)


def paged_attention_fp8_pieces_same_dtype(q: Array, k: Array, v: Array, *rest: Array, **options: object) -> Result:
    """`paged_attention_fp8_pieces` as hardware does it."""
    return paged_attention_fp8_same_dtype(q, *joined_pieces(k, v), *rest, **options)


def paged_attention_masked(q: Array, k: Array, v: Array, custom_mask: Array, *tables: Array, **options: Any) -> Result:
    """`paged_attention` of queries that see only the keys of a custom mask, see `shown_keys`, in float64; of rotated
    queries and keys if there are cos and sin, see `paged_attention_rotated`.
    """
    return _paged_attention_masked(EXACT, q, k, v, custom_mask, *tables, **options)


def paged_attention_masked_same_dtype(q: Array, *arrays: Array, **options: Any) -> Result:
    """`paged_attention_masked` as hardware does it."""
    return _paged_attention_masked(as_kernel(q), q, *arrays, **options)


def _paged_attention_masked(
    precision: Precision, q: Array, k: Array, v: Array, custom_mask: Array, *tables: Array, cos: Array | None = None,
    sin: Array | None = None, interleaved: bool = False, **options: Any,
) -> Result:  # fmt: skip
    if cos is None:
        return _paged_attention(precision, q, k, v, *tables, custom_mask=custom_mask, **options)
    return _paged_attention_rotated(
        precision, q, k, v, cos, sin, *tables, custom_mask=custom_mask, interleaved=interleaved, **options
    )


def shown_keys(custom_mask: Array, keys: int) -> Array:
    """Return the first `keys` bits of rows of a custom mask, int32 [rows, words]: bool [rows, keys].

    Key j is bit j % 32 of word j / 32; keys past the last word are not shown.
    """
    shown = np.unpackbits(np.ascontiguousarray(custom_mask).view(np.uint8), axis=1, bitorder="little")
    return np.pad(shown, ((0, 0), (0, max(0, keys - shown.shape[1]))))[:, :keys].astype(bool)


def joined_pieces(k: Array, v: Array) -> tuple[Array, Array]:
    """Return caches in pieces as [blocks, block_size, heads_kv, head_dim]."""
    blocks, heads_kv, _, block_size, _ = k.shape
    k, v = k.transpose(0, 3, 1, 2, 4), v.transpose(0, 2, 4, 1, 3)
    return tuple(x.reshape(blocks, block_size, heads_kv, -1) for x in (k, v))


def paged_attention_fp8(q: Array, k: Array, v: Array, out: Array, *tables: Array, **options: object) -> Result:
    """`paged_attention` in float64; out / out_scale, if that is given.

    q_scale, k_scale, v_scale: [batch|1, heads_kv|1] or None; out_scale: [1] or None. Of `out`, nothing is used here.
    """
    return _paged_attention_fp8(EXACT, q, k, v, *tables, **options)


def paged_attention_fp8_same_dtype(
    q: Array, k: Array, v: Array, out: Array, *tables: Array, **options: object
) -> Result:
    """`paged_attention_fp8` as hardware does it: float8 queries are widened to float16; the result has out's dtype."""
    storage = np.dtype(np.float16) if q.dtype.itemsize == 1 else q.dtype
    return _paged_attention_fp8(Precision(np.dtype(np.float32), storage, out.dtype), q, k, v, *tables, **options)


def attend(
    precision: Precision, q: Array, k: Array, v: Array, scale: float, seen: Array, modify: ScoreMod | None = None,
    v_scale: Array | None = None, sink: float = -np.inf, factor: float = 1.0,
) -> tuple[Array, Array]:  # fmt: skip
    """Return (out, lse) of one head. q: [queries, head_dim]; k, v: [keys, head_dim]; seen: bool [queries, keys];
    v_scale: [keys], factors of v's rows; sink: a logit that is added to the sums of exponentials; factor: of out.
    """
    real = precision.compute.type
    keys, queries = len(k), len(q)
    i, j = np.arange(queries)[:, None] + (keys - queries), np.arange(keys)[None, :]
    scores = (q.astype(precision.compute) @ k.astype(precision.compute).T) * real(scale)
    scores = np.where(seen, scores if modify is None else modify(scores, i, j), real(-np.inf))
    row_max = scores.max(1, keepdims=True, initial=real(sink))
    row_max = np.where(np.isneginf(row_max), real(0), row_max)
    p = np.exp(scores - row_max)
    row_sum = p.sum(1, keepdims=True) + np.exp(real(sink) - row_max)
    weights = (p if v_scale is None else p * v_scale.astype(precision.compute)).astype(precision.storage)
    weighted = weights.astype(precision.compute) @ np.where(seen.any(0)[:, None], v.astype(precision.compute), 0)
    out = np.divide(weighted, row_sum, out=np.zeros_like(weighted), where=row_sum != 0) * real(factor)
    if precision.result.itemsize == 1:
        out = np.clip(out, -largest(precision.result), largest(precision.result))
    with np.errstate(divide="ignore"):
        return out.astype(precision.result), (np.log(row_sum) + row_max)[:, 0].astype(precision.compute)


def _flash_decode(
    precision: Precision, q: Array, k: Array, v: Array, *, seqlens_k: Array | None = None, k_scale: Array | None = None,
    v_scale: Array | None = None, first_keys: Array | None = None, sinks: Array | None = None, scale: float,
    out_factor: float = 1.0, return_lse: bool = False, num_splits: int = 0, **mask: object,
) -> Result:  # fmt: skip
    batch, heads = q.shape[:2]
    heads_kv, seqlen_k = k.shape[1:3]
    out, lse = np.empty((*q.shape[:3], v.shape[3]), precision.result), np.empty(q.shape[:3], precision.compute)
    k_scale, v_scale = (_spread(factors, (batch, heads_kv, seqlen_k)) for factors in (k_scale, v_scale))
    for b, h in np.ndindex(batch, heads):
        g, keys = h // (heads // heads_kv), seqlen_k if seqlens_k is None else int(seqlens_k[b])
        modify = _modifier(None if k_scale is None else k_scale[b, g, :keys])
        factors = None if v_scale is None else v_scale[b, g, :keys]
        seen = visible_keys(q.shape[2], keys, _first(first_keys, b), **mask)
        out[b, h], lse[b, h] = attend(
            precision, q[b, h], k[b, g, :keys], v[b, g, :keys], scale, seen, modify, factors, _sink(sinks, h),
            out_factor,
        )  # fmt: skip
    return (out, lse) if return_lse else out


def _paged_attention(
    precision: Precision, q: Array, k: Array, v: Array, block_tables: Array, seqlens_k: Array, cu_seqlens_q: Array, *,
    k_scale: Array | None = None, v_scale: Array | None = None, first_keys: Array | None = None, alibi_slopes: Array |
    None = None, sinks: Array | None = None, scale: float, softcap: float = 0.0, out_factor: float = 1.0,
    score_factors: Array | None = None, out_factors: Array | None = None, custom_mask: Array | None = None,
    return_lse: bool = False, max_seqlen_q: int = 1, num_splits: int = 0, **mask: object,
) -> Result:  # fmt: skip
    """Compute `paged_attention`. score_factors, out_factors: [batch, heads_kv], factors of scale and of out."""
    heads, (_, block_size, heads_kv, _) = q.shape[1], k.shape
    out, lse = np.empty((*q.shape[:2], v.shape[3]), precision.result), np.empty(q.shape[:2], precision.compute)
    k_scale, v_scale = (_spread(factors, k.shape[:3]) for factors in (k_scale, v_scale))
    for b, keys in enumerate(seqlens_k):
        at = np.arange(keys)
        block, place = block_tables[b, at // block_size].clip(0, len(k) - 1), at % block_size
        tokens = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        seen = visible_keys(len(q[tokens]), keys, _first(first_keys, b), **mask)
        if custom_mask is not None:
            seen = seen & shown_keys(custom_mask[tokens], keys)
        for h in range(heads):
            g = h // (heads // heads_kv)
            slope = 0.0 if alibi_slopes is None else float(np.broadcast_to(alibi_slopes, (len(seqlens_k), heads))[b, h])
            modify = _modifier(None if k_scale is None else k_scale[block, place, g], softcap, slope)
            factors = None if v_scale is None else v_scale[block, place, g]
            out[tokens, h], lse[tokens, h] = attend(
                precision,
                q[tokens, h],
                k[block, place, g],
                v[block, place, g],
                scale if score_factors is None else scale * score_factors[b, g],
                seen,
                modify,
                factors,
                _sink(sinks, h),
                out_factor if out_factors is None else out_factor * out_factors[b, g],
            )
    return (out, lse) if return_lse else out


def _paged_attention_fp8(
    precision: Precision, q: Array, k: Array, v: Array, block_tables: Array, *tables: Array, q_scale: Array | None =
    None, k_scale: Array | None = None, v_scale: Array | None = None, out_scale: Array | None = None, **options: object,
) -> Result:  # fmt: skip
    heads = len(block_tables), k.shape[2]
    of_q, of_k, of_v = (
        np.ones(heads) if factors is None else np.broadcast_to(factors, heads).astype(np.float64)
        for factors in (q_scale, k_scale, v_scale)
    )
    return _paged_attention(
        precision, q, k, v, block_tables, *tables, score_factors=of_q * of_k,
        out_factors=of_v / (1.0 if out_scale is None else float(out_scale[0])), **options,
    )  # fmt: skip


def _spread(factors: Array | None, shape: tuple[int, ...]) -> Array | None:
    return None if factors is None else np.broadcast_to(factors, shape)


def _first(first_keys: Array | None, sequence: int) -> int:
    return 0 if first_keys is None else int(first_keys[sequence])


def _sink(sinks: Array | None, head: int) -> float:
    return -np.inf if sinks is None else float(sinks[head])


def _modifier(k_scale: Array | None, softcap: float = 0.0, slope: float = 0.0) -> ScoreMod:
    def modify(scores: Array, i: Array, j: Array) -> Array:
        real = scores.dtype.type
        if k_scale is not None:
            scores = scores * k_scale.astype(scores.dtype)
        if softcap > 0:
            scores = real(softcap) * np.tanh(scores / real(softcap))
        return scores - real(slope) * np.abs(i - j).astype(scores.dtype)

    return modify


# Caches of 4 bits a number


def quantise_int4(x: Array, groups: int) -> tuple[Array, Array]:
    """Return rows as `append_kv_int4` writes them, bit for bit: (packed uint8 [.., head_dim / 2], pairs fp16 [..,
    groups, 2]).

    Args:
        x: float32 [.., head_dim]. Each group is rounded to 16 steps from its least to its largest number, after the
            pair was rounded to fp16.

    Raises:
        ValueError: groups do not divide head_dim, or head_dim is odd.
    """
    head_dim = x.shape[-1]
    if groups < 1 or head_dim % groups or head_dim % 2:
        raise ValueError(f"groups = {groups} of head_dim = {head_dim}; a divisor is needed, and an even head_dim")
    grouped = x.astype(np.float32).reshape(*x.shape[:-1], groups, -1)
    shift = grouped.min(-1).astype(np.float16)
    factor = ((grouped.max(-1) - shift.astype(np.float32)) / np.float32(15)).astype(np.float16)
    divisor = np.where(factor == 0, np.float16(1), factor).astype(np.float32)
    steps = (grouped - shift.astype(np.float32)[..., None]) / divisor[..., None]
    nibbles = np.clip(np.floor(steps + np.float32(0.5)), 0, 15).astype(np.uint8).reshape(*x.shape[:-1], -1, 2)
    return nibbles[..., 0] | nibbles[..., 1] << 4, np.stack([factor, shift], -1)


def dequantise_int4(packed: Array, pairs: Array) -> Array:
    """Return rows as float32 [.., head_dim]. packed: uint8 [.., head_dim / 2]; pairs: fp16 [.., groups, 2]."""
    head_dim, groups = 2 * packed.shape[-1], pairs.shape[-2]  # a batch of 0 leaves nothing to infer them from
    nibbles = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], groups, head_dim // groups)
    pairs = pairs.astype(np.float32)
    return (nibbles * pairs[..., :1] + pairs[..., 1:]).reshape(*packed.shape[:-1], head_dim)


def flash_decode_int4(
    q: Array, k: Array, v: Array, k_scale: Array, v_scale: Array, *rest: Array, **options: object
) -> Result:
    """`flash_decode` over caches that `dequantise_int4` reads, in float64."""
    return _flash_decode_int4(EXACT, q, k, v, k_scale, v_scale, *rest, **options)


def flash_decode_int4_same_dtype(
    q: Array, k: Array, v: Array, k_scale: Array, v_scale: Array, *rest: Array, **options: object
) -> Result:
    """`flash_decode_int4` as hardware does it: unpacked values are rounded to float16, and then to q's dtype."""
    return _flash_decode_int4(as_kernel(q), q, k, v, k_scale, v_scale, *rest, **options)


def paged_attention_int4(
    q: Array, k: Array, v: Array, k_scale: Array, v_scale: Array, *tables: Array, **options: object
) -> Result:
    """`paged_attention` over caches that `dequantise_int4` reads, in float64."""
    return _paged_attention(EXACT, q, *_unpacked(EXACT, k, v, k_scale, v_scale), *tables, **options)


def paged_attention_int4_same_dtype(
    q: Array, k: Array, v: Array, k_scale: Array, v_scale: Array, *tables: Array, **options: object
) -> Result:
    """`paged_attention_int4` as hardware does it: unpacked values are rounded to float16, and then to q's dtype."""
    return _paged_attention(as_kernel(q), q, *_unpacked(as_kernel(q), k, v, k_scale, v_scale), *tables, **options)


def _flash_decode_int4(
    precision: Precision, q: Array, k: Array, v: Array, k_scale: Array, v_scale: Array, seqlens_k: Array, **options:
    object,
) -> Result:  # fmt: skip
    k, v = _unpacked(precision, k, v, k_scale, v_scale)
    return _flash_decode(precision, q, k, v, seqlens_k=seqlens_k, **options)


def _unpacked(precision: Precision, k: Array, v: Array, k_scale: Array, v_scale: Array) -> tuple[Array, ...]:
    return tuple(
        cache if precision is EXACT else cache.astype(np.float16).astype(precision.storage)
        for cache in (dequantise_int4(k, k_scale), dequantise_int4(v, v_scale))
    )


# Writing to caches


def rotated(
    x: Array, cos: Array | None, sin: Array | None, positions: Array | None, compute: type, interleaved: bool = False,
    by_element: bool = False,
) -> Array:  # fmt: skip
    """Return x [tokens, heads, head_dim] in the dtype `compute`, rotated if there are angles."""
    if cos is None:
        return x.astype(compute)
    return (rotary_by_element if by_element else rotary)(x, cos, sin, positions, interleaved, compute)


def quantise(x: Array, scale: Array | None, dtype: np.dtype) -> Array:
    """Return x / scale, rounded half to even and saturated at the largest value of the dtype (127 for int8)."""
    if scale is None:
        return x.astype(dtype)
    x = np.clip(x / scale.astype(x.dtype), -largest(dtype), largest(dtype))
    return (np.rint(x) if dtype == np.int8 else x).astype(dtype)


def append(
    kind: str, k_new: Array, v_new: Array, k: Array, v: Array, slots: Array, k_scale: Array | None = None, v_scale:
    Array | None = None, cos: Array | None = None, sin: Array | None = None, positions: Array | None = None, q: Array |
    None = None, q_scale: Array | None = None, *, quantise_q: bool = False, compute: type = np.float32, **pairs: bool,
) -> tuple[Array, ...]:  # fmt: skip
    """Return the caches, and for the kinds `per_token` and `int4` their scales, with the new rows in their slots; and
    behind them the queries, if there are any.

    kind: `given` (with given scales), `per_token` or `int4`. Shapes are as in manifests/decode.yaml. Arguments are not
        changed. compute: dtype of rotations and before quantisation; float64 leaves 16-bit caches and queries in
        float64, unrounded. pairs: as in `rotated`.
    """
    turn = {"cos": cos, "sin": sin, "positions": positions, "compute": compute, **pairs}
    rows = rotated(k_new, **turn), v_new.astype(compute)
    exact = compute == np.float64 and k.dtype.itemsize == 2
    caches = [cache.astype(compute if exact else cache.dtype) for cache in (k, v)]
    scales = [None if x is None else x.copy() for x in (k_scale, v_scale)]
    blocks, block_size = k.shape[:2]
    for token, slot in enumerate(slots):
        if not 0 <= slot < blocks * block_size:
            continue
        at = divmod(int(slot), block_size)
        for cache, scale, new in zip(caches, scales, rows, strict=True):
            x = new[token]
            if kind == "int4":
                cache[at], scale[at] = quantise_int4(x, scale.shape[-2])
                continue
            if kind == "per_token":
                scale[at] = row_scale(x, cache.dtype)
            factor = None if scale is None else np.broadcast_to(scale, cache.shape[:3])[at][:, None]
            cache[at] = quantise(x, factor if factor is None else np.where(factor == 0, 1, factor), cache.dtype)
    queries = []
    if q is not None:
        queries = [rotated(q, **turn)]
        queries = [_queries_out(queries[0], q_scale, k.dtype if quantise_q else None, q.dtype)]
    return (*caches, *queries) if kind == "given" else (*caches, *scales)


def _queries_out(x: Array, scale: Array | None, quantised: np.dtype | None, dtype: np.dtype) -> Array:
    """Return queries in the dtype `quantised`, or else in `dtype`; those in float64 are left as they are."""
    if quantised is not None:
        return quantise(x, np.ones(1, np.float32) if scale is None else scale[:, None], quantised)
    return x if x.dtype == np.float64 else x.astype(dtype)


def _appending(kind: str, compute: type) -> Callable[..., tuple[Array, ...]]:
    def reference(k_new: Array, v_new: Array, k: Array, *rest: Array | None, **options: object) -> tuple[Array, ...]:
        quantised = k.dtype.itemsize == 1  # rounds as float32 does
        return append(kind, k_new, v_new, k, *rest, compute=np.float32 if quantised else compute, **options)

    return reference


append_kv, append_kv_same_dtype = (_appending("given", compute) for compute in (np.float64, np.float32))


def append_kv_pieces(*new: Array, **options: object) -> tuple[Array, ...]:
    """`append_kv` to caches in pieces, see `paged_attention_pieces`."""
    return _in_pieces(append_kv, *new, **options)


def append_kv_pieces_same_dtype(*new: Array, **options: object) -> tuple[Array, ...]:
    return _in_pieces(append_kv_same_dtype, *new, **options)


def _in_pieces(
    append_to: Callable[..., tuple[Array, ...]], k_new: Array, v_new: Array, k: Array, v: Array, *rest: Array | None,
    **options: object,
) -> tuple[Array, ...]:  # fmt: skip
    pack = k.shape[-1]
    k, v, *queries = append_to(k_new, v_new, *joined_pieces(k, v), *rest, **options)
    blocks, block_size, heads_kv, head_dim = k.shape
    k = k.reshape(blocks, block_size, heads_kv, head_dim // pack, pack).transpose(0, 2, 3, 1, 4)
    v = v.reshape(blocks, block_size // pack, pack, heads_kv, head_dim).transpose(0, 3, 1, 4, 2)
    return k, v, *queries


append_kv_per_token = append_kv_per_token_same_dtype = _appending("per_token", np.float32)
append_kv_int4 = append_kv_int4_same_dtype = _appending("int4", np.float32)


def copy_blocks(x: Array, out: Array, pairs: Array) -> Array:
    """Return out with blocks of x, [blocks, words], by pairs of (block of x, block of out)."""
    result = out.copy()
    for source, target in pairs:
        if 0 <= source < len(x) and 0 <= target < len(out):
            result[target] = x[source]
    return result


copy_blocks_same_dtype = copy_blocks


# Latent attention


def append_latent(c: Array, k_pe: Array, cache: Array, *rest: Array | None, **options: object) -> tuple[Array, ...]:
    """Return the cache with the new rows in their slots, and behind it the joined queries, if there are any; in float64
    unless the cache has 8 bits.

    Shapes are as in manifests/decode.yaml.
    """
    compute = np.float32 if cache.dtype.itemsize == 1 else np.float64
    return _append_latent(compute, c, k_pe, cache, *rest, **options)


def append_latent_same_dtype(*arrays: Array | None, **options: object) -> tuple[Array, ...]:
    """`append_latent` as hardware does it."""
    return _append_latent(np.float32, *arrays, **options)


def _append_latent(
    compute: type, c: Array, k_pe: Array, cache: Array, slots: Array, weight: Array | None = None, scale: Array | None =
    None, cos: Array | None = None, sin: Array | None = None, positions: Array | None = None, q_latent: Array | None =
    None, q_pe: Array | None = None, q_scale: Array | None = None, *, eps: float, quantise_q: bool = False,
    **pairs: bool,
) -> tuple[Array, ...]:  # fmt: skip
    x = c.astype(compute)
    if weight is not None:
        x = x / np.sqrt((x * x).mean(1, keepdims=True) + compute(eps)) * weight.astype(compute)
    turn = {"cos": cos, "sin": sin, "positions": positions, "compute": compute, **pairs}
    rows = np.concatenate([x, rotated(k_pe[:, None], **turn)[:, 0]], 1)
    result = cache.astype(compute) if compute == np.float64 else cache.copy()
    for row, slot in zip(quantise(rows, scale, result.dtype), slots, strict=True):
        if 0 <= slot < cache.shape[0] * cache.shape[1]:
            result[divmod(int(slot), cache.shape[1])] = row
    if q_latent is None:
        return (result,)
    joined = np.concatenate([q_latent.astype(compute), rotated(q_pe, **turn)], -1)
    return result, _queries_out(joined, q_scale, cache.dtype if quantise_q else None, c.dtype)


def mla_decode(q: Array, cache: Array, *tables: Array, **options: object) -> Result:
    """Latent attention in float64.

    q: [tokens, heads, latent + rope]; cache: [blocks, block_size, latent + rope]; cache_scale: [1] or None; tables,
    first_keys, sinks and masks as in `paged_attention`.
    Returns out [tokens, heads, latent], or (out, lse) with lse [tokens, heads].
    """
    return _mla_decode(EXACT, q, cache, *tables, **options)


def mla_decode_same_dtype(q: Array, cache: Array, *tables: Array, **options: object) -> Result:
    """`mla_decode` as hardware does it."""
    return _mla_decode(as_kernel(q), q, cache, *tables, **options)


def _mla_decode(
    precision: Precision, q: Array, cache: Array, block_tables: Array, seqlens_k: Array, cu_seqlens_q: Array,
    first_keys: Array | None = None, cache_scale: Array | None = None, sinks: Array | None = None, *, rope: int = 64,
    scale: float, return_lse: bool = False, max_seqlen_q: int = 1, num_splits: int = 0, **mask: object,
) -> Result:  # fmt: skip
    factor = 1.0 if cache_scale is None else float(cache_scale[0])
    latent = cache.shape[2] - rope
    out, lse = np.empty((*q.shape[:2], latent), precision.result), np.empty(q.shape[:2], precision.compute)
    for b, keys in enumerate(seqlens_k):
        at = np.arange(keys)
        rows = cache[block_tables[b, at // cache.shape[1]].clip(0, len(cache) - 1), at % cache.shape[1]]
        tokens = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        seen = visible_keys(len(q[tokens]), keys, _first(first_keys, b), **mask)
        for h in range(q.shape[1]):
            out[tokens, h], lse[tokens, h] = attend(
                precision, q[tokens, h], rows, rows[:, :latent], scale * factor, seen, sink=_sink(sinks, h),
                factor=factor,
            )  # fmt: skip
    return (out, lse) if return_lse else out
