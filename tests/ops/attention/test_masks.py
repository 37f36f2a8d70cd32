"""Mask strings, the keys that queries see with them, and the blocks of keys that kernels skip."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from aot_models.masks import parse_mask
from kernels.attention.reference import visible_keys
from tests.support.session_builds import ROOT

LENGTHS = ((1, 1), (4, 4), (3, 7), (7, 3), (1, 5), (5, 1), (6, 0))


def coordinates(seqlen_q: int, seqlen_k: int, y: int, x: int) -> np.ndarray:
    """Generic attention-mask coordinates, as they are defined: query i sees keys i - y + 1 <= j < i + x."""
    rows = [[i - y + 1 <= j < min(i + x, seqlen_k) for j in range(seqlen_k)] for i in range(seqlen_q)]
    return np.array(rows, bool).reshape(seqlen_q, seqlen_k)


def window_coordinates(corner: str, left: int, right: int, seqlen_q: int, seqlen_k: int) -> tuple[int, int]:
    """(y, x) of a window, by composable_kernel's rules."""
    shift, ends = (seqlen_k - seqlen_q, (seqlen_k, seqlen_q)) if corner == "b" else (0, (seqlen_q, seqlen_k))
    left, right = (own if own >= 0 else end - 1 for own, end in zip((left, right), ends, strict=True))
    return 1 + left - shift, 1 + right + shift


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_masks_are_their_coordinates(lengths: tuple[int, int]):
    seqlen_q, seqlen_k = lengths
    wanted = {"0": (seqlen_q, seqlen_k)}
    wanted |= dict.fromkeys(("1", "t", "t:-1,0", "xt:0"), (seqlen_q, 1))
    wanted |= dict.fromkeys(("2", "b", "b:-1,0", "xb:-1"), (seqlen_q, seqlen_k - seqlen_q + 1))
    wanted |= {f"g:{y},{x}": (y, x) for y, x in itertools.product(range(-8, 9), repeat=2) if x + y >= 2}
    for corner, left, right in itertools.product("tb", range(-1, 9), range(-1, 9)):
        wanted[f"{corner}:{left},{right}"] = window_coordinates(corner, left, right, *lengths)
    for text, window in (("xt:5", ("t", 2, 2)), ("xb:4", ("b", 2, 1)), ("xt:1", ("t", 0, 0))):
        wanted[text] = window_coordinates(*window, *lengths)
    for text, place in wanted.items():
        seen = visible_keys(*lengths, **parse_mask(text))
        np.testing.assert_array_equal(seen, coordinates(*lengths, *place), text)


@pytest.mark.parametrize(
    "text", ("", "3", "t:", "t:1", "b:1,2,3", "t:1.5,2", "g:0,1", "g:-3,4", "x:3", "q:1,2", "b 1,2")
)
def test_what_is_no_mask(text: str):
    with pytest.raises(ValueError, match=f"mask '{text}'.*allowed"):
        parse_mask(text)


@pytest.mark.parametrize(("corner", "align"), (("t", "top_left"), ("b", "bottom_right")))
def test_causal_is_a_right_window_of_0(corner: str, align: str):
    for left in (-1, 0, 3):
        causal = visible_keys(5, 8, causal=True, window_left=left, mask_align=align)
        np.testing.assert_array_equal(causal, visible_keys(5, 8, **parse_mask(f"{corner}:{left},0")))
    np.testing.assert_array_equal(visible_keys(5, 8, **parse_mask(corner)), np.tri(5, 8, 3 * (corner == "b"), bool))


@pytest.mark.parametrize(("message", "options"), (
    ("causal is a window_right of 0; window_right = 2", {"causal": True, "window_right": 2}),
    ("generic masks are not causal", {"causal": True, "mask_align": "generic"}),
    ("window_left = -3", {"window_left": -3, "window_right": 2, "mask_align": "generic"}),
))  # fmt: skip
def test_what_contradicts_itself(message: str, options: dict[str, Any]):
    with pytest.raises(ValueError, match=message):
        visible_keys(4, 4, **options)


@pytest.mark.on("emulator")
@pytest.mark.parametrize("block_n", (1, 4))
@pytest.mark.parametrize("block_m", (1, 3))
def test_blocks_are_skipped_only_where_nothing_is_seen(block_m: int, block_n: int):
    """For every window and query block, each visible key is in the range, and the full part consists of whole
    blocks."""
    every = itertools.product(((6, 6), (5, 9), (9, 5)), range(-4, 7, 2), range(-4, 7, 2), (0, 1, 3))
    windows = [(*lengths, left, right, chunk) for lengths, left, right, chunk in every if left + right >= 0]
    for window, ranges in zip(windows, key_ranges(windows, block_m, block_n), strict=True):
        seqlen_q, seqlen_k, left, right, chunk = window
        seen = visible_keys(
            seqlen_q, seqlen_k, window_left=left, window_right=right, mask_align="generic", attention_chunk=chunk
        )
        for first, found in zip(range(0, seqlen_q, block_m), ranges, strict=False):
            check_range(seen[first : first + block_m], block_n, *map(int, found))


def check_range(rows: np.ndarray, block_n: int, begin: int, full: int, full_end: int, end: int) -> None:
    keys = np.arange(rows.shape[1])
    assert not rows[:, (keys < begin) | (keys >= end)].any(), "a key that is seen is skipped"
    assert begin <= full <= full_end <= max(end, begin)
    assert begin % block_n == full % block_n == full_end % block_n == 0
    whole = [at for at in range(0, len(keys) - block_n + 1, block_n) if rows[:, at : at + block_n].all()]
    assert [*range(full, full_end, block_n)] == whole


def key_ranges(windows: list[tuple[int, ...]], block_m: int, block_n: int) -> np.ndarray:
    """Run `key_range` for each window (seqlen_q, seqlen_k, left, right, chunk), and up to 9 blocks of queries."""
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from aot.compile.compiler import compile_job
    from aot.compile.jobs import CompileJob
    from tests.support.emulation.launching import Kernel, launch

    blocks = (("BLOCK_M", block_m), ("BLOCK_N", block_n))
    signature = (("out", "*i32"), ("windows", "*i32"), ("BLOCK_M", "constexpr"), ("BLOCK_N", "constexpr"))
    source = "tests/ops/attention/range_kernel.py"
    job = CompileJob(str(ROOT), source, "key_ranges", signature, blocks, (), (), (), "gfx942")
    arguments = {"out": np.full((len(windows), 9, 4), -1, np.int32), "windows": np.array(windows, np.int32)}
    kernel = Kernel(compile_job(job), signature, "gfx942")
    return launch(kernel, (len(windows), 9), arguments)[0]["out"]
