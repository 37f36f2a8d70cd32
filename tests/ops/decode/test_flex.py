"""Lists of blocks, and functions for masks and scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_models.masks import BlockMask, MaskMod, create_block_mask
from aot_runtime import Bundle
from tests.ops.decode.cases import all_blocks, check, normal, packed
from tests.support.poison import poisoned

pytestmark = pytest.mark.sampled(2)

DOCUMENTS = np.repeat([[0, 1, 2, 3], [0, 0, 0, 1]], 75, 1).astype(np.int32)


def check_flex(
    decode: Bundle, name: str, lists: BlockMask, splits: int = 2, head_dim_v: int = 64, **options: Any
) -> None:
    """Check a call of two queries, the first at position 200, and 300 keys."""
    rng = np.random.default_rng(0)
    given = lists.arguments() | options
    inputs = {name: x for name, x in given.items() if isinstance(x, np.ndarray)}
    tensors = {"q": normal(rng, 2, 4, 2, 64), "k": normal(rng, 2, 2, 300, 64), "v": normal(rng, 2, 2, 300, head_dim_v)}
    check(decode, f"flex_decode{name}", tensors | inputs, num_splits=splits, first_query=200, out_width=head_dim_v,
          **{name: x for name, x in given.items() if name not in inputs})  # fmt: skip


@pytest.mark.parametrize("splits", (1, 3, 7))
@pytest.mark.parametrize("size", (64, 128))
def test_blocks_in_any_order(decode: Bundle, size: int, splits: int):
    some = np.array([[[3, 1, 99], [0, 99, 99]], [[99, 99, 99], [4, 2, 0]]], np.int32)  # 99: does not count
    every = np.array([[[0, 99, 99], [99, 99, 99]], [[99, 99, 99], [1, 99, 99]]], np.int32)
    counts, full = (np.array(x, np.int32) for x in ([[2, 1], [0, 3]], [[1, 0], [0, 1]]))
    lists = BlockMask(counts, some, full, every, size)
    if size == 128:
        lists = BlockMask(np.minimum(counts, 1), np.minimum(some, 2), 0 * full, every, size)
    check_flex(decode, "", lists, splits)


@pytest.mark.parametrize(
    "name, options, mask",
    (
        ("causal", {}, lambda b, h, q, k: k <= q + 200),
        ("window", {"width": 70}, lambda b, h, q, k: (k <= q + 200) & (q + 200 - k < 70)),
        ("prefix_lm", {"prefixes": np.array([130, 290], np.int32)},
         lambda b, h, q, k: (k <= q + 200) | (k < np.array([130, 290])[b])),
        ("document", {"documents": DOCUMENTS},
         lambda b, h, q, k: np.take_along_axis(DOCUMENTS, q[0, 0, :, 0][None] + 200, 1)[b, q] == DOCUMENTS[b, k]),
    ),
    ids=("causal", "window", "prefix_lm", "document"),
)  # fmt: skip
def test_mask_functions(decode: Bundle, name: str, options: dict[str, Any], mask: MaskMod):
    """The block lists have all blocks, or only those that the mask leaves keys of."""
    check_flex(decode, f"_{name}", all_blocks(), **options)
    lists = create_block_mask(mask, 2, 1, 2, 300, 64)
    assert 0 < lists.kv_num_blocks.sum() < 10
    check_flex(decode, f"_{name}", lists, 3, **options)


def test_functions_are_not_asked_about_full_blocks(decode: Bundle):
    """A prefix beyond the queries is visible nevertheless."""
    counts, full = np.array([[2]], np.int32), np.array([[1]], np.int32)
    indices, last = np.array([[[0, 3, 0, 0, 0]]], np.int32), np.array([[[4, 0, 0, 0, 0]]], np.int32)
    check_flex(decode, "_causal", BlockMask(counts, indices, full, last, 64))


@pytest.mark.parametrize("head_dim_v", (32, 200))
def test_values_of_other_dims(decode: Bundle, head_dim_v: int):
    check_flex(decode, "_causal", all_blocks(), head_dim_v=head_dim_v)


@pytest.mark.parametrize(
    "name, options",
    (
        ("alibi", {"slopes": np.array([0.5, 0.25, 0.125, 0.0625], np.float32)}),
        ("relative_bias", {"bias": np.random.default_rng(1).standard_normal((4, 41)).astype(np.float32)}),
        ("softcap", {"softcap": 1.5}),
    ),
    ids=("alibi", "relative_bias", "softcap"),
)
def test_score_functions(decode: Bundle, name: str, options: dict[str, Any]):
    check_flex(decode, f"_{name}", all_blocks(), **options)


def test_lists_that_point_outside_read_nothing_outside(decode: Bundle):
    lists = all_blocks()
    lists.kv_indices[0, 0, :2] = -7, 2**31 - 1
    lists.full_kv_num_blocks[...] = 10**9
    rng = np.random.default_rng(0)
    tensors = [poisoned(decode, normal(rng, 1, 1, n, 64)) for n in (1, 300, 300)]
    there = {name: packed(decode, x) if isinstance(x, np.ndarray) else x for name, x in lists.arguments().items()}
    assert np.isfinite(decode.flex_decode(*tensors, **there).numpy()).all()
