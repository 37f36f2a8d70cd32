"""Contiguous caches, of 16, 8 and 4 bits."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aot_models.kv_quantise import split_rows
from aot_runtime import Bundle, DeviceArray
from kernels.decode.reference import dequantise_int4, quantise_int4
from tests.ops.decode.cases import PER_TOKEN, assert_right, cache_of, check, normal, packed, scales
from tests.support.dtypes import BF16, FP16, INT8, eight_bits

pytestmark = pytest.mark.sampled(2)


def tensors(
    q: tuple[int, ...], heads_kv: int, keys: int, dtype: np.dtype = FP16, cache: np.dtype | None = None
) -> dict[str, np.ndarray]:
    """Draw q of a shape, and k and v of as many keys."""
    rng = np.random.default_rng(keys)
    k, v = (cache_of(rng, (q[0], heads_kv, keys, q[3]), cache or dtype) for _ in range(2))
    return {"q": normal(rng, *q, dtype=dtype), "k": k, "v": v}


@pytest.mark.parametrize("splits", (0, 1, 3, 16))
@pytest.mark.parametrize("seqlen_q, group", ((1, 1), (1, 8), (3, 4), (16, 2), (5, 3)), ids=str)
@pytest.mark.parametrize("head_dim, dtype", ((64, FP16), (128, BF16), (48, FP16), (40, FP16)), ids=str)
def test_flash_decode(decode: Bundle, head_dim: int, dtype: np.dtype, seqlen_q: int, group: int, splits: int):
    inputs = tensors((2, 2 * group, seqlen_q, head_dim), 2, 210, dtype)
    check(decode, "flash_decode", inputs, num_splits=splits)


@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("head_dim, head_dim_v", ((64, 128), (192, 40), (128, 127)))
def test_values_of_other_dims(decode: Bundle, head_dim: int, head_dim_v: int, splits: int):
    inputs = tensors((2, 4, 3, head_dim), 2, 210) | {"v": tensors((2, 4, 3, head_dim_v), 2, 210)["v"]}
    check(decode, "flash_decode", inputs, out_width=head_dim_v, num_splits=splits)


@pytest.mark.parametrize("keys", (200, 201, 202))
def test_a_last_tile_of_a_key_more_or_less(decode: Bundle, keys: int):
    """16 queries of two heads are two tiles of rows; the first sees all keys but 8, and so three tiles of 64, or
    nearly."""
    check(decode, "flash_decode", tensors((1, 2, 16, 64), 1, keys), num_splits=1)


@pytest.mark.parametrize("heads_kv", (1, 8))
def test_views_that_are_not_copied(decode: Bundle, heads_kv: int):
    """The views are [batch, tokens, groups, heads, head_dim], with one key head, or with one that strides of 0
    repeat."""
    rng = np.random.default_rng(3)
    hosts = {"q": normal(rng, 2, 3, 2, 4, 64), "k": normal(rng, 2, 90, 1, 1, 64), "v": normal(rng, 2, 90, 1, 1, 64)}

    def by_head(x: Any) -> Any:
        return x.reshape(2, x.shape[1], x.shape[2] * x.shape[3], 64).transpose(0, 2, 1, 3)

    def repeated(x: DeviceArray) -> DeviceArray:
        strides = (x.strides[0], 0, *x.strides[2:])
        found = {"shape": (2, heads_kv, 90, 64), "strides": strides, "typestr": "<f2", "data": (x.ptr, False)}
        return decode.device.wrap(SimpleNamespace(__cuda_array_interface__=found, owner=x))

    arrays = {name: by_head(decode.device.array(x)) for name, x in hosts.items()}
    if heads_kv > 1:
        arrays |= {name: repeated(arrays[name]) for name in "kv"}
    out = decode.device.array(np.full(hosts["q"].shape, np.nan, FP16))
    _, lse = decode.flash_decode(**arrays, out=by_head(out), num_splits=4, return_lse=True)
    assert_right("flash_decode", (by_head(out.numpy()), lse), {name: by_head(x) for name, x in hosts.items()})


@pytest.mark.parametrize("splits", (1, 4))
def test_lengths_within_a_batch(decode: Bundle, splits: int):
    """Lengths of 0, below the queries' number, over the cache and below 0 are clamped to what makes sense."""
    lengths = np.array([0, 1, 2, 15, 16, 17, 64, 100, 1000, -3], np.int32)
    inputs = tensors((len(lengths), 4, 2, 64), 2, 100) | {"seqlens_k": lengths.clip(0, 100)}
    for b, keys in enumerate(inputs["seqlens_k"]):
        inputs["k"][b, :, keys:] = inputs["v"][b, :, keys:] = np.nan
    places = {"seqlens_k": lambda bundle, known: packed(bundle, lengths)}
    check(decode, "flash_decode", inputs, places, num_splits=splits)


@pytest.mark.parametrize("cache", ("int8", "e4m3", "e5m2"))
@pytest.mark.parametrize("per_token", PER_TOKEN)
@pytest.mark.parametrize("splits", (1, 3))
def test_caches_of_8_bits(decode: Bundle, cache: str, per_token: tuple[bool, bool], splits: int):
    dtype = eight_bits(decode, cache)
    inputs = tensors((2, 4, 1, 64), 2, 150, cache=dtype) | {"seqlens_k": np.array([150, 90], np.int32)}
    inputs["k"][1, :, 90:] = inputs["v"][1, :, 90:] = 127 if dtype == INT8 else np.nan
    inputs |= scales(np.random.default_rng(2), *((2, 2, 150) if each else (1, 2, 1) for each in per_token))
    check(decode, "flash_decode", inputs, num_splits=splits)


def unaligned(bundle: Bundle, host: np.ndarray) -> DeviceArray:
    """Put `host` on the device with rows 3 elements apart."""
    return packed(bundle, np.pad(host, [(0, 0)] * (host.ndim - 1) + [(0, 3)]))[..., : host.shape[-1]]


@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("place", (packed, unaligned))
@pytest.mark.parametrize(
    "head_dim, groups",
    ((96, 2), (64, 4), (64, 1), (32, 2), (16, 8), (80, 8), (96, 8), (64, 2), (160, 4), (64, 8)),
    ids=str,
)
def test_caches_of_4_bits(decode: Bundle, head_dim: int, groups: int, place: Any, splits: int):
    """All group counts of unaligned rows share a variant, also with groups that end within 4 bytes."""
    rng = np.random.default_rng(groups)
    k, k_scale, v, v_scale = (x for _ in "kv" for x in quantise_int4(normal(rng, 2, 2, 90, head_dim), groups))
    for pairs in (k_scale, v_scale):
        pairs[0, :, 33:] = np.nan
    inputs = {"q": normal(rng, 2, 4, 2, head_dim), "k": k, "v": v, "k_scale": k_scale, "v_scale": v_scale}
    inputs["seqlens_k"] = np.array([33, 90], np.int32)
    check(decode, "flash_decode_int4", inputs, dict.fromkeys("qkv", place), num_splits=splits)


def test_rows_with_a_prefix_are_read_as_views(decode: Bundle):
    rng = np.random.default_rng(5)
    numbers, pairs = quantise_int4(rng.standard_normal((1, 1, 40, 64), np.float32), 4)
    rows = np.concatenate([pairs.view(np.int32)[..., 0], numbers.view(np.int32)], -1)
    assert rows.shape == (1, 1, 40, 4 + 8) and rows.dtype == np.int32
    word = int(rows[0, 0, 7, 4 + 3])  # elements 24 to 31 of row 7, of group 1
    factor, shift = pairs[0, 0, 7, 1].astype(np.float32)
    values = [((word >> 4 * i) & 15) * factor + shift for i in range(8)]
    assert np.array_equal(dequantise_int4(*split_rows(rows, 4))[0, 0, 7, 24:32], np.array(values, np.float32))
    call = partial(decode.flash_decode_int4, normal(rng, 1, 1, 1, 64), seqlens_k=np.array([40], np.int32))
    view, pairs_view = split_rows(rows, 4)
    results = [call(k=k, v=k, k_scale=scale, v_scale=scale) for k, scale in ((view, pairs_view), (numbers, pairs))]
    assert np.array_equal(*results)
