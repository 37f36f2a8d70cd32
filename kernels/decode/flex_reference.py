"""Flex decoding in numpy: each op's exact reference, and the one that rounds as a kernel does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.attention.mods_reference import MASKS, SCORES
from kernels.attention.reference import attention, attention_same_dtype

Array = np.ndarray
Function = Callable[..., Any]


def listed(num_blocks: Array, indices: Array, sparse_block_size: int, seqlen_k: int) -> Array:
    """Mark the keys of the listed blocks: bool [batch, heads_kv, seqlen_k]."""
    shape = np.broadcast_shapes((*num_blocks.shape, 1), (*indices.shape[:2], 1))[:2]
    found = np.zeros((*shape, -(-seqlen_k // sparse_block_size), sparse_block_size), bool)
    num_blocks, indices = np.broadcast_to(num_blocks, shape), np.broadcast_to(indices, (*shape, indices.shape[2]))
    for b, h in np.ndindex(shape):
        found[b, h, indices[b, h, : num_blocks[b, h]]] = True
    return found.reshape(*shape, -1)[..., :seqlen_k]


def _references(score: Function | None = None, mask: Function | None = None) -> tuple[Function, Function]:
    def reference(attend: Function) -> Function:
        def flex(
            q: Array,
            k: Array,
            v: Array,
            kv_num_blocks: Array,
            kv_indices: Array,
            full_kv_num_blocks: Array,
            full_kv_indices: Array,
            *,
            scale: float,
            sparse_block_size: int = 128,
            first_query: int = 0,
            return_lse: bool = False,
            num_splits: int = 0,
            **operands: Any,
        ) -> Any:
            (batch, heads), (heads_kv, seqlen_k) = q.shape[:2], k.shape[1:3]
            some, all_ = (
                np.broadcast_to(listed(*lists, sparse_block_size, seqlen_k), (batch, heads_kv, seqlen_k))
                for lists in ((kv_num_blocks, kv_indices), (full_kv_num_blocks, full_kv_indices))
            )

            def score_mod(scores: Array, b: int, h: int, query: Array, key: Array) -> Array:
                return score(scores, b, h, query + first_query, key, **operands) if score else scores

            def mask_mod(b: int, h: int, query: Array, key: Array) -> Array:
                g = h // (heads // heads_kv)
                shown = mask(b, h, query + first_query, key, **operands) if mask else True
                return all_[b, g][key] | (some[b, g][key] & shown)

            k, v = (np.broadcast_to(x, (batch, *x.shape[1:])) for x in (k, v))
            return attend(q, k, v, scale=scale, return_lse=return_lse, score_mod=score_mod, mask_mod=mask_mod)

        return flex

    return reference(attention), reference(attention_same_dtype)


def _document(b: int, h: int, query: Array, key: Array, documents: Array) -> Array:
    return MASKS["document"](b, h, query, key, documents, documents)


def _relative_bias(s: Array, b: int, h: int, query: Array, key: Array, bias: Array) -> Array:
    return SCORES["relative_bias"](s, b, h, query, key, bias, bias.shape[1] // 2)


flex_decode, flex_decode_same_dtype = _references()
flex_decode_causal, flex_decode_causal_same_dtype = _references(mask=MASKS["causal"])
flex_decode_window, flex_decode_window_same_dtype = _references(mask=MASKS["sliding_window"])
flex_decode_prefix_lm, flex_decode_prefix_lm_same_dtype = _references(mask=MASKS["prefix_lm"])
flex_decode_document, flex_decode_document_same_dtype = _references(mask=_document)
flex_decode_alibi, flex_decode_alibi_same_dtype = _references(score=SCORES["alibi"])
flex_decode_relative_bias, flex_decode_relative_bias_same_dtype = _references(score=_relative_bias)
flex_decode_softcap, flex_decode_softcap_same_dtype = _references(score=SCORES["soft_cap"])
