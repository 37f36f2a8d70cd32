"""Lists of blocks, and functions for masks and scores."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from aot_runtime.masks import BlockMask, MaskMod, create_block_mask
from kernels.decode import flex_reference
from tests.ops.decode.cases import (
    FP16,
    all_blocks,
    check,
)
from tests.support.poison import poisoned


def run_flex(decode: Bundle, name: str, lists: BlockMask, seqlen_q: int = 2, first: int = 200, splits: int = 2,
             seqlen_k: int = 300, **options: object) -> None:  # fmt: skip
    rng = np.random.default_rng(0)
    op = f"flex_decode_{name}".rstrip("_")
    q = rng.standard_normal((2, 4, seqlen_q, 64)).astype(FP16)
    k, v = (rng.standard_normal((2, 2, seqlen_k, 64)).astype(FP16) for _ in range(2))
    arguments = {**lists.arguments(), "first_query": first, "return_lse": True, **options}
    out = decode.device.array(np.full(q.shape, np.nan, FP16))
    given = [poisoned(decode, x) for x in (q, k, v)]
    on_device = {name: decode.device.array(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    results = getattr(decode, op)(*given, num_splits=splits, out=out, **on_device)
    references = (getattr(flex_reference, op + suffix) for suffix in ("", "_same_dtype"))
    check(results, *(reference(q, k, v, scale=0.125, **arguments) for reference in references))


@pytest.mark.parametrize("splits", (1, 3, 7))
@pytest.mark.parametrize("size", (64, 128))
def test_blocks_in_any_order(decode: Bundle, size: int, splits: int):
    some = np.array([[[3, 1, 99], [0, 99, 99]], [[99, 99, 99], [4, 2, 0]]], np.int32)  # 99: does not count
    every = np.array([[[0, 99], [99, 99]], [[99, 99], [1, 99]]], np.int32)
    counts, full = (np.array(x, np.int32) for x in ([[2, 1], [0, 3]], [[1, 0], [0, 1]]))
    lists = BlockMask(counts, some, full, every.repeat(2, 2)[..., [0, 2, 2]], size)
    if size == 128:
        lists.kv_indices[...] = np.minimum(lists.kv_indices, 2)
        lists = BlockMask(np.minimum(counts, 1), lists.kv_indices, 0 * full, lists.full_kv_indices, size)
    run_flex(decode, "", lists, splits=splits)


@pytest.mark.parametrize(
    "name, options, mask",
    (
        ("causal", {}, lambda b, h, q, k: k <= q + 200),
        ("window", {"width": 70}, lambda b, h, q, k: (k <= q + 200) & (q + 200 - k < 70)),
        ("prefix_lm", {"prefixes": np.array([130, 290], np.int32)},
         lambda b, h, q, k: (k <= q + 200) | (k < np.array([130, 290])[b])),
        ("document", {"documents": np.repeat([[0, 1, 2, 3], [0, 0, 0, 1]], 75, 1).astype(np.int32)},
         lambda b, h, q, k: np.take_along_axis(DOCUMENTS, q[0, 0, :, 0][None] + 200, 1)[b, q] == DOCUMENTS[b, k]),
    ),
    ids=("causal", "window", "prefix_lm", "document"),
)  # fmt: skip
def test_mask_functions(decode: Bundle, name: str, options: dict, mask: MaskMod):
    """With lists of all blocks, and with just those that the mask leaves some of."""
    run_flex(decode, name, all_blocks(), **options)
    lists = create_block_mask(mask, 2, 1, 2, 300, 64)
    assert 0 < lists.kv_num_blocks.sum() < 10
    run_flex(decode, name, lists, splits=3, **options)


def test_functions_are_not_asked_about_full_blocks(decode: Bundle):
    """One that lies past the queries is seen all the same."""
    counts, full = np.array([[2]], np.int32), np.array([[1]], np.int32)
    indices, last = np.array([[[0, 3, 0, 0, 0]]], np.int32), np.array([[[4, 0, 0, 0, 0]]], np.int32)
    run_flex(decode, "causal", BlockMask(counts, indices, full, last, 64))


DOCUMENTS = np.repeat([[0, 1, 2, 3], [0, 0, 0, 1]], 75, 1)


@pytest.mark.parametrize(
    "name, options",
    (
        ("alibi", {"slopes": np.array([0.5, 0.25, 0.125, 0.0625], np.float32)}),
        ("relative_bias", {"bias": np.random.default_rng(1).standard_normal((4, 41)).astype(np.float32)}),
        ("softcap", {"softcap": 1.5}),
    ),
    ids=("alibi", "relative_bias", "softcap"),
)
def test_score_functions(decode: Bundle, name: str, options: dict):
    run_flex(decode, name, all_blocks(), **options)


def test_lists_that_point_outside_read_nothing_outside(decode: Bundle):
    lists = all_blocks()
    lists.kv_indices[0, 0, :2] = -7, 2**31 - 1
    lists.full_kv_num_blocks[...] = 10**9
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, n, 64)).astype(FP16) for n in (1, 300, 300))
    arguments = {name: decode.device.array(x) if isinstance(x, np.ndarray) else x for name, x in vars(lists).items()}
    out = decode.flex_decode(*(poisoned(decode, x) for x in (q, k, v)), **arguments)
    assert np.isfinite(out.numpy()).all()


def test_block_lists_of_a_mask():
    lists = create_block_mask(lambda b, h, q, k: (k <= q + 150) & (k >= 64), 1, 1, 3, 300, 64)
    assert lists.kv_indices[0, 0, : lists.kv_num_blocks[0, 0]].tolist() == [2]
    assert lists.full_kv_indices[0, 0, : lists.full_kv_num_blocks[0, 0]].tolist() == [1]
    whole = create_block_mask(lambda b, h, q, k: (k >= 0) | (q < 0), 1, 1, 3, 300, 64)
    assert whole.full_kv_num_blocks.item() == 5, "keys past the end make no block a partial one"
    with pytest.raises(ValueError, match="sparse_block_size = 100; a multiple of 64 is needed"):
        create_block_mask(lambda b, h, q, k: k <= q, 1, 1, 1, 300, 100)
