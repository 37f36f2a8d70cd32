"""Mask strings, what they let each query see, and the blocks of keys that kernels skip for them."""

from __future__ import annotations

import itertools
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import pytest

from aot_runtime.masks import parse_mask, visible_keys
from tests.ops.sources.kernel_interpreting import Tensor, launch

LENGTHS = ((1, 1), (4, 4), (3, 7), (7, 3), (1, 5), (5, 1), (6, 0))


def coordinates(seqlen_q: int, seqlen_k: int, y: int, x: int) -> np.ndarray:
    """Generic attention-mask coordinates, as they are defined: query i sees keys i - y + 1 <= j < i + x."""
    rows = [[i - y + 1 <= j < min(i + x, seqlen_k) for j in range(seqlen_k)] for i in range(seqlen_q)]
    return np.array(rows, bool).reshape(seqlen_q, seqlen_k)


def window_coordinates(corner: str, left: int, right: int, seqlen_q: int, seqlen_k: int) -> tuple[int, int]:
    """(y, x) of a window, by composable_kernel's rules."""
    shift = seqlen_k - seqlen_q if corner == "b" else 0
    left = left if left >= 0 else (seqlen_k if corner == "b" else seqlen_q) - 1
    right = right if right >= 0 else (seqlen_q if corner == "b" else seqlen_k) - 1
    return 1 + left - shift, 1 + right + shift


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("corner", "tb")
def test_windows_are_their_coordinates(corner: str, lengths: tuple[int, int]):
    for left, right in itertools.product(range(-1, 9), repeat=2):
        seen = visible_keys(*lengths, **parse_mask(f"{corner}:{left},{right}"))
        y, x = window_coordinates(corner, left, right, *lengths)
        np.testing.assert_array_equal(seen, coordinates(*lengths, y, x), f"{corner}:{left},{right}")


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_generic_coordinates(lengths: tuple[int, int]):
    for y, x in itertools.product(range(-8, 9), repeat=2):
        if x + y >= 2:
            seen = visible_keys(*lengths, **parse_mask(f"g:{y},{x}"))
            np.testing.assert_array_equal(seen, coordinates(*lengths, y, x), f"g:{y},{x}")


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_short_forms(lengths: tuple[int, int]):
    seqlen_q, seqlen_k = lengths
    assert visible_keys(*lengths, **parse_mask("0")).all()
    for texts, x in ((("1", "t", "t:-1,0", "xt:0"), 1), (("2", "b", "b:-1,0", "xb:-1"), seqlen_k - seqlen_q + 1)):
        for text in texts:
            seen = visible_keys(*lengths, **parse_mask(text))
            np.testing.assert_array_equal(seen, coordinates(*lengths, seqlen_q, x), text)


def test_windows_of_xformers():
    assert parse_mask("xt:5") == parse_mask("t:2,2") and parse_mask("xb:4") == parse_mask("b:2,1")
    assert parse_mask("xt:1") == parse_mask("t:0,0")


@pytest.mark.parametrize(
    "text", ("", "3", "t:", "t:1", "b:1,2,3", "t:1.5,2", "g:0,1", "g:-3,4", "x:3", "q:1,2", "b 1,2")
)
def test_what_is_no_mask(text: str):
    with pytest.raises(ValueError, match=f"mask '{text}'.*allowed"):
        parse_mask(text)


@pytest.mark.parametrize("block_n", (1, 4))
@pytest.mark.parametrize("block_m", (1, 3))
def test_blocks_are_skipped_only_where_nothing_is_seen(interpreter: Executor, block_m: int, block_n: int):
    """Of every window and query block: each key that is seen is in the range, and the full part is all whole blocks."""
    for seqlen_q, seqlen_k in ((6, 6), (5, 9), (9, 5)):
        for left, right in itertools.product(range(-4, 7, 2), repeat=2):
            if left + right >= 0:
                seen = visible_keys(seqlen_q, seqlen_k, window_left=left, window_right=right, mask_align="generic")
                ranges = key_ranges(interpreter, seqlen_q, seqlen_k, left, right, block_m, block_n)
                for block, found in enumerate(ranges):
                    check_range(seen[block * block_m : (block + 1) * block_m], block_n, *map(int, found))


def check_range(rows: np.ndarray, block_n: int, begin: int, full: int, full_end: int, end: int) -> None:
    keys = np.arange(rows.shape[1])
    assert not rows[:, (keys < begin) | (keys >= end)].any(), "a key that is seen is skipped"
    assert begin <= full <= full_end <= max(end, begin)
    assert begin % block_n == full % block_n == full_end % block_n == 0
    whole = [at for at in range(0, len(keys) - block_n + 1, block_n) if rows[:, at : at + block_n].all()]
    assert [*range(full, full_end, block_n)] == whole


def key_ranges(interpreter: Executor, seqlen_q: int, seqlen_k: int, left: int, right: int, *blocks: int) -> np.ndarray:
    count = -(-seqlen_q // blocks[0])
    out = Tensor(np.full(4 * count, -1, np.int32), 0, (count, 4), (4, 1))
    arguments = {"out": out, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "left": left, "right": right,
                 "BLOCK_M": blocks[0], "BLOCK_N": blocks[1]}  # fmt: skip
    source = Path(__file__).with_name("range_kernel.py")
    return interpreter.submit(launch, source, "key_ranges", (count,), arguments).result()["out"].view
