"""Lists of blocks by hand. Masks themselves: tests/ops/attention/test_masks.py."""

from __future__ import annotations

import numpy as np
import pytest

from aot_models.masks import create_block_mask


def test_lists_by_hand():
    """Two queries at positions 150 and 151 see the keys from 64 on, of 300 keys in blocks of 64."""
    lists = create_block_mask(lambda b, h, q, k: (k <= q + 150) & (k >= 64), 1, 1, 2, 300, 64)
    assert (lists.kv_num_blocks.tolist(), lists.full_kv_num_blocks.tolist()) == ([[1]], [[1]])
    assert (lists.kv_indices.tolist(), lists.full_kv_indices.tolist()) == ([[[2, 0, 0, 0, 0]]], [[[1, 0, 0, 0, 0]]])
    assert {array.dtype for array in (lists.kv_num_blocks, lists.kv_indices)} == {np.dtype(np.int32)}
    lists_of = {"kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"}
    assert lists.arguments().keys() == lists_of | {"sparse_block_size"}


def test_the_last_block_is_full_where_all_its_keys_are_seen():
    lists = create_block_mask(lambda b, h, q, k: (k >= 0) | (q < 0), 1, 1, 1, 300, 64)
    assert lists.full_kv_indices.tolist() == [[[0, 1, 2, 3, 4]]] and lists.kv_num_blocks.tolist() == [[0]]


def test_batches_and_heads_have_lists_of_their_own():
    lists = create_block_mask(lambda b, h, q, k: k // 64 == 2 * b + h, 2, 2, 1, 256, 64)
    assert lists.full_kv_indices[..., 0].tolist() == [[0, 1], [2, 3]]


def test_a_block_is_of_a_multiple_of_64_keys():
    with pytest.raises(ValueError, match="sparse_block_size = 100"):
        create_block_mask(lambda b, h, q, k: k <= q, 1, 1, 1, 300, 100)
