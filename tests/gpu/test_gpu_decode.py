"""Decoding on a real GPU."""

from __future__ import annotations

import numpy as np
import pytest
from decode_suite import *  # noqa: F403 -- its tests
from decode_suite import FP16, BundleFor, check, paged, run_paged

from aot_runtime import Bundle, open_bundle
from kernels.decode.reference import flash_decode, flash_decode_same_dtype

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def decode_for(decode: Bundle) -> BundleFor:
    return lambda dtype: decode


@pytest.fixture(scope="module")
def looking(decode: Bundle) -> Bundle:
    return open_bundle(decode.path, decode.device, check_contents=True)


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


def test_a_captured_step_replays_with_new_lengths(decode: Bundle):
    case = paged([(1, 200), (1, 100), (1, 33)], 16)
    device = decode.device
    q, k, v, tables, lengths, starts = (device.array(x) for x in case.values())
    out = device.empty(case.q.shape, np.float16)
    stream = device.stream()
    call = {"out": out, "stream": stream}
    decode.paged_attention(q, k, v, tables, lengths, starts, **call)  # loads the code and makes the workspace
    stream.synchronize()
    with device.capture(stream) as graph:
        decode.paged_attention(q, k, v, tables, lengths, starts, **call)
    for shorter in (0, 1, 30):
        now = np.maximum(case.seqlens_k - shorter, 0).astype(np.int32)
        lengths.copy_from(now)
        out.copy_from(np.full(case.q.shape, np.nan, np.float16))
        graph.launch(stream)
        stream.synchronize()
        wanted = decode.paged_attention(q, k, v, tables, device.array(now), starts)
        assert np.array_equal(out.numpy(), wanted.numpy())
