"""Contiguous caches, of 16 and of 8 bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray
from kernels.decode.reference import (
    flash_decode,
    flash_decode_same_dtype,
)
from tests.ops.decode.cases import (
    BF16,
    FP16,
    PER_TOKEN,
    BundleFor,
    Host,
    cache_of,
    check,
    other_layout,
    poison,
    quantised,
)
from tests.support.poison import poisoned


@pytest.mark.parametrize("splits", (0, 1, 3, 16))
@pytest.mark.parametrize("seqlen_q, group", ((1, 1), (1, 8), (3, 4), (16, 2), (5, 3)), ids=str)
@pytest.mark.parametrize("head_dim, dtype", ((64, FP16), (128, BF16), (48, FP16), (40, FP16)), ids=str)
def test_flash_decode(decode_for: BundleFor, head_dim: int, dtype: np.dtype, seqlen_q: int, group: int, splits: int):
    decode, rng = decode_for(dtype), np.random.default_rng(splits)
    q = rng.standard_normal((2, 2 * group, seqlen_q, head_dim)).astype(dtype)
    k, v = (rng.standard_normal((2, 2, 210, head_dim)).astype(dtype) for _ in range(2))
    given = [poisoned(decode, q), poisoned(decode, k), other_layout(decode, v)]
    out = decode.device.array(np.full(q.shape, np.nan, dtype))
    results = decode.flash_decode(*given, out=out, num_splits=splits, return_lse=True)
    options = {"scale": head_dim**-0.5, "return_lse": True}
    check(results, flash_decode(q, k, v, **options), flash_decode_same_dtype(q, k, v, **options))


@pytest.mark.parametrize("keys", (200, 201, 202))
def test_a_last_tile_of_a_key_more_or_less(decode: Bundle, keys: int):
    """16 queries of two heads are two tiles of rows; the first sees all keys but 8: three tiles of 64, or nearly."""
    rng = np.random.default_rng(keys)
    q = rng.standard_normal((1, 2, 16, 64)).astype(FP16)
    k, v = (rng.standard_normal((1, 1, keys, 64)).astype(FP16) for _ in range(2))
    options = {"scale": 0.125, "return_lse": True}
    results = decode.flash_decode(*(decode.device.array(x) for x in (q, k, v)), num_splits=1, return_lse=True)
    check(results, flash_decode(q, k, v, **options), flash_decode_same_dtype(q, k, v, **options))


@dataclass(frozen=True)
class Expanded:
    """A device array repeated along dims by strides of 0, as other libraries' arrays may be."""

    array: DeviceArray
    shape: tuple[int, ...]

    @property
    def __cuda_array_interface__(self) -> dict:
        found = self.array.__cuda_array_interface__
        extents = zip(self.shape, self.array.shape, self.array.strides, strict=True)
        return {**found, "shape": self.shape, "strides": tuple(0 if n != m else step for n, m, step in extents)}


@pytest.mark.parametrize("splits", (1, 4))
def test_views_that_are_not_copied(decode: Bundle, splits: int):
    """[batch, tokens, groups, heads, head_dim] with one key head, which strides of 0 make one for each query head."""
    rng = np.random.default_rng(3)
    q = rng.standard_normal((2, 3, 2, 4, 64)).astype(FP16)
    k, v = (rng.standard_normal((2, 90, 1, 1, 64)).astype(FP16) for _ in range(2))
    out = decode.device.array(np.full(q.shape, np.nan, FP16))

    def by_head(x: np.ndarray | DeviceArray, heads: int) -> np.ndarray | DeviceArray:
        return x.reshape(2, x.shape[1], heads, 64).transpose(0, 2, 1, 3)

    options = {"scale": 0.125, "return_lse": True}
    arrays = by_head(q, 8), by_head(k, 1), by_head(v, 1)
    exact, same = flash_decode(*arrays, **options), flash_decode_same_dtype(*arrays, **options)
    on_device, *caches = (by_head(decode.device.array(x), heads) for x, heads in ((q, 8), (k, 1), (v, 1)))
    repeated = [decode.device.wrap(Expanded(x, (2, 8, 90, 64))) for x in caches]
    for keys in (caches, repeated):
        _, lse = decode.flash_decode(on_device, *keys, out=by_head(out, 8), num_splits=splits, return_lse=True)
        check([Host(by_head(out.numpy(), 8)), lse], exact, same)


@pytest.mark.parametrize("splits", (1, 4))
def test_lengths_within_a_batch(decode: Bundle, splits: int):
    """Lengths of 0, less than the queries, over the cache and below 0 are taken as far as they make sense."""
    rng = np.random.default_rng(1)
    lengths = np.array([0, 1, 2, 15, 16, 17, 64, 100, 1000, -3], np.int32)
    known = lengths.clip(0, 100)
    q = rng.standard_normal((len(lengths), 4, 2, 64)).astype(FP16)
    k, v = (rng.standard_normal((len(lengths), 2, 100, 64)).astype(FP16) for _ in range(2))
    for b, keys in enumerate(known):
        k[b, :, keys:] = v[b, :, keys:] = np.nan
    arrays = (decode.device.array(x) for x in (q, k, v, lengths))
    results = decode.flash_decode(*arrays, num_splits=splits, return_lse=True)
    options = {"seqlens_k": known, "scale": 0.125, "return_lse": True}
    exact = flash_decode(q, k, v, **options)
    assert (exact[0][0] == 0).all() and (exact[1][0] == -np.inf).all()
    check(results, exact, flash_decode_same_dtype(q, k, v, **options))


@pytest.mark.parametrize("cache", ("int8", "float8"))
@pytest.mark.parametrize("per_token", PER_TOKEN)
@pytest.mark.parametrize("splits", (1, 3))
def test_quantised_cache(decode: Bundle, cache: str, per_token: tuple[bool, bool], splits: int):
    cache = quantised(decode, cache)
    rng = np.random.default_rng(2)
    q = rng.standard_normal((2, 4, 1, 64)).astype(FP16)
    k, v = (cache_of(rng, (2, 2, 150, 64), cache) for _ in range(2))
    k[1, :, 90:] = v[1, :, 90:] = poison(cache)
    shapes = ((2, 2, 150) if each else (1, 2, 1) for each in per_token)
    k_scale, v_scale = (rng.uniform(0.01, 0.05, shape).astype(np.float32) for shape in shapes)
    lengths = np.array([150, 90], np.int32)
    options = {"seqlens_k": lengths, "k_scale": k_scale, "v_scale": v_scale}
    results = decode.flash_decode(q, k, v, num_splits=splits, return_lse=True, **options)
    options |= {"scale": 0.125, "return_lse": True}
    check([Host(x) for x in results], flash_decode(q, k, v, **options), flash_decode_same_dtype(q, k, v, **options))
