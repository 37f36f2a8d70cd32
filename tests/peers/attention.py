"""Calls of attention, dense, of different lengths and over caches, as the suites make them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from aot_models.masks import pack_mask, parse_mask
from kernels.attention.reference import attention, attention_varlen
from kernels.decode.reference import mla_decode, mla_decode_same_dtype, shown_keys
from kernels.rows.reference import rotary_same_dtype
from tests.ops.decode.cases import pieces
from tests.peers.draws import DEFAULT, Array, Call, Draw, Tolerance, TooLargeError
from tests.support.dtypes import BF16, FP16, FP32

LATENT, ROPE = 512, 64
EPSILON = {FP16: 2.0**-10, BF16: 2.0**-7, FP32: 2.0**-23}


def tolerance(draw: Draw, dtype: np.dtype[Any], masked: Mapping[str, Any]) -> Tolerance:
    """Return what the suite's tests of attention allow. masked: arguments of the call."""
    suite, kvcache = draw.function.suite, draw.function.op == "paged_attention"
    if suite == "flash-attention 2":
        return Tolerance(1e-5, factor=5 if "alibi_slopes" in masked else 3) if kvcache else Tolerance(factor=2)
    if suite in ("flash-attention 3", "flash-attention 4"):
        factor = 3 if masked.get("softcap") else 2
        return Tolerance(1e-4, factor=4) if kvcache else Tolerance(EPSILON[dtype], factor=factor)
    if suite == "aotriton":
        return Tolerance(*DEFAULT[dtype], factor=1)
    if suite == "composable_kernel":
        return Tolerance(*((1e-3, 1e-3) if dtype == FP16 else (1e-2, 1e-2)))
    if suite == "aiter":
        return Tolerance(2e-2 if kvcache else 1e-2, 1e-2)
    if suite == "flashinfer" and draw.function.name.endswith("fp8_calibration_scale"):
        return Tolerance(1e-2, 2e-1)
    if suite == "flashinfer":
        return Tolerance(*((1e-3, 1e-3) if dtype == FP16 else (1e-2, 1e-2)))
    return Tolerance(1.5e-2, 1e-2)


def masks(draw: Draw, keys: int, causal: bool = False) -> dict[str, Any]:
    """Return the scalars of a combination's mask and scores. causal: what a test does that does not say."""
    if (text := draw.get("mask")) is not None:
        return dict(parse_mask(str(text)))
    causal = bool(draw.get("causal CAUSAL", causal or "causal" in draw.function.name))
    found: dict[str, Any] = {"causal": causal}
    if draw.get("local_enum", 0) > 1:  # as `off_diagonal` lays out the sequences
        found |= {"window_right": 0} if draw.get("local_enum") == 2 else {"window_left": 0}
    elif draw.get("local local_enum"):
        left, right = draw.rng.integers(0, max(keys, 1), 2).tolist()
        found |= {"window_left": left, "window_right": 0 if causal else right}
    if (window := draw.get("window_left sliding_window")) is not None and window >= 0:
        found["window_left"] = window - (draw.get("sliding_window") is not None)
    if draw.function.suite == "aotriton":
        found["mask_align"] = "top_left"
    if softcap := draw.get("softcap logits_soft_cap soft_cap"):
        found["softcap"] = softcap
    if draw.get("attention_chunk"):
        found["attention_chunk"] = int(draw.rng.integers(1, 2 * keys))
    if (scale := draw.get("sm_scale")) is not None:
        dim = draw.get("D_HEAD", 64)
        found["scale"] = dim**-0.5 if scale == "l1" else 1 / dim
    return found


def head_dims(draw: Draw) -> tuple[int, int]:
    """Return the head dims of keys and of values."""
    if pair := draw.get("head_sizes"):
        return pair[0], pair[1]
    dim = draw.get("d hd D_HEAD HEAD_SZ head_dim head_size D_QK", 64)
    return dim, draw.get("dv d_v D_V", dim)


def scale_of(scalars: Mapping[str, Any], dim: int) -> dict[str, Any]:
    """Return the scalars as references take them."""
    return {"scale": dim**-0.5} | dict(scalars)


def torch_like(dtype: np.dtype[Any]) -> dict[str, Any]:
    """Options of a reference that rounds scores too, as a computation in the dtype of the queries does."""
    return {"compute": np.float32, "storage": dtype, "score_mod": lambda s, b, h, i, j: s.astype(dtype).astype(FP32)}


def dense(draw: Draw) -> Call:
    """flash_attention over sequences of one length."""
    if draw.get("local_enum", 0) > 1:
        raise TooLargeError("a window off the diagonal, which `varlen` makes")
    queries, keys = lengths(draw)
    batch, (heads, heads_kv), (dim, dim_v) = draw.get("batch_size BATCH b", 2), draw.heads, head_dims(draw)
    if draw.function.suite == "composable_kernel":
        batch, heads, heads_kv = 1, 2, 1
    draw.within(batch * heads * queries * keys * (dim + dim_v))
    dtype, scalars = draw.dtype(default=default_dtype(draw)), masks(draw, keys)
    rows_first = draw.function.suite.startswith("flash") or draw.get("storage_flip") or draw.get("perm") == 0
    layout = (1, 2) if rows_first else None
    q = draw.tensor(batch, heads, queries, dim, dtype=dtype, swapped=layout)
    k = draw.tensor(batch, heads_kv, keys, dim, dtype=dtype, swapped=layout)
    v = draw.tensor(batch, heads_kv, keys, dim_v, dtype=dtype, swapped=(2, 3) if draw.get("vl") == "c" else layout)
    tensors = {"q": q, "k": k, "v": v} | biases(draw, batch, heads, queries, keys, dtype)
    if draw.get("has_learnable_sink"):
        tensors["sinks"] = draw.normal(heads)
    if draw.get("has_qv"):
        tensors["qv"] = draw.normal(batch, heads, queries, dim_v, dtype=dtype)
        scalars["scale"] = (dim + dim_v) ** -0.5
    if dtype.itemsize == 1:
        return in_float8(draw, batch, tensors, scalars)
    reference = partial(attention, **tensors, **scale_of(scalars, dim))
    expected = lambda: (reference(), reference(**torch_like(dtype)))  # noqa: E731
    return Call("flash_attention", tensors, scalars, expected, tolerance(draw, dtype, scalars),
                ("out", (batch, heads, queries, dim_v), dtype))  # fmt: skip


def in_float8(draw: Draw, batch: int, tensors: Mapping[str, Array], scalars: Mapping[str, Any]) -> Call:
    """The same with float8 tensors, which have a scale for each sequence and head, and with a result of bfloat16."""
    op = "flash_attention_fp8_varlen" if "cu_seqlens_q" in tensors else "flash_attention_fp8"
    scales = {name: (draw.rng.random((batch, tensors[name].shape[1])) * 2).astype(FP32) for name in "qkv"}
    exact = dict(tensors)
    for name, scale in scales.items():
        counts = np.diff(tensors["cu_seqlens_q" if name == "q" else "cu_seqlens_k"]) if op.endswith("varlen") else None
        factors = scale[..., None, None] if counts is None else np.repeat(scale, counts, 0)[..., None]
        exact[name] = tensors[name].astype(np.float64) * factors
    like = {"compute": np.float32, "storage": BF16, "rounding": partial(rounded, tensors["v"].dtype)}
    options = scale_of(scalars, tensors["q"].shape[-1])
    reference = partial(attention_varlen if op.endswith("varlen") else attention, **exact, **options)
    expected = lambda: (reference(), reference(**like))  # noqa: E731
    tensors = {**tensors, **{f"{name}_scale": scale for name, scale in scales.items()}}
    shape = *tensors["q"].shape[:-1], tensors["v"].shape[-1]
    return Call(op, tensors, scalars, expected, tolerance(draw, BF16, scalars), ("out", shape, BF16))


def rounded(dtype: np.dtype[Any], probabilities: Array) -> tuple[Array, Array]:
    return probabilities.astype(dtype).astype(FP32), probabilities


def lengths(draw: Draw) -> tuple[int, int]:
    """Return the (longest) sequences of queries and keys."""
    queries = draw.get("seqlen_q SEQLEN_Q qo_len q_len seq_len seqlen s")
    keys = draw.get("seqlen_k SEQLEN_K kv_len s_k seq_len seqlen L", queries)
    return (keys, queries) if draw.get("swap_sq_sk") else (queries, keys)


def biases(draw: Draw, batch: int, heads: int, queries: int, keys: int, dtype: np.dtype[Any]) -> dict[str, Array]:
    """Return the bias or the slopes that a combination asks for."""
    kind = draw.get("bias_type")
    if draw.get("alibi") or draw.get("bias") == "a" or kind == "alibi":
        return {"alibi_slopes": (draw.rng.random((batch, heads)) * 0.3).astype(FP32)}
    if kind not in (None, "no") or draw.get("bias") == "e" or "matrix_bias" in draw.function.name:
        return {"bias": draw.normal(batch, heads, queries, keys, dtype=dtype)}
    return {}


def varlen(draw: Draw) -> Call:
    """flash_attention_varlen over three sequences, or as many as the combination has, of random lengths."""
    queries, keys = lengths(draw)
    batch, (heads, heads_kv), (dim, dim_v) = draw.get("batch_size BATCH", 3), draw.heads, head_dims(draw)
    draw.within(batch * heads * queries * keys * (dim + dim_v))
    used = [draw.rng.integers(max(1, n - 20), n + 1, batch).astype(np.int32) for n in (queries, keys)]
    cu_q, cu_k = map(offsets, used)
    if draw.function.suite == "flashinfer" or (queries == keys and "packed" in draw.function.name):
        cu_q, cu_k = offsets([queries] * batch), offsets([keys] * batch)
    is_padded = [draw.get(name) is False for name in ("unpad_q", "unpad_kv")]
    kind = draw.get("local_enum", 0)
    if any(is_padded) and kind > 1:
        cu_q, cu_k = padded(draw, "unpad_q", cu_q, queries), padded(draw, "unpad_kv", cu_k, keys)
        is_padded = [False, False]
        batch *= 2
    cu_q, cu_k = (
        offsets([n] * batch) if is_long else cu
        for is_long, n, cu in zip(is_padded, (queries, keys), (cu_q, cu_k), strict=True)
    )
    dtype, scalars = draw.dtype(default=default_dtype(draw)), masks(draw, keys)
    seen: dict[str, Any] = {}
    if kind > 1:
        seen = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "window_left": -1, "window_right": -1}
        cu_q, cu_k, seen["bias"] = off_diagonal(cu_q, cu_k, kind == 2, int(draw.rng.integers(1, keys + 1)))
    q = draw.normal(cu_q[-1], heads, dim, dtype=dtype)
    k, v = (draw.normal(cu_k[-1], heads_kv, width, dtype=dtype) for width in (dim, dim_v))
    tensors = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    tensors |= biases(draw, batch, heads, queries, keys, dtype)
    tensors |= {f"seqused_{side}": x for side, is_long, x in zip("qk", is_padded, used, strict=True) if is_long}
    if draw.get("has_qv"):
        tensors["qv"] = draw.normal(cu_q[-1], heads, dim_v, dtype=dtype)
        scalars["scale"] = (dim + dim_v) ** -0.5
    if draw.get("pos_encoding_mode", "NONE") == "ROPE_LLAMA":
        tensors["cos"] = draw.normal(keys, dim // 2)
    if dtype.itemsize == 1:
        return in_float8(draw, batch, tensors, scalars)
    reference = partial(attention_varlen, **tensors | scale_of(scalars, dim) | seen)
    expected = lambda: (reference(), reference(**torch_like(dtype)))  # noqa: E731
    return Call("flash_attention_varlen", tensors, scalars | {"max_seqlen_q": queries, "max_seqlen_k": keys}, expected,
                tolerance(draw, dtype, scalars), ("out", (len(q), heads, dim_v), dtype))  # fmt: skip


def padded(draw: Draw, unpad: str, cu_seqlens: Array, longest: int) -> Array:
    """Offsets of twice as many sequences: each is followed by what pads it to the longest, or by nothing."""
    counts = np.diff(cu_seqlens)
    rest = np.zeros_like(counts) if draw.get(unpad, True) else longest - counts
    return offsets(np.stack([counts, rest], 1).ravel())


def off_diagonal(cu_q: Array, cu_k: Array, before: bool, distance: int) -> tuple[Array, Array, Array]:
    """Return offsets of twice as many sequences, whose diagonals are `distance` keys before or behind, and a bias.

    The last keys of a sequence, which no query sees then, or its last queries, which see no key, are a sequence of
    their own. The bias hides the same keys of the sequences as they were.
    """
    counts_q, counts_k = np.diff(cu_q), np.diff(cu_k)
    cut, kept = (counts_k, counts_q) if before else (counts_q, counts_k)
    rest = np.minimum(cut, distance)
    split, whole = offsets(np.stack([cut - rest, rest], 1).ravel()), offsets(np.stack([kept, 0 * kept], 1).ravel())
    bias = np.zeros((1, cu_q[-1], max(counts_k, default=0)), FP32)
    for start, queries, keys in zip(cu_q[:-1], counts_q, counts_k, strict=True):
        ahead = np.arange(bias.shape[2]) - (np.arange(queries)[:, None] + keys - queries)
        bias[0, start : start + queries][ahead > -distance if before else ahead < distance] = -np.inf
    return (whole, split, bias) if before else (split, whole, bias)


def default_dtype(draw: Draw) -> str:
    return "bfloat16" if draw.function.suite in ("flash-attention 3", "flash-attention 4") else "float16"


def offsets(counts: Any) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def cache(draw: Draw) -> Call:
    """paged_attention or, of float8, paged_attention_fp8; a contiguous cache is one in blocks of its length."""
    pairs = of_sequences(draw)
    batch, (heads, heads_kv), (dim, dim_v) = len(pairs), draw.heads, head_dims(draw)
    draw.within(heads * (dim + dim_v) * sum(queries * keys for queries, keys in pairs))
    longest = max(keys for _, keys in pairs)
    size = draw.get("paged_kv_block_size page_size page_block_size block_size PAGE_SIZE") or longest
    per_sequence = -(-longest // size)
    dtype = draw.dtype(default=default_dtype(draw))
    if str(draw.get("q_dtype input_dtype")).startswith(("fp8", "float8")):
        dtype = draw.float8
    stored = draw.dtype("kv_dtype kv_cache_dtype") if draw.get("kv_dtype kv_cache_dtype") else dtype
    if calibrated := draw.function.name.endswith("fp8_calibration_scale"):
        dtype, stored = FP16, dtype
    scalars = masks(draw, longest, causal=True)
    if all(queries == 1 for queries, _ in pairs):
        scalars = {name: value for name, value in scalars.items() if name not in ("causal", "window_right")}
    elif scalars.get("causal") is not False:
        scalars.pop("causal", None)
        scalars.pop("window_right", None)
    layout = (1, 2) if draw.get("kv_layout layout") == "HND" else None
    k, v = (
        draw.tensor(batch * per_sequence, size, heads_kv, width, dtype=stored, swapped=layout) for width in (dim, dim_v)
    )
    tables = draw.rng.permutation(batch * per_sequence).astype(np.int32).reshape(batch, per_sequence)
    q = draw.normal(sum(queries for queries, _ in pairs), heads, dim, dtype=dtype)
    slopes = biases(draw, batch, heads, 0, 0, dtype)
    first = draw.rng.integers(0, longest // 5 + 1, batch).astype(np.int32)
    tensors = {"q": q, "k": k, "v": v, "block_tables": tables,
               "seqlens_k": np.array([keys for _, keys in pairs], np.int32),
               "cu_seqlens_q": offsets([queries for queries, _ in pairs])} | slopes  # fmt: skip
    if draw.get("has_leftpad"):
        tensors["first_keys"] = first
    if draw.get("has_learnable_sink"):
        tensors["sinks"] = draw.normal(heads)
    if stored.itemsize == 1 < dtype.itemsize:
        factors = draw.rng.random(2) / 2 + 0.25 if calibrated else (1, 1)
        tensors |= {f"{name}_scale": np.full((1, 1, 1), x, FP32) for name, x in zip("kv", factors, strict=True)}
    if draw.get("pos_encoding_mode", "NONE") == "ROPE_LLAMA":
        angles = np.arange(longest)[:, None] * 1e4 ** (-np.arange(dim // 2) / (dim // 2))
        tensors |= {"cos": np.cos(angles).astype(FP32), "sin": np.sin(angles).astype(FP32)}
    if draw.function.name.endswith("custom_mask"):
        tensors["custom_mask"] = pack_mask(draw.rng.random((len(q), longest)) < 0.5)
        scalars["causal"] = False
    if draw.get("v_scale"):
        scalars["out_factor"] = draw.get("v_scale")
    op = "paged_attention"
    if dtype.itemsize == 1:
        op, dtype = "paged_attention_fp8", BF16
        tensors |= {f"{name}_scale": (draw.rng.random((batch, heads_kv)) * 2).astype(FP32) for name in "qkv"}
    expected = partial(gathered, tensors, pairs, {"causal": True} | scale_of(scalars, dim), dtype)
    if "custom_mask" in tensors or "cos" in tensors:
        op = "paged_attention_masked" if "custom_mask" in tensors else "paged_attention_rotated"
    if draw.get("kvcache_layout") == "vectorized":
        op = f"{op}_pieces"
        tensors = tensors | {name: np.ascontiguousarray(x) for name, x in pieces(k, v).items()}
    return Call(op, tensors, scalars | {"max_seqlen_q": max(queries for queries, _ in pairs)}, expected,
                tolerance(draw, dtype, slopes), ("out", (*q.shape[:2], dim_v), dtype))  # fmt: skip


def latent(draw: Draw) -> Call:
    """mla_decode of DeepSeek's heads; rows of the cache past the end of a sequence are NaN."""
    batch, queries, size = draw.get("batch_size"), draw.get("qo_len"), draw.get("page_size", 16)
    counts = [draw.get("kv_len")] if draw.get("kv_len") else [draw.get(f"kv_len_{i}") for i in range(3)]
    keys, heads = np.array(counts * batch, np.int32), draw.get("num_heads", 128)
    causal = bool(draw.get("causal"))
    if causal and queries > keys.min():
        raise TooLargeError("queries before the first key, which the test skips")
    draw.within(heads * queries * int(keys.sum()) * (2 * LATENT + ROPE))
    per_sequence = max(1, -(-int(keys.max()) // size))
    blocks = draw.normal(len(keys) * per_sequence, size, LATENT + ROPE, dtype=FP16)
    tables = draw.rng.permutation(len(blocks)).astype(np.int32).reshape(len(keys), per_sequence)
    at = np.arange(per_sequence * size)
    for b, count in enumerate(keys):
        rest = at[count:]
        blocks[tables[b, rest // size], rest % size] = np.nan
    given = {"q": draw.normal(len(keys) * queries, heads, LATENT + ROPE, dtype=FP16), "cache": blocks,
             "block_tables": tables, "seqlens_k": keys, "cu_seqlens_q": offsets([queries] * len(keys))}  # fmt: skip
    scalars = {"scale": (128 + ROPE) ** -0.5, "max_seqlen_q": queries} | (
        {} if causal or queries == 1 else {"causal": False}
    )
    expected = lambda: (mla_decode(**given, **scalars), mla_decode_same_dtype(**given, **scalars))  # noqa: E731
    return Call("mla_decode", given, scalars, expected, Tolerance(1e-3, 1e-3),
                ("out", (len(given["q"]), heads, LATENT), FP16))  # fmt: skip


def of_sequences(draw: Draw) -> list[tuple[int, int]]:
    """Return the queries and keys of each sequence of a cache."""
    if draw.function.name == "test_batch_attention_correctness":
        return [(int(draw.rng.integers(1, keys + 1)), keys) for keys in draw.rng.integers(1, 300, 3).tolist()]
    if pairs := draw.get("seq_lens"):
        return [(queries, keys) for queries, keys in pairs]
    if keys := draw.get("kv_lens"):
        return [(1, count) for count in keys]
    queries, keys = lengths(draw)
    queries = 1 if "decode" in draw.function.name else queries
    if draw.function.suite in ("flashinfer", "aiter"):
        return [(queries, keys)] * draw.get("batch_size", 2)
    if draw.get("has_leftpad"):
        queries = min(queries, keys - keys // 5)
    return [(queries, int(count)) for count in draw.rng.integers(max(min(queries, keys), keys // 2), keys + 1, 2)]


def gathered(
    tensors: Mapping[str, Array], pairs: list[tuple[int, int]], options: dict[str, Any], dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """Gather each sequence's keys from their blocks, and return its attention: exact, and with torch's roundings."""
    results: list[list[Array]] = [[], []]
    chunk, factor = options.pop("attention_chunk", 0), options.pop("out_factor", 1.0)
    for b, (queries, keys) in enumerate(pairs):
        first = int(tensors["first_keys"][b]) if "first_keys" in tensors else 0
        k, v = (
            tensors[name][tensors["block_tables"][b]].reshape(-1, *tensors[name].shape[2:])[first:keys] for name in "kv"
        )
        q = tensors["q"][tensors["cu_seqlens_q"][b] :][:queries]
        q, k, v = (factored(x, tensors.get(f"{name}_scale"), b) for name, x in zip("qkv", (q, k, v), strict=True))
        if "cos" in tensors:
            places = np.arange(keys)
            q, k = (
                rotary_same_dtype(x, tensors["cos"], tensors["sin"], at)
                for x, at in ((q, places[keys - queries :]), (k, places))
            )
        q, k, v = (x.swapaxes(0, 1)[None] for x in (q, k, v))
        given = {"alibi_slopes": tensors["alibi_slopes"][[b]]} if "alibi_slopes" in tensors else {}
        given |= {"sinks": tensors["sinks"]} if "sinks" in tensors else {}
        if chunk:
            given["mask_mod"] = partial(in_chunk, keys - first - queries, chunk)
        if "custom_mask" in tensors:
            given["mask_mod"] = partial(shown, shown_keys(tensors["custom_mask"][tensors["cu_seqlens_q"][b] :], keys))
        for found, how in zip(results, ({}, torch_like(dtype)), strict=True):
            found.append(attention(q, k, v, **given, **options, **how)[0].swapaxes(0, 1) * factor)
    return np.concatenate(results[0]), np.concatenate(results[1])


def factored(x: Array, factors: Array | None, sequence: int) -> Array:
    """Return values of a sequence [tokens, heads, dim] times the factors [batch, heads_kv] of their key heads.

    factors: one of all is [1, 1, 1].
    """
    if factors is None:
        return x
    own = factors[sequence] if factors.ndim == 2 else factors[0, 0]
    return x.astype(np.float64) * np.repeat(own, x.shape[1] // len(own))[:, None]


def in_chunk(shift: int, chunk: int, _batch: int, _head: int, queries: Array, keys: Array) -> Array:
    """Tell which keys are in the chunk of each query's diagonal."""
    return keys // chunk == (queries + shift) // chunk


def shown(mask: Array, _batch: int, _head: int, queries: Array, keys: Array) -> Array:
    """Tell which keys a mask [queries, keys] shows."""
    return mask[queries, keys]
