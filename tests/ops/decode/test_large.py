"""Calls that only a GPU makes in good time: long caches, and many workgroups."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from tests.ops.decode.cases import cache_of, check, check_paged, normal, packed, paged
from tests.support.dtypes import FP16

pytestmark = pytest.mark.on("gpu")


@pytest.mark.parametrize("head_dim", (64, 128, 256))
@pytest.mark.parametrize("keys", (1, 2, 15, 16, 17, 1000, 1024, 4097, 32768))
def test_long_caches(decode: Bundle, keys: int, head_dim: int):
    rng = np.random.default_rng(keys)
    k, v = (cache_of(rng, (2, 1, keys, head_dim), FP16) for _ in range(2))
    check(decode, "flash_decode", {"q": normal(rng, 2, 8, 1, head_dim), "k": k, "v": v})


def test_lengths_far_apart(decode: Bundle):
    check_paged(decode, paged([(1, 32768), (1, 1), (1, 4097), (2, 15)], 128, (8, 1), 128))


@pytest.mark.parametrize("splits", (0, 1, 7))
def test_many_workgroups_give_the_same_from_run_to_run(decode: Bundle, splits: int):
    rng = np.random.default_rng(0)
    shapes = (16, 32, 1, 128), (16, 8, 2048, 128), (16, 8, 2048, 128)
    arrays = [packed(decode, normal(rng, *shape)) for shape in shapes]
    runs = [decode.flash_decode(*arrays, num_splits=splits, return_lse=True) for _ in range(20)]
    for run in runs[1:]:
        assert all(np.array_equal(first.numpy(), other.numpy()) for first, other in zip(runs[0], run, strict=True))


def test_every_split_count(decode: Bundle):
    case = paged([(1, 9000)], 64, (8, 1), 128)
    for splits in range(1, 129):
        check_paged(decode, case, num_splits=splits)
