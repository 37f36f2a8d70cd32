"""`mods` in numpy: references of the ops that are built with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kernels.attention.reference import Array, Result, attention, attention_same_dtype


def _references(
    score: Callable[..., Array] | None = None, mask: Callable[..., Array] | None = None
) -> tuple[Callable[..., Result], Callable[..., Result]]:
    """Return two references of attention with a mod: exact, and rounded as in a kernel. Operands are passed by name."""

    def mods(operands: dict[str, Any]) -> dict[str, Any]:
        return {
            "score_mod": partial(score, **operands) if score else None,
            "mask_mod": partial(mask, **operands) if mask else None,
        }

    def exact(q: Array, k: Array, v: Array, *, scale: float, return_lse: bool = False, **operands: Any) -> Result:
        return attention(q, k, v, scale=scale, return_lse=return_lse, **mods(operands))

    def same_dtype(q: Array, k: Array, v: Array, *, scale: float, return_lse: bool = False, **operands: Any) -> Result:
        return attention_same_dtype(q, k, v, scale=scale, return_lse=return_lse, **mods(operands))

    return exact, same_dtype


def _relative_bias(s: Array, b: int, h: int, query: Array, key: Array, table: Array, farthest: int) -> Array:
    return s + table[h].astype(s.dtype)[np.clip(key - query, -farthest, farthest) + farthest]


SCORES: dict[str, Callable[..., Array]] = {
    "identity": lambda s, b, h, query, key: s,
    "alibi": lambda s, b, h, query, key, slopes: s + slopes[h] * (key - query),
    "relative_bias": _relative_bias,
    "soft_cap": lambda s, b, h, query, key, softcap: s.dtype.type(softcap) * np.tanh(s / s.dtype.type(softcap)),
}
MASKS: dict[str, Callable[..., Array]] = {
    "causal": lambda b, h, query, key: key <= query,
    "sliding_window": lambda b, h, query, key, width: (key <= query) & (query - key < width),
    "prefix_lm": lambda b, h, query, key, prefixes: (key <= query) | (key < prefixes[b]),
    "document": lambda b, h, query, key, documents_q, documents_k: documents_q[b][query] == documents_k[b][key],
}
identity, identity_same_dtype = _references(score=SCORES["identity"])
alibi, alibi_same_dtype = _references(score=SCORES["alibi"])
relative_bias, relative_bias_same_dtype = _references(score=SCORES["relative_bias"])
soft_cap, soft_cap_same_dtype = _references(score=SCORES["soft_cap"])
causal, causal_same_dtype = _references(mask=MASKS["causal"])
sliding_window, sliding_window_same_dtype = _references(mask=MASKS["sliding_window"])
prefix_lm, prefix_lm_same_dtype = _references(mask=MASKS["prefix_lm"])
document, document_same_dtype = _references(mask=MASKS["document"])
