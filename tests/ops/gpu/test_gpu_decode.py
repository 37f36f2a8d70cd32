"""Decoding on a real GPU."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle, open_bundle
from kernels.decode.reference import flash_decode, flash_decode_same_dtype
from tests.ops.decode.cases import FP16, BundleFor, check, paged, run_paged
from tests.ops.decode.decode_suite import *  # noqa: F403 -- its tests

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def decode_for(decode: Bundle) -> BundleFor:
    return lambda dtype: decode


@pytest.fixture(scope="module")
def looking(decode: Bundle) -> Bundle:
    return open_bundle(decode.path, decode.device, check_contents=True)


@pytest.fixture(scope="module")
def with_vectors(decode: Bundle) -> Bundle:
    return decode


@pytest.mark.parametrize("head_dim", (64, 128, 256))
@pytest.mark.parametrize("keys", (1000, 1024, 4097, 32768))
def test_long_caches(decode: Bundle, keys: int, head_dim: int):
    rng = np.random.default_rng(keys)
    q = rng.standard_normal((2, 8, 1, head_dim)).astype(FP16)
    k, v = (rng.standard_normal((2, 1, keys, head_dim)).astype(FP16) for _ in range(2))
    options = {"scale": head_dim**-0.5, "return_lse": True}
    results = decode.flash_decode(*(decode.device.array(x) for x in (q, k, v)), return_lse=True)
    check(results, flash_decode(q, k, v, **options), flash_decode_same_dtype(q, k, v, **options))


def test_lengths_far_apart(decode: Bundle):
    run_paged(decode, paged([(1, 32768), (1, 1), (1, 4097), (2, 15)], 128, (8, 1), 128))


@pytest.mark.parametrize("splits", (0, 1, 7))
def test_many_workgroups_give_the_same_from_run_to_run(decode: Bundle, splits: int):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((16, 32, 1, 128)).astype(FP16)
    k, v = (rng.standard_normal((16, 8, 2048, 128)).astype(FP16) for _ in range(2))
    arrays = [decode.device.array(x) for x in (q, k, v)]
    runs = [decode.flash_decode(*arrays, num_splits=splits, return_lse=True) for _ in range(20)]
    for run in runs[1:]:
        assert all(np.array_equal(first.numpy(), other.numpy()) for first, other in zip(runs[0], run, strict=True))


def test_every_split_count(decode: Bundle):
    case = paged([(1, 9000)], 64, (8, 1), 128)
    for splits in range(1, 129):
        run_paged(decode, case, num_splits=splits)
