"""Caches of 4 bits."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray
from aot_runtime.caches import dequantise_int4, join_rows, quantise_int4, split_rows
from kernels.decode.reference import (
    flash_decode_int4,
    flash_decode_int4_same_dtype,
    paged_attention_int4,
    paged_attention_int4_same_dtype,
)
from tests.ops.decode.cases import (
    FP16,
    MIXED,
    check,
    paged,
)


@pytest.mark.parametrize("splits", (1, 3))
def test_int4_cache(decode: Bundle, splits: int):
    run_int4(decode, 4, splits)


def test_int4_cache_of_one_group(decode: Bundle):
    run_int4(decode, 1, 3)


@pytest.mark.parametrize("groups", (1, 2, 4, 8))
def test_int4_cache_of_unaligned_rows(decode: Bundle, groups: int):
    """One code serves for all numbers of groups."""
    run_int4(decode, groups, 2, aligned=False)


def unaligned(decode: Bundle, host: np.ndarray) -> DeviceArray:
    """`host` on the device, rows 3 elements apart."""
    return decode.device.array(np.pad(host, [(0, 0)] * (host.ndim - 1) + [(0, 3)]))[..., : host.shape[-1]]


def run_int4(decode: Bundle, groups: int, splits: int, aligned: bool = True) -> None:
    rng = np.random.default_rng(groups)
    q = rng.standard_normal((2, 4, 2, 64)).astype(FP16)
    packed = [quantise_int4(rng.standard_normal((2, 2, 90, 64), np.float32), groups) for _ in range(2)]
    (k, k_scale), (v, v_scale) = packed
    lengths = np.array([90, 33], np.int32)
    for scale in (k_scale, v_scale):
        scale[1, :, 33:] = np.nan
    given = (q, k, v, k_scale, v_scale, lengths)
    arrays = [decode.device.array(x) if aligned or i > 2 else unaligned(decode, x) for i, x in enumerate(given)]
    results = decode.flash_decode_int4(*arrays, num_splits=splits, return_lse=True)
    options = {"scale": 0.125, "return_lse": True}
    check(results, flash_decode_int4(*given, **options), flash_decode_int4_same_dtype(*given, **options))


@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("block_size", (64, 16, 17))
@pytest.mark.parametrize("options", ({}, {"softcap": 2.0, "window": 40}), ids=("plain", "window"))
def test_int4_blocks(decode: Bundle, options: dict, block_size: int, splits: int):
    run_int4_blocks(decode, 4, block_size, splits, options)


def test_int4_blocks_of_one_group(decode: Bundle):
    run_int4_blocks(decode, 1, 64, 3, {"window": 40})


def run_int4_blocks(decode: Bundle, groups: int, block_size: int, splits: int, options: dict) -> None:
    rng = np.random.default_rng(groups)
    case = paged([*MIXED, (3, 70), (1, 0)], block_size)
    given = [rng.integers(0, 256, (*case.k.shape[:3], 32)).astype(np.uint8) for _ in range(2)]
    for cache in (case.k, case.v):
        pairs = rng.standard_normal((*cache.shape[:3], groups, 2)).astype(FP16)
        pairs[np.isnan(cache[..., 0])] = np.nan
        given.append(pairs)
    given = [case.q, *given, *case.values()[3:]]
    out = decode.device.array(np.full(case.q.shape, np.nan, FP16))
    arrays = [decode.device.array(x) for x in given]
    options = {**options, "return_lse": True}
    results = decode.paged_attention_int4(*arrays, max_seqlen_q=3, num_splits=splits, out=out, **options)
    options["scale"] = 0.125
    check(results, paged_attention_int4(*given, **options), paged_attention_int4_same_dtype(*given, **options))


def test_rows_with_a_prefix_are_read_as_views(decode: Bundle):
    rng = np.random.default_rng(5)
    packed, pairs = quantise_int4(rng.standard_normal((1, 1, 40, 64), np.float32), 4)
    rows = join_rows(packed, pairs)
    assert rows.shape == (1, 1, 40, 4 + 8) and rows.dtype == np.int32
    word = int(rows[0, 0, 7, 4 + 3])  # elements 24 to 31 of row 7, of group 1
    factor, shift = pairs[0, 0, 7, 1].astype(np.float32)
    values = [((word >> 4 * i) & 15) * factor + shift for i in range(8)]
    assert np.array_equal(dequantise_int4(*split_rows(rows, 4))[0, 0, 7, 24:32], np.array(values, np.float32))
    q = rng.standard_normal((1, 1, 1, 64)).astype(FP16)
    lengths = np.array([40], np.int32)
    views = [view for _ in range(2) for view in split_rows(rows, 4)]
    results = decode.flash_decode_int4(q, views[0], views[2], views[1], views[3], lengths, return_lse=True)
    plain = decode.flash_decode_int4(q, packed, packed, pairs, pairs, lengths, return_lse=True)
    assert all(np.array_equal(x, y) for x, y in zip(results, plain, strict=True))
