"""Attention to prompts: dense, causal and windowed, of equal and of different lengths, with features, and in float8."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from aot_bundle.callspec import CallSpec

from .family import (
    DTYPES_16,
    MOST_ELEMENTS,
    Asked,
    Call,
    Drawn,
    Family,
    Offer,
    Part,
    Rng,
    Tensors,
    Ways,
    extent,
    fitting,
    near,
    one_of,
    piece,
    without,
)

HEAD_DIMS = (64, 64, 128, 128, 40, 72, 80, 96, 160, 192, 256)
MOST_TOKENS = 20000
QUERIES = 64
"""Rows of a result that are compared with float64."""

Dims = Mapping[str, int]
Scalars = Mapping[str, str]


def draw_heads(rng: Rng) -> dict[str, int]:
    heads_kv = 1 << int(rng.integers(6))
    head_dim = one_of(rng, HEAD_DIMS)
    return {"heads": heads_kv * one_of(rng, (1, 1, 2, 4, 8)), "heads_kv": heads_kv, "head_dim": head_dim,
            "head_dim_v": head_dim}  # fmt: skip


def draw_mask(rng: Rng, windows: bool = True) -> dict[str, str]:
    scalars = {"causal": "true"} if rng.random() < 0.5 else {}
    if windows and rng.random() < 0.2:
        scalars["window_left"] = str(extent(rng, 16, 4096))
        if not scalars.get("causal"):
            scalars["window_right"] = str(extent(rng, 16, 4096))
    return scalars


def draw_shape(rng: Rng, causal: bool) -> dict[str, int] | None:
    queries = extent(rng, 1, MOST_TOKENS)
    keys = queries if rng.random() < 0.6 else extent(rng, queries if causal else 1, MOST_TOKENS)
    dims = {"batch": extent(rng, 1, 32), **draw_heads(rng), "seqlen_q": queries, "seqlen_k": keys}
    rows = max(dims["heads"] * queries, dims["heads_kv"] * keys)
    return None if dims["batch"] * dims["head_dim"] * rows > MOST_ELEMENTS else dims


def visible_pairs(queries: int, keys: int, scalars: Scalars) -> float:
    """Count the pairs of a query and a key that it sees."""
    diagonal = np.arange(queries) + keys - queries
    left = int(scalars.get("window_left", -1))
    right = 0 if "causal" in scalars else int(scalars.get("window_right", -1))
    first = diagonal * 0 if left < 0 else np.clip(diagonal - left, 0, keys)
    end = diagonal * 0 + keys if right < 0 else np.clip(diagonal + right + 1, 0, keys)
    return float(np.maximum(end - first, 0).sum())


def dense(op: str, dims: Dims, dtypes: Mapping[str, str], scalars: Scalars, **more: Any) -> Call:
    """Return a call of sequences of one length; `more` as for a `CallSpec`."""
    pairs = max(1.0, visible_pairs(dims["seqlen_q"], dims["seqlen_k"], scalars))
    return Call(op, CallSpec(dims=dims, dtypes=dtypes, scalars=scalars, **more),
                flops=4.0 * dims["batch"] * dims["heads"] * dims["head_dim"] * pairs)  # fmt: skip


def aligned(dims: Dims) -> dict[str, int]:
    """Return the nearest extents that are aligned."""
    head_dims = {name: fitting(dims[name]) for name in ("head_dim", "head_dim_v") if name in dims}
    lengths = {name: near(dims[name]) for name in ("seqlen_q", "seqlen_k") if dims.get(name, 0) > 64}
    return {**dims, **head_dims, **lengths}


def kind(dims: Dims, scalars: Scalars, queries: int) -> str:
    if "window_left" in scalars:
        return "windows"
    if queries <= 64:
        return "at most 64 queries"
    return f"head dim {dims['head_dim']}" if dims["head_dim"] in (64, 128) else "other head dims"


def draw_attention(rng: Rng, offer: Offer) -> Drawn | None:
    op = one_of(rng, offer.among("flash_attention", "flash_attention", "flash_attention", "flash_attention_varlen"))
    scalars, dtypes = draw_mask(rng), {"T": one_of(rng, DTYPES_16)}
    if op == "flash_attention_varlen":
        return draw_varlen(rng, scalars, dtypes)
    dims = draw_shape(rng, "causal" in scalars)
    if dims is None:
        return None
    call, neighbour = (dense(op, each, dtypes, scalars) for each in (dims, aligned(dims)))
    return Drawn(kind(dims, scalars, dims["seqlen_q"]), call, neighbour)


def draw_varlen(rng: Rng, scalars: Scalars, dtypes: Mapping[str, str]) -> Drawn | None:
    """Draw sequences one behind the other, of which each has as many keys as queries, or more."""
    batch, longest = extent(rng, 1, 64), extent(rng, 1, MOST_TOKENS)
    queries = [extent(rng, max(1, longest // 16), longest) for _ in range(batch)]
    keys = queries if rng.random() < 0.7 else [extent(rng, each, max(each, longest)) for each in queries]
    heads = draw_heads(rng)
    if sum(keys) * heads["heads"] * heads["head_dim"] > MOST_ELEMENTS:
        return None
    nearest = [[near(each) if each > 64 else each for each in lengths] for lengths in (queries, keys)]
    call, neighbour = (
        varlen(dims, queries_of, keys_of, dtypes, scalars)
        for dims, queries_of, keys_of in ((heads, queries, keys), (aligned(heads), *nearest))
    )
    return Drawn("different lengths", call, neighbour)


def varlen(dims: Dims, queries: list[int], keys: list[int], dtypes: Mapping[str, str], scalars: Scalars) -> Call:
    ends = {"q": queries, "k": keys}
    offsets = {f"cu_seqlens_{name}": np.cumsum([0, *each]).astype(np.int32) for name, each in ends.items()}
    longest = {f"max_seqlen_{name}": str(max(each)) for name, each in ends.items()}
    tokens = {"tokens_q": sum(queries), "tokens_k": sum(keys)}
    spec = CallSpec(dims={"batch": len(queries), **dims, **tokens}, dtypes=dtypes, scalars={**scalars, **longest})
    pairs = sum(visible_pairs(q, k, scalars) for q, k in zip(queries, keys, strict=True))
    return Call("flash_attention_varlen", spec, offsets, 4.0 * dims["heads"] * dims["head_dim"] * max(1.0, pairs))


def draw_features(rng: Rng, offer: Offer) -> Drawn | None:
    scalars = draw_mask(rng, windows=False)
    dims = draw_shape(rng, "causal" in scalars)
    feature = one_of(rng, ("softcap", "alibi_slopes", "bias"))
    if dims is None:
        return None
    if feature == "bias" and dims["heads"] * dims["seqlen_q"] * dims["seqlen_k"] > MOST_ELEMENTS:
        return None
    if feature == "softcap":
        scalars["softcap"] = "30"
    dtypes, given = {"T": one_of(rng, DTYPES_16)}, frozenset({feature} & {"alibi_slopes", "bias"})
    values = {"alibi_slopes": (0.01, 0.5)} if feature == "alibi_slopes" else {}

    def make(dims: Dims) -> Call:
        shapes = {"bias": (1, dims["heads"], dims["seqlen_q"], dims["seqlen_k"])} if feature == "bias" else {}
        call = dense("flash_attention", dims, dtypes, scalars, given=given, shapes=shapes)
        return Call(call.op, call.spec, values, call.flops)

    call = make(dims)
    return Drawn(feature, call, make(aligned(dims)), plain=without(call, frozenset({feature})))


def draw_float8(rng: Rng, offer: Offer) -> Drawn | None:
    scalars, out = draw_mask(rng), one_of(rng, DTYPES_16)
    dims = draw_shape(rng, "causal" in scalars)
    if dims is None:
        return None
    own = {name: extent for name, extent in dims.items() if name != "head_dim_v"}

    def make(dims: Dims) -> Call:
        call = dense("flash_attention_fp8", dims, {"F": offer.float8, "O": out}, scalars)
        return Call(call.op, call.spec, dict.fromkeys(("q_scale", "k_scale", "v_scale"), (0.5, 1.0)), call.flops)

    plain = dense("flash_attention", dims, {"T": out}, scalars)
    return Drawn(f"head dim {dims['head_dim']}", make(own), make(aligned(own)), plain=plain)


def attention_part(call: Call, where: float) -> Part:
    """Cut some queries of one head, and the keys that they may see."""
    dims, causal = call.spec.dims, "causal" in call.spec.scalars
    head = int(where * dims["heads"])
    head_kv = head // (dims["heads"] // dims["heads_kv"])
    cut = {"heads": range(head, head + 1), "heads_kv": range(head_kv, head_kv + 1)}
    sequence = int(where * dims["batch"])
    if "tokens_q" not in dims:
        queries, keys = _queries(dims["seqlen_q"], dims["seqlen_k"], causal, where)
        return Part({"batch": range(sequence, sequence + 1), **cut, "seqlen_q": queries, "seqlen_k": keys})
    starts = {name: np.asarray(call.values[f"cu_seqlens_{name}"]) for name in ("q", "k")}
    lengths = {name: int(each[sequence + 1] - each[sequence]) for name, each in starts.items()}
    parts = dict(zip("qk", _queries(lengths["q"], lengths["k"], causal, where), strict=True))
    tokens = {f"tokens_{name}": range(int(starts[name][sequence]) + rows.start, int(starts[name][sequence]) + rows.stop)
              for name, rows in parts.items()}  # fmt: skip
    offsets = {f"cu_seqlens_{name}": np.array([0, len(rows)], np.int32) for name, rows in parts.items()}
    return Part({**cut, **tokens}, offsets)


def _queries(queries: int, keys: int, causal: bool, where: float) -> tuple[range, range]:
    """Return some queries and the keys up to their last diagonal, which stays in the last corner."""
    some = piece(queries, QUERIES, where if causal else 1)
    seen = keys - (queries - some.stop)
    if seen < 1:
        some, seen = piece(queries, QUERIES, 1), keys
    return some, range(seen)


def attention_peers(torch: Any, t: Tensors, call: Call) -> Ways:
    """Return torch's fused attention; with masks that it lacks, FlashAttention alone."""
    scalars, dims = call.spec.scalars, call.spec.dims
    if "tokens_q" in dims or "window_left" in scalars:
        return {"FlashAttention": partial(flash, torch, t, call)}
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    queries, keys = dims["seqlen_q"], dims["seqlen_k"]
    causal, square = "causal" in scalars and queries > 1, queries == keys
    mask = causal_lower_right(queries, keys) if causal and not square else None

    def fused(backend: Any) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                t["q"], t["k"], t["v"], attn_mask=mask, is_causal=causal and square, enable_gqa=True
            )

    found = {"FlashAttention": partial(fused, SDPBackend.FLASH_ATTENTION)}
    if mask is None:
        found["cuDNN"] = partial(fused, SDPBackend.CUDNN_ATTENTION)
    return found


def flash(torch: Any, t: Tensors, call: Call) -> Any:
    """Call the FlashAttention of torch, of windows and of different lengths."""
    scalars, dims = call.spec.scalars, call.spec.dims
    causal = "causal" in scalars
    window = {f"window_size_{side}": int(scalars[f"window_{side}"]) for side in ("left", "right")
              if f"window_{side}" in scalars}  # fmt: skip
    if causal and window:
        window["window_size_right"] = 0
    if "tokens_q" in dims:
        tensors, longest = [t[name] for name in "qkv"], [int(scalars[f"max_seqlen_{name}"]) for name in "qk"]
        offsets = [t["cu_seqlens_q"], t["cu_seqlens_k"]]
    else:
        tensors, longest = [t[name].transpose(1, 2) for name in "qkv"], [dims["seqlen_q"], dims["seqlen_k"]]
        offsets = [None, None]
    return torch.ops.aten._flash_attention_forward(
        *tensors, *offsets, *longest, 0.0, causal, False, scale=1 / math.sqrt(dims["head_dim"]), **window
    )


FAMILIES = {
    "attention": Family("attention", Asked(1.0, 0.85, 0.7), ("flash_attention", "flash_attention_varlen"),
                        draw_attention, "out", attention_part, attention_peers),
    "attention_features": Family("attention with soft-cap, ALiBi, bias", Asked(0.9, 0.75, 0.6), ("flash_attention",),
                                 draw_features, "out", attention_part),
    "attention_fp8": Family("attention in fp8", Asked(1.15, 0.75, 0.6), ("flash_attention_fp8",), draw_float8, "out",
                            attention_part, needs=("flash_attention",)),
}  # fmt: skip
