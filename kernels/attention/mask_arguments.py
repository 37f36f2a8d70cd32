"""Attention masks as arguments of the ops: what they mean, and how composable_kernel's mask strings are read.

numpy only, so that callers can use it where no kernel is built.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

FORMS = "0, 1, 2, t, b, t:left,right, b:left,right, g:y,x, xt:window or xb:window"


def visible_keys(
    seqlen_q: int,
    seqlen_k: int,
    *,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    mask_align: str = "bottom_right",
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which keys each query sees: bool [seqlen_q, seqlen_k].

    Query i has key i on its diagonal, or i + seqlen_k - seqlen_q where mask_align is bottom_right. It sees the
    window_left keys before that one, the key itself, and the window_right keys after it; all of them where the number
    is negative, unless mask_align is generic: then a negative number counts from the diagonal in the other direction.
    causal is a window_right of 0.
    """
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
    """The arguments of the ops that a mask string of composable_kernel stands for; an empty dict: no mask.

    0: none. 1 or t: causal, top-left; 2 or b: causal, bottom-right. t:l,r and b:l,r: a window of l keys to the left of
    the diagonal and r to the right, negative: unbounded. g:y,x: query i sees keys i - y + 1 <= j < i + x, for x + y >=
    2. xt:w and xb:w: a window of w keys about the diagonal, causal unless w is positive.

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
