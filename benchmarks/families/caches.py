"""Decoding: attention of one query of each sequence to contiguous and paged caches, and latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from aot_bundle.callspec import CallSpec

from .family import (
    DTYPES_16,
    Asked,
    Call,
    Drawn,
    Family,
    Offer,
    Part,
    Peaks,
    Rng,
    Values,
    extent,
    fitting,
    one_of,
)

HEAD_DIMS = (64, 128, 128, 128, 80, 96, 256)
MOST_BYTES = 1 << 31
"""Maximum size of the keys and values of a call."""
PAGES = (16, 32, 64, 128)
LATENT, ROPE = 512, 64
"""Elements of a row of a latent cache, and of its rotated part."""
MLA_HEADS = (16, 24, 32, 64, 96, 128)
MLA_SCALE = str((128 + ROPE) ** -0.5)
FLASH_MLA = 660e12
"""Operations a second of FlashMLA, as published for a GPU with `FLASH_MLA_CUS` multiprocessors."""
FLASH_MLA_CUS = 132
COMPARED_HEADS = 2
"""Heads of a result that are compared with float64."""

Dims = Mapping[str, int]


def draw_lengths(rng: Rng, most: int = 131072) -> np.ndarray:
    """Draw how many keys each sequence has: as many in all, or up to a half less."""
    batch, longest = extent(rng, 1, 256), extent(rng, 16, most)
    if rng.random() < 0.5:
        return np.full(batch, longest, np.int32)
    return rng.integers(max(1, longest // 2), longest, batch, endpoint=True).astype(np.int32)


def draw_cache(rng: Rng, dtypes: tuple[str, ...], pages: tuple[int, ...], op: str) -> Drawn | None:
    """Draw a cache and its queries.

    dtypes: of the cache; empty: that of q. pages: sizes of blocks; 0: the cache is contiguous.
    """
    lengths, page = draw_lengths(rng), one_of(rng, pages)
    heads_kv, head_dim = 1 << int(rng.integers(6)), one_of(rng, HEAD_DIMS)
    dims = {"heads": heads_kv * one_of(rng, (1, 2, 4, 8, 16)), "heads_kv": heads_kv, "head_dim": head_dim}
    dtype = one_of(rng, DTYPES_16)
    cached, by_token = one_of(rng, dtypes or (dtype,)), bool(rng.random() < 0.5)
    tables = block_tables(rng, lengths, page) if page else {}
    if 4 * len(lengths) * int(lengths.max()) * heads_kv * head_dim > MOST_BYTES:
        return None
    make = partial(attend, op=op, dtype=dtype, cached=cached, by_token=by_token, lengths=lengths, page=page,
                   tables=tables)  # fmt: skip
    where = "paged" if page else "contiguous"
    return Drawn(
        f"{'16 bits' if cached == dtype else cached}, {where}",
        make(dims),
        make({**dims, "head_dim": fitting(head_dim)}),
    )


def attend(
    dims: Dims, op: str, dtype: str, cached: str, by_token: bool, lengths: np.ndarray, page: int,
    tables: Mapping[str, np.ndarray],
) -> Call:  # fmt: skip
    batch, keys = len(lengths), int(lengths.max())
    heads_kv, head_dim = dims["heads_kv"], dims["head_dim"]
    values: dict[str, Values] = {"seqlens_k": lengths, **tables}
    extents = paged_extents(tables, page) if page else {"batch": batch, "seqlen_q": 1, "seqlen_k": keys}
    strides: dict[str, tuple[int, ...]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    given = frozenset({"seqlens_k"}) if op == "flash_decode" else frozenset()
    dtypes = {"T": dtype}
    if op.endswith("int4"):
        extents |= {"groups": 1}
        row = head_dim // 2 + 4
        values |= {"k_scale": (0.02, 0.05), "v_scale": (0.02, 0.05)}
    else:
        extents |= {"head_dim_v": head_dim}
        dtypes["C"] = cached
        row = head_dim * (2 if cached == dtype else 1)
        if cached != dtype:
            given |= {"k_scale", "v_scale"}
        if cached == "int8":
            row += 4
            values |= {"k": (-127, 127), "v": (-127, 127), "k_scale": (0.01, 0.02), "v_scale": (0.01, 0.02)}
        elif cached != dtype:
            shape = (1, 1, heads_kv) if page else (1, heads_kv, 1)
            shapes = {"k_scale": shape, "v_scale": shape}
            values |= {"k_scale": (0.5, 1.0), "v_scale": (0.5, 1.0)}
    if not page and by_token and not op.endswith("int4"):  # the heads of a token are together
        strides = dict.fromkeys(("k", "v"), (keys * heads_kv * head_dim, head_dim, heads_kv * head_dim, 1))
    spec = CallSpec(dims={**extents, **dims}, dtypes=dtypes, given=given, strides=strides, shapes=shapes)
    total, queries = int(lengths.sum()), batch * dims["heads"] * head_dim
    return Call(op, spec, values, 4.0 * total * dims["heads"] * head_dim, 2 * total * heads_kv * row + 4 * queries)


def block_tables(rng: Rng, lengths: np.ndarray, page: int) -> dict[str, np.ndarray]:
    """Draw the blocks of each sequence, in random order; -1 where it has none."""
    counts = -(-lengths // page)
    tables = np.full((len(lengths), int(counts.max())), -1, np.int32)
    tables[np.arange(tables.shape[1]) < counts[:, None]] = rng.permutation(int(counts.sum()))
    return {"block_tables": tables, "cu_seqlens_q": np.arange(len(lengths) + 1, dtype=np.int32)}


def paged_extents(tables: Mapping[str, np.ndarray], page: int) -> dict[str, int]:
    batch, most = tables["block_tables"].shape
    blocks = int((tables["block_tables"] >= 0).sum())
    return {"batch": batch, "tokens": batch, "blocks": blocks, "block_size": page, "blocks_per_sequence": most}


def draw_decode(rng: Rng, offer: Offer) -> Drawn | None:
    op = one_of(rng, offer.among("flash_decode", "paged_attention"))
    return draw_cache(rng, (), PAGES[1:] if op == "paged_attention" else (0,), op)


def draw_bytes(rng: Rng, offer: Offer) -> Drawn | None:
    op = one_of(rng, offer.among("flash_decode", "paged_attention"))
    dtypes = tuple(filter(None, ("int8", offer.float8)))
    return draw_cache(rng, dtypes, PAGES[1:] if op == "paged_attention" else (0,), op)


def draw_int4(rng: Rng, offer: Offer) -> Drawn | None:
    op = one_of(rng, offer.among("flash_decode_int4", "paged_attention_int4"))
    return draw_cache(rng, ("int4",), PAGES if op == "paged_attention_int4" else (0,), op)


def draw_pages(rng: Rng, offer: Offer) -> Drawn | None:
    dtypes = one_of(rng, ((), (), ("int8",), tuple(filter(None, ("int8", offer.float8)))))
    return draw_cache(rng, dtypes, (16,), "paged_attention")


def draw_mla(rng: Rng, offer: Offer) -> Drawn | None:
    lengths, page, heads = draw_lengths(rng, 65536), one_of(rng, (64, 64, 16, 32, 128)), one_of(rng, MLA_HEADS)
    tables, dtype = block_tables(rng, lengths, page), one_of(rng, DTYPES_16)
    total, row = int(lengths.sum()), LATENT + ROPE
    if 2 * total * row > MOST_BYTES:
        return None

    def make(heads: int) -> Call:
        dims = {**paged_extents(tables, page), "heads": heads, "row_dim": row}
        queries = len(lengths) * heads * (row + LATENT)
        return Call("mla_decode", CallSpec(dims=dims, dtypes={"T": dtype, "C": dtype}, scalars={"scale": MLA_SCALE}),
                    {"seqlens_k": lengths, **tables}, 2.0 * total * heads * (row + LATENT),
                    2 * total * row + 2 * queries)  # fmt: skip

    return Drawn(f"{heads} heads", make(heads), make(-(-heads // 16) * 16))


def cache_part(call: Call, where: float) -> Part:
    """Cut a sequence and some heads that read the same keys. Blocks of other sequences are left out."""
    dims = call.spec.dims
    sequence, head = int(where * dims["batch"]), int(where * dims["heads"])
    together = dims["heads"] // dims.get("heads_kv", 1)
    head_kv = head // together
    heads = range(head, min(head + COMPARED_HEADS, (head_kv + 1) * together))
    one = range(sequence, sequence + 1)
    cut: dict[str, Any] = {"batch": one, "heads": heads, "heads_kv": range(head_kv, head_kv + 1)}
    if "block_tables" not in call.values:
        return Part(cut)
    own = np.asarray(call.values["block_tables"])[sequence]
    blocks = [int(block) for block in own if block >= 0]
    tables = np.arange(len(blocks), dtype=np.int32)[None]
    return Part({**cut, "tokens": one, "blocks": blocks},
                {"block_tables": tables, "cu_seqlens_q": np.array([0, 1], np.int32)})  # fmt: skip


def flash_mla(peaks: Peaks) -> float:
    return FLASH_MLA * peaks.num_cus / FLASH_MLA_CUS


BOTH = ("flash_decode", "paged_attention")
BOTH_INT4 = ("flash_decode_int4", "paged_attention_int4")
FAMILIES = {
    "decode": Family("decode, fp16 and bf16", Asked(0.95, 0.7, 0.5), BOTH, draw_decode, "out", cache_part),
    "decode_8_bits": Family("decode, int8 and fp8", Asked(0.9, 0.7, 0.5), BOTH, draw_bytes, "out", cache_part),
    "decode_int4": Family("decode, int4", Asked(0.85, 0.7, 0.5), BOTH_INT4, draw_int4, "out", cache_part),
    "decode_pages": Family("decode, pages of 16", Asked(0.9, 0.7, 0.5), BOTH[1:], draw_pages, "out", cache_part),
    "mla": Family("MLA decode", Asked(0.9, 0.7, 0.6), ("mla_decode",), draw_mla, "out", cache_part, rate=flash_mla),
}
