"""Attention masks as arguments of the ops, in numpy: reference semantics, mask strings, and block lists.

**Sources.** Masks follow the generic attention-mask coordinates of composable_kernel; mask strings are those of its
`example_fmha_fwd`. Block lists are those of a `BlockMask` of PyTorch's flex attention, for one row of query blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
MaskMod = Callable[[Array, Array, Array, Array], Array]
"""Function of (batch, head, query, key), as broadcastable index arrays. Returns True where the query sees the key."""
FORMS = "0, 1, 2, t, b, t:left,right, b:left,right, g:y,x, xt:window or xb:window"


def visible_keys(
    seqlen_q: int,
    seqlen_k: int,
    *,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    mask_align: str = "bottom_right",
) -> Array:
    """Return the keys that each query sees: bool [seqlen_q, seqlen_k].

    The diagonal of query i is key i, or key i + seqlen_k - seqlen_q if mask_align is bottom_right. A query sees the
    diagonal key, window_left keys before it and window_right keys after it. A negative number means no limit, unless
    mask_align is generic: then it counts from the diagonal in the other direction. causal means window_right = 0.

    Raises ValueError as the ops do: for causal with a positive window_right, and for generic masks that are causal or
    whose last key is before the first.
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
    return seen


def parse_mask(text: str) -> dict[str, Any]:
    """Parse a mask string of composable_kernel. Returns arguments of the ops; an empty dict means no mask.

    0: none. 1 or t: causal, top-left. 2 or b: causal, bottom-right. t:l,r and b:l,r: a window of l keys to the left of
    the diagonal and r to the right; negative numbers are unbounded. g:y,x: query i sees keys i - y + 1 <= j < i + x,
    for x + y >= 2. xt:w and xb:w: a window of w keys around the diagonal, causal unless w is positive.

    Raises ValueError for anything else.
    """
    if text == "0":
        return {}
    if text in ("1", "t", "2", "b"):
        return {"causal": True, "mask_align": "top_left" if text in ("1", "t") else "bottom_right"}
    if match := re.fullmatch(r"(t|b):(-?\d+),(-?\d+)", text):
        return _window(match[1], int(match[2]), int(match[3]))
    if match := re.fullmatch(r"g:(-?\d+),(-?\d+)", text):
        y, x = int(match[1]), int(match[2])
        if x + y < 2:
            raise ValueError(f"mask '{text}': y + x is {x + y}; at least 2 is allowed")
        return {"window_left": y - 1, "window_right": x - 1, "mask_align": "generic"}
    if match := re.fullmatch(r"x(t|b):(-?\d+)", text):
        width = int(match[2])
        left = width // 2 if width > 0 else -1
        return _window(match[1], left, width - 1 - left if width > 0 else 0)
    raise ValueError(f"mask '{text}' cannot be read; allowed: {FORMS}")


def _window(corner: str, left: int, right: int) -> dict[str, Any]:
    align = {"t": "top_left", "b": "bottom_right"}[corner]
    return {"window_left": max(left, -1), "window_right": max(right, -1), "mask_align": align}


@dataclass(frozen=True)
class BlockMask:
    """Blocks of keys that are partly or fully visible to a row of query blocks.

    Attributes:
        kv_num_blocks: int32 [batch, heads], number of valid entries in kv_indices.
        kv_indices: int32 [batch, heads, kv_blocks], sorted indices of partly visible blocks, padded with 0.
        full_kv_num_blocks, full_kv_indices: likewise for blocks where every query sees every key.
        sparse_block_size: keys per block.
    """

    kv_num_blocks: Array
    kv_indices: Array
    full_kv_num_blocks: Array
    full_kv_indices: Array
    sparse_block_size: int

    def arguments(self) -> dict[str, Array | int]:
        """Return keyword arguments of the ops."""
        return dict(vars(self))


def create_block_mask(
    mask_mod: MaskMod, batch: int, heads: int, seqlen_q: int, seqlen_k: int, sparse_block_size: int = 128
) -> BlockMask:
    """Evaluate a mask function for all queries and keys. `heads` is the number of key heads, or 1 for a shared list.

    Raises ValueError if the block size is not a positive multiple of 64.
    """
    if sparse_block_size <= 0 or sparse_block_size % 64:
        raise ValueError(f"sparse_block_size = {sparse_block_size}; a multiple of 64 is needed")
    kv_blocks = -(-seqlen_k // sparse_block_size)
    shown = np.zeros((batch, heads, seqlen_q, kv_blocks * sparse_block_size), bool)
    indices = np.ogrid[:batch, :heads, :seqlen_q, :seqlen_k]
    shown[..., :seqlen_k] = mask_mod(*indices)
    by_block = shown.reshape(batch, heads, seqlen_q, kv_blocks, sparse_block_size)
    existing = (np.arange(kv_blocks * sparse_block_size) < seqlen_k).reshape(kv_blocks, sparse_block_size)
    full = (by_block | ~existing).all((2, 4))
    some = by_block.any((2, 4)) & ~full
    return BlockMask(*_lists(np.asarray(some)), *_lists(np.asarray(full)), sparse_block_size)


def _lists(chosen: Array) -> tuple[Array, Array]:
    """Return (counts, sorted indices padded with 0) of the chosen blocks, given as bool [batch, heads, kv_blocks]."""
    counts = chosen.sum(-1).astype(np.int32)
    order = np.argsort(~chosen, -1, kind="stable").astype(np.int32)
    return counts, np.where(np.arange(chosen.shape[-1]) < counts[..., None], order, 0).astype(np.int32)
