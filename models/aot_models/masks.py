"""Make mask arguments of the attention ops, in numpy: from mask strings, as lists of blocks, and as packed bits.

Mask strings are those of composable_kernel's `example_fmha_fwd`. Lists of blocks are those of PyTorch's flex attention,
for one row of query blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
MaskMod = Callable[[Array, Array, Array, Array], Array]
"""Maps (batch, head, queries, keys), arrays that broadcast, to True where the query sees the key."""
FORMS = "0, 1, 2, t, b, t:left,right, b:left,right, g:y,x, xt:window or xb:window"


def parse_mask(text: str) -> dict[str, Any]:
    """Parse a mask string of composable_kernel to arguments of the ops; an empty dict is no mask.

    - `0`: no mask.
    - `1` or `t`: causal, top-left; `2` or `b`: causal, bottom-right.
    - `t:l,r`, `b:l,r`: a window of l keys left of the diagonal and r keys right of it; negative: unbounded.
    - `g:y,x`: query i sees the keys i - y + 1 <= j < i + x, for x + y >= 2.
    - `xt:w`, `xb:w`: a window of w keys around the diagonal; causal unless w is positive.

    Raises:
        ValueError: another string.
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
    raise ValueError(f"unknown mask '{text}'; allowed: {FORMS}")


def _window(corner: str, left: int, right: int) -> dict[str, Any]:
    align = {"t": "top_left", "b": "bottom_right"}[corner]
    return {"window_left": max(left, -1), "window_right": max(right, -1), "mask_align": align}


@dataclass(frozen=True)
class BlockMask:
    """Blocks of keys that a row of query blocks sees partly or fully.

    Attributes:
        kv_num_blocks: number of valid entries of kv_indices, int32 [batch, heads].
        kv_indices: partly visible blocks in order, then zeros, int32 [batch, heads, kv_blocks].
        full_kv_num_blocks, full_kv_indices: the same for blocks in which every query sees every key.
        sparse_block_size: keys in a block.
    """

    kv_num_blocks: Array
    kv_indices: Array
    full_kv_num_blocks: Array
    full_kv_indices: Array
    sparse_block_size: int

    def arguments(self) -> dict[str, Array | int]:
        """The keyword arguments of the ops."""
        return dict(vars(self))


def create_block_mask(
    mask_mod: MaskMod, batch: int, heads: int, seqlen_q: int, seqlen_k: int, sparse_block_size: int = 128
) -> BlockMask:
    """Make lists of blocks from a mask function.

    Args:
        heads: key heads; 1 makes one list for all heads.

    Raises:
        ValueError: the block size is not a positive multiple of 64.
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


def pack_mask(shown: Array) -> Array:
    """Pack a mask, bool [queries, keys], into int32 [queries, cdiv(keys, 32)]: key j is bit j % 32 of word j / 32."""
    bits = np.pad(shown, ((0, 0), (0, -shown.shape[1] % 32)))
    return np.packbits(bits, axis=1, bitorder="little").view("<i4")


def _lists(chosen: Array) -> tuple[Array, Array]:
    """(counts, indices of the chosen blocks in order and then zeros). chosen: bool [batch, heads, kv_blocks]."""
    counts = chosen.sum(-1).astype(np.int32)
    order = np.argsort(~chosen, -1, kind="stable").astype(np.int32)
    return counts, np.where(np.arange(chosen.shape[-1]) < counts[..., None], order, 0).astype(np.int32)
