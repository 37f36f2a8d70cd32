"""Decoding against the fp64 references: tests for any device, of which a test module gives the fixtures.

`with_vectors` is a bundle that has selftest cases. Caches have NaN past each sequence's end, in blocks that no sequence
uses, and around the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle, DeviceArray
from aot_runtime.bundle.vector_files import dtype_of
from aot_runtime.caches import dequantise_int4, join_rows, quantise_int4, split_rows
from aot_runtime.call.callspec import CallSpec, plan_call
from aot_runtime.call.planner import op_planner
from aot_runtime.call.selftests import Prepared, prepare
from aot_runtime.masks import BlockMask, MaskMod, create_block_mask
from kernels.decode import flex_reference
from kernels.decode.reference import (
    append,
    flash_decode,
    flash_decode_int4,
    flash_decode_int4_same_dtype,
    flash_decode_same_dtype,
    mla_decode,
    mla_decode_same_dtype,
    paged_attention,
    paged_attention_int4,
    paged_attention_int4_same_dtype,
    paged_attention_same_dtype,
)
from kernels.tolerance import assert_close
from tests.support.poison import poisoned

FP16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
INT8 = np.dtype(np.int8)
FLOOR = 1e-6

BundleFor = Callable[[np.dtype], Bundle]
"""The bundle with kernels for a dtype: of float16 for head_dims up to 64, of bfloat16 for those up to 128."""


@dataclass(frozen=True)
class Host:
    """A numpy result, read as those on the device are."""

    array: np.ndarray

    def numpy(self) -> np.ndarray:
        return self.array


def check(results: list, exact: tuple, same: tuple) -> None:
    for result, wanted, like, name in zip(results, exact, same, ("out", "lse")[: len(exact)], strict=True):
        assert_close(result.numpy(), wanted, like, FLOOR if name == "out" else 1e-5, name)


def quantised(decode: Bundle, cache: str) -> np.dtype:
    """The dtype of a cache: the float8 that the arch has."""
    if cache == "int8":
        return INT8
    return np.dtype(ml_dtypes.float8_e4m3fnuz if decode.device.arch == "gfx942" else ml_dtypes.float8_e4m3fn)


def cache_of(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype == INT8:
        return rng.integers(-127, 128, shape).astype(dtype)
    return (rng.standard_normal(shape) * (20 if dtype.itemsize == 1 else 1)).astype(dtype)


def poison(dtype: np.dtype) -> np.ndarray:
    """What no result may depend on."""
    return np.int8(127) if dtype == INT8 else np.array(np.nan, dtype)


def other_layout(decode: Bundle, host: np.ndarray) -> DeviceArray:
    """`host` [.., .., .., ..] on the device, poisoned around, its middle dims the other way round in memory."""
    return poisoned(decode, host.swapaxes(1, 2)).transpose(0, 2, 1, 3)


# Contiguous caches


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


PER_TOKEN = ((False, False), (True, False), (False, True))
"""Whether keys, and values, have a scale for each token."""


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


# Paged caches


@dataclass(frozen=True)
class Paged:
    """Arguments of `paged_attention`: random caches, blocks in a random order, NaN where no key is."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    block_tables: np.ndarray
    seqlens_k: np.ndarray
    cu_seqlens_q: np.ndarray

    def values(self) -> tuple[np.ndarray, ...]:
        return (self.q, self.k, self.v, self.block_tables, self.seqlens_k, self.cu_seqlens_q)


def paged(
    lengths: list[tuple[int, int]], block_size: int, heads: tuple[int, int] = (4, 2), head_dim: int = 64,
    dtype: np.dtype = FP16, cache: np.dtype | None = None,
) -> Paged:  # fmt: skip
    """lengths: (queries, keys) of each sequence."""
    rng = np.random.default_rng(block_size)
    cache = cache or dtype
    queries, keys = (np.array(x, np.int32) for x in zip(*lengths, strict=True))
    counts = -(-keys // block_size)
    per_sequence, blocks = max(1, counts.max()) + 1, int(counts.sum()) + 3
    k, v = (np.full((blocks, block_size, heads[1], head_dim), poison(cache)) for _ in range(2))
    free = iter(rng.permutation(blocks))
    tables = np.full((len(lengths), per_sequence), 2**31 - 1, np.int32)  # past the end: anything
    for b, count in enumerate(counts):
        for i in range(count):
            block, filled = next(free), min(block_size, keys[b] - i * block_size)
            tables[b, i] = block
            for x in (k, v):
                x[block, :filled] = cache_of(rng, (filled, *x.shape[2:]), cache)
    q = rng.standard_normal((queries.sum(), heads[0], head_dim)).astype(dtype)
    return Paged(q, k, v, tables, keys, np.concatenate([[0], queries.cumsum()]).astype(np.int32))


def run_paged(decode: Bundle, case: Paged, **options: object) -> None:
    on_device = [poisoned(decode, case.q), poisoned(decode, case.k), other_layout(decode, case.v)]
    out = decode.device.array(np.full(case.q.shape, np.nan, case.q.dtype))
    most = int(np.diff(case.cu_seqlens_q).max())
    splits = options.pop("num_splits", 0)
    tables = [decode.device.array(x) for x in case.values()[3:]]  # on the device: what no length counts may be anything
    results = decode.paged_attention(
        *on_device, *tables, max_seqlen_q=most, num_splits=splits, return_lse=True, out=out, **options
    )
    options = {"scale": case.q.shape[2] ** -0.5, **options, "return_lse": True}
    check(results, paged_attention(*case.values(), **options), paged_attention_same_dtype(*case.values(), **options))


MIXED = [(1, 1), (1, 2), (1, 15), (1, 16), (1, 17), (1, 130), (1, 64)]


@pytest.mark.parametrize("splits", (1, 2, 5))
@pytest.mark.parametrize("block_size", (16, 32, 64, 128, 256, 17))
def test_block_sizes(decode: Bundle, block_size: int, splits: int):
    run_paged(decode, paged(MIXED, block_size), num_splits=splits)


@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize(
    "dtype, head_dim, heads", ((BF16, 128, (8, 1)), (FP16, 56, (3, 3)), (BF16, 100, (6, 2))), ids=str
)
def test_ragged_queries(decode_for: BundleFor, dtype: np.dtype, head_dim: int, heads: tuple[int, int], splits: int):
    decode = decode_for(dtype)
    case = paged([(1, 70), (5, 5), (0, 30), (33, 120), (4, 2), (2, 0)], 16, heads, head_dim, dtype)
    run_paged(decode, case, num_splits=splits)


@pytest.mark.parametrize("head_dim, cache", ((256, FP16), (256, INT8), (200, FP16)), ids=str)
def test_wide_heads(decode: Bundle, head_dim: int, cache: np.dtype):
    scales = dict.fromkeys(("k_scale", "v_scale"), np.full((1, 1, 1), 0.02, np.float32)) if cache == INT8 else {}
    run_paged(decode, paged([(1, 100), (2, 33)], 64, (8, 1), head_dim, cache=cache), num_splits=2, **scales)


def test_chunk_of_a_prompt(decode: Bundle):
    run_paged(decode, paged([(100, 150), (70, 70), (1, 200)], 64, (4, 2)), num_splits=1)


@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("window", (0, 1, 20, 100, 1000))
def test_window(decode: Bundle, window: int, splits: int):
    run_paged(decode, paged([(1, 130), (3, 90), (18, 18)], 32), window=window, num_splits=splits)


@pytest.mark.parametrize("options", ({"softcap": 1.5}, {"softcap": 30.0, "window": 40}, {"scale": -0.3}), ids=str)
@pytest.mark.parametrize("alibi", (False, True))
def test_scores(decode: Bundle, alibi: bool, options: dict):
    slopes = {"alibi_slopes": np.array([0.5, 0.25, 0.125, 0.0625], np.float32)} if alibi else {}
    run_paged(decode, paged([(1, 100), (4, 40)], 64), num_splits=2, **options, **slopes)


@pytest.mark.parametrize("per_token", PER_TOKEN)
@pytest.mark.parametrize("cache", ("int8", "float8"))
def test_quantised_blocks(decode: Bundle, cache: str, per_token: tuple[bool, bool]):
    cache = quantised(decode, cache)
    case = paged([(1, 100), (2, 40)], 16, cache=cache)
    shapes = [case.k.shape[:3] if each else (1, 1, case.k.shape[2]) for each in per_token]
    rng = np.random.default_rng(0)
    k_scale, v_scale = (rng.uniform(0.01, 0.05, shape).astype(np.float32) for shape in shapes)
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    run_paged(decode, case, num_splits=2, **scales)


@pytest.mark.parametrize("splits", (1, 3))
def test_rows_of_no_sequence_are_left_out(decode: Bundle, splits: int):
    case = paged([(1, 60), (2, 20)], 16)
    q = np.concatenate([case.q, np.full((2, *case.q.shape[1:]), np.nan, FP16)])
    arrays = [decode.device.array(x) for x in (q, *case.values()[1:])]
    out = decode.device.array(np.full(q.shape, np.nan, FP16))
    decode.paged_attention(*arrays, max_seqlen_q=2, num_splits=splits, out=out)
    exact, same = (f(*case.values(), scale=0.125) for f in (paged_attention, paged_attention_same_dtype))
    check([Host(out.numpy()[:3])], (exact,), (same,))
    assert np.isnan(out.numpy()[3:]).all()


@pytest.mark.parametrize(
    "starts, splits",
    (([-4, 10**6, 3, -(2**31)], 1), ([-4, 10**6, 3, -(2**31)], 2), ([3, 1, 2**31 - 1, 2], 1)),
    ids=str,
)
def test_queries_that_are_outside_are_neither_read_nor_written(decode: Bundle, starts: list[int], splits: int):
    case = paged([(1, 60), (1, 20), (1, 40)], 16)
    lengths = decode.device.array(case.seqlens_k)
    tables = decode.device.array(case.block_tables), lengths, decode.device.array(np.array(starts, np.int32))
    caches = [poisoned(decode, x) for x in (case.k, case.v)]
    options = {"max_seqlen_q": 5, "num_splits": splits, "return_lse": True}
    decode.paged_attention(decode.device.array(case.q), *caches, *tables, **options)
    q, cache = np.zeros((3, 4, 320), FP16), np.zeros((9, 16, 320), FP16)
    decode.mla_decode(*(decode.device.array(x) for x in (q, cache)), *tables, scale=1.0, **options)


def test_a_table_that_points_outside_reads_nothing_outside(decode: Bundle):
    case = paged([(1, 60)], 16)
    case.block_tables[0, 1:3] = -5, 2**31 - 1
    tables = (decode.device.array(x) for x in case.values()[3:])
    decode.paged_attention(*(poisoned(decode, x) for x in case.values()[:3]), *tables, return_lse=True)


@pytest.mark.parametrize(
    "counts",
    ((7, 16, 128), pytest.param(range(1, 129), marks=[pytest.mark.slow, pytest.mark.timeout(900)])),
    ids=("some", "every"),
)
def test_the_split_changes_no_more_than_rounding_and_each_is_reproducible(decode: Bundle, counts: Iterable[int]):
    """Up to more parts than there are tiles."""
    case = paged([(1, 500)], 64, (2, 1))
    for splits in counts:
        run_paged(decode, case, num_splits=splits)
        arrays = [decode.device.array(x) for x in case.values()]
        runs = [decode.paged_attention(*arrays, num_splits=splits, return_lse=True) for _ in range(2)]
        assert all(np.array_equal(first.numpy(), second.numpy()) for first, second in zip(*runs, strict=True))


LENGTHS = (1, 2, 15, 16, 17, 1000, 1024, 4097, 32768)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("keys", LENGTHS)
def test_every_length(decode: Bundle, keys: int):
    rng = np.random.default_rng(keys)
    q = rng.standard_normal((1, 2, 1, 64)).astype(FP16)
    k, v = (rng.standard_normal((1, 1, keys, 64)).astype(FP16) for _ in range(2))
    for splits in (0, 1) if keys < 2000 else (0,):
        results = decode.flash_decode(*(poisoned(decode, x) for x in (q, k, v)), num_splits=splits, return_lse=True)
        options = {"scale": 0.125, "return_lse": True}
        check(results, flash_decode(q, k, v, **options), flash_decode_same_dtype(q, k, v, **options))


@pytest.mark.parametrize(
    "block_size", (64, *(pytest.param(size, marks=pytest.mark.slow) for size in (16, 32, 128, 256)))
)
def test_every_length_within_a_batch(decode: Bundle, block_size: int):
    run_paged(decode, paged([(1, keys) for keys in LENGTHS], block_size, (2, 1)))


def test_a_contiguous_cache_of_which_each_sequence_has_an_entry(decode: Bundle):
    """Blocks as long as the cache, and tables of one: what others call an index into the cache's batch."""
    case = paged([(1, 100), (1, 30), (2, 64)], 128)
    assert case.block_tables.shape == (3, 2)
    run_paged(decode, replace(case, block_tables=case.block_tables[:, :1].copy()), num_splits=2)


def test_large_caches_take_the_aligned_code(decode: Bundle):
    """Those of 40 GB: the code has 16-byte loads and 64-bit strides."""
    index, planner = decode.index, op_planner(decode.index, "paged_attention")
    cache = {"blocks": 600_000, "block_size": 64, "heads_kv": 8, "head_dim": 64}
    dims = cache | {"tokens": 4, "heads": 16, "batch": 4, "blocks_per_sequence": 99}
    scalars = {"return_lse": "true"}
    call = CallSpec(dims=dims, dtypes={"T": "float16", "C": "float16"}, scalars=scalars)
    decision = plan_call(index, planner, call, 304)
    variant = decision.launches[0].variant
    assert variant.aligned and not decision.misaligned
    types = {item.name: item.type for item in variant.kernargs}
    assert types["k.stride_batch"] == "i64" and types["q.stride_heads"] == "i32"


# Caches of 4 bits a number


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


# Writing to caches


def angles(rng: np.random.Generator, positions: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    phases = rng.uniform(-np.pi, np.pi, (positions, pairs))
    return np.cos(phases).astype(np.float32), np.sin(phases).astype(np.float32)


SLOTS = np.array([0, 37, -1, 5, 79, 80, 10**6], np.int32)  # -1 and those from 80 on are not in the cache


def run_append(decode: Bundle, op: str, kind: str, new: list, caches: list, **options: object) -> tuple[list, tuple]:
    """(what the caches and scales hold then, what they should)."""
    arrays = [decode.device.array(caches[0]), other_layout(decode, caches[1]), *map(decode.device.array, caches[2:])]
    tensors = [x for x in (options.pop(name, None) for name in ("cos", "sin", "positions")) if x is not None]
    names = dict(zip(("cos", "sin", "positions"), tensors, strict=False))
    scales = dict(zip(("k_scale", "v_scale"), arrays[2:], strict=False))
    given = dict(zip(("k_new", "v_new", "k", "v"), [*new, *arrays[:2]], strict=True))
    getattr(decode, op)(**given, slots=decode.device.array(SLOTS), **scales, **names, **options)
    wanted = append(kind, *new, *caches[:2], SLOTS, *(caches[2:] or (None, None)), *tensors, **options)
    return [array.numpy() for array in arrays][: len(wanted)], wanted


def new_tokens(rng: np.random.Generator, head_dim: int, dtype: np.dtype = FP16) -> list[np.ndarray]:
    return [rng.standard_normal((len(SLOTS), 3, head_dim)).astype(dtype) for _ in range(2)]


@pytest.mark.parametrize("head_dim", (64, 40))
def test_append(decode: Bundle, head_dim: int):
    rng = np.random.default_rng(0)
    new = new_tokens(rng, head_dim)
    caches = [np.full((5, 16, 3, head_dim), np.nan, FP16) for _ in range(2)]
    for actual, wanted in zip(*run_append(decode, "append_kv", "given", new, caches), strict=True):
        assert np.array_equal(actual, wanted, equal_nan=True)
        assert np.isfinite(actual).sum() == 4 * 3 * head_dim


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("pairs", (32, 8))
def test_append_rotated(decode: Bundle, pairs: int, interleaved: bool):
    rng = np.random.default_rng(1)
    new, caches = new_tokens(rng, 64), [np.zeros((5, 16, 3, 64), FP16) for _ in range(2)]
    cos, sin = angles(rng, 50, pairs)
    positions = np.array([0, 49, 3, 7, 20, 1, 2], np.int32)
    options = {"cos": cos, "sin": sin, "positions": positions, "interleaved": interleaved}
    actual, same = run_append(decode, "append_kv", "given", new, caches, **options)
    exact = append("given", *new, *caches, SLOTS, None, None, cos, sin, positions, interleaved=interleaved,
                   compute=np.float64)  # fmt: skip
    for found, wanted, like in zip(actual, exact, same, strict=True):
        assert_close(found, wanted, like, 1e-7)


def test_a_position_past_the_table_reads_nothing_past_it(decode: Bundle):
    rng = np.random.default_rng(1)
    cos, sin = angles(rng, 4, 8)
    caches = [np.zeros((5, 16, 3, 64), FP16) for _ in range(2)]
    positions = np.array([4, -1, 2**31 - 1, 0, -(2**31), 3, 3], np.int32)
    arrays = [decode.device.array(x) for x in (*new_tokens(rng, 64), *caches)]
    decode.append_kv(*arrays, decode.device.array(SLOTS), cos=cos, sin=sin, positions=positions)
    assert np.isfinite(arrays[2].numpy()).all()


@pytest.mark.parametrize("cache", ("int8", "float8"))
def test_append_quantised(decode: Bundle, cache: str):
    rng = np.random.default_rng(2)
    dtype = quantised(decode, cache)
    new, caches = new_tokens(rng, 64), [np.zeros((5, 16, 3, 64), dtype) for _ in range(2)]
    given = [rng.uniform(0.005, 0.02, (1, 1, 3)).astype(np.float32) for _ in range(2)]  # so small that some saturate
    for actual, wanted in zip(*run_append(decode, "append_kv", "given", new, [*caches, *given]), strict=True):
        assert np.array_equal(actual, wanted)
    new[0][0, 1] = 0  # a row without a scale
    scales = [np.full((5, 16, 3), np.nan, np.float32) for _ in range(2)]
    for actual, wanted in zip(
        *run_append(decode, "append_kv_per_token", "per_token", new, [*caches, *scales]), strict=True
    ):
        assert np.array_equal(actual, wanted, equal_nan=True)


@pytest.mark.parametrize("groups", (1, 2, 4, 8))
def test_append_int4(decode: Bundle, groups: int):
    rng = np.random.default_rng(3)
    new, caches = new_tokens(rng, 64), [np.zeros((5, 16, 3, 32), np.uint8) for _ in range(2)]
    new[1][3, 0] = 0.5  # all alike
    scales = [np.full((5, 16, 3, groups, 2), np.nan, FP16) for _ in range(2)]
    actual, wanted = run_append(decode, "append_kv_int4", "int4", new, [*caches, *scales])
    for found, exact in zip(actual, wanted, strict=True):
        assert np.array_equal(found, exact, equal_nan=True)
    back = dequantise_int4(actual[0][0, 0], actual[2][0, 0])
    step = actual[2][0, 0, :, :, 0].astype(np.float32).repeat(64 // groups, -1)
    assert (np.abs(back - new[0][0]) <= 0.51 * step + 2e-3).all()


# Latent attention


def run_mla(
    decode: Bundle, lengths: list[tuple[int, int]], heads: int, block_size: int, splits: int, latent: int = 256
) -> None:
    case = paged(lengths, block_size, (heads, 1), latent + 64)
    cache = case.k[:, :, 0]
    tables = case.values()[3:]
    tables_there = [decode.device.array(x) for x in tables]
    most = int(np.diff(case.cu_seqlens_q).max())
    out = decode.device.array(np.full((*case.q.shape[:2], latent), np.nan, FP16))
    results = decode.mla_decode(
        poisoned(decode, case.q), poisoned(decode, cache), *tables_there, scale=0.1, max_seqlen_q=most,
        num_splits=splits, return_lse=True, out=out,
    )  # fmt: skip
    options = {"scale": 0.1, "return_lse": True}
    exact = mla_decode(case.q, cache, *tables, **options)
    check(results, exact, mla_decode_same_dtype(case.q, cache, *tables, **options))


@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("heads, block_size", ((16, 64), (3, 16), (40, 1), (128, 32)), ids=str)
def test_mla(decode: Bundle, heads: int, block_size: int, splits: int):
    run_mla(decode, [(1, 70), (1, 1), (2, 33), (1, 0)], heads, block_size, splits)


def test_mla_of_512(decode: Bundle):
    run_mla(decode, [(1, 100), (3, 33)], 16, 64, 2, latent=512)


def test_absorbed_attention_is_that_of_the_projected_keys_and_values():
    """The two formulas of multi-head latent attention, the naive and the absorbed one, give the same."""
    rng = np.random.default_rng(0)
    heads, dim, latent, rope, keys = 4, 16, 32, 64, 20
    q_nope, q_rope = rng.standard_normal((heads, dim)), rng.standard_normal((heads, rope))
    rows, k_rope = rng.standard_normal((keys, latent)), rng.standard_normal((keys, rope))
    to_keys, to_values = rng.standard_normal((heads, dim, latent)), rng.standard_normal((heads, dim, latent))
    scale = (dim + rope) ** -0.5
    scores = (np.einsum("hd,hdc,tc->ht", q_nope, to_keys, rows) + q_rope @ k_rope.T) * scale
    p = np.exp(scores - scores.max(1, keepdims=True))
    naive = np.einsum("ht,hdc,tc->hd", p / p.sum(1, keepdims=True), to_values, rows)
    absorbed = np.concatenate([np.einsum("hd,hdc->hc", q_nope, to_keys), q_rope], 1)[None]
    cache, table = np.concatenate([rows, k_rope], 1)[None], np.zeros((1, 1), np.int32)
    out = mla_decode(absorbed, cache, table, np.array([keys]), np.array([0, 1]), scale=scale)
    assert np.allclose(np.einsum("hc,hdc->hd", out[0], to_values), naive, rtol=1e-12)


# Lists of blocks


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


def all_blocks(seqlen_k: int = 300, size: int = 64, heads: int = 1) -> BlockMask:
    """Every block is one that a function is asked about."""
    count = -(-seqlen_k // size)
    indices = np.broadcast_to(np.arange(count, dtype=np.int32), (1, heads, count)).copy()
    none = np.zeros((1, heads), np.int32)
    return BlockMask(none + count, indices, none, indices, size)


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


# Graphs


def test_every_op_gives_the_same_each_time_and_from_a_graph(with_vectors: Bundle):
    decode = with_vectors
    stream = decode.device.stream()
    for item in prepare(decode):
        function = getattr(decode, item.case.op)
        results = []
        for captured in (False, False, True):
            arrays = arrays_of(decode, item)
            if captured:
                with decode.device.capture(stream) as graph:
                    function(**arrays, **item.case.scalars, stream=stream)
                graph.launch(stream)
            else:
                function(**arrays, **item.case.scalars, stream=stream)
            stream.synchronize()
            results.append([arrays[name].numpy().tobytes() for name in item.vectors.expected])
        assert results[0] == results[1] == results[2], (item.case.op, item.case.name)


def arrays_of(bundle: Bundle, item: Prepared) -> dict[str, DeviceArray]:
    """The tensors of a selftest case on the device, outputs poisoned."""
    op = getattr(bundle, item.case.op).planner.op
    values = dict(item.vectors.inputs)
    for tensor in op.tensors:
        if tensor.role == "output" and tensor.name in item.vectors.expected:
            shape = item.vectors.expected[tensor.name].shape
            values[tensor.name] = np.full(shape, np.nan, dtype_of(tensor, item.case.dtypes))
    return {name: bundle.device.array(array) for name, array in values.items()}


def test_a_captured_step_decodes_token_after_token(decode: Bundle):
    """One graph writes a token to the cache and attends to all; lengths and slots change between its launches."""
    case = paged([(1, 200), (1, 100), (1, 33)], 16)
    q, k, v, tables, lengths, starts = (decode.device.array(x) for x in case.values())
    rng = np.random.default_rng(1)
    k_new, v_new = (decode.device.array(np.zeros((3, 2, 64), FP16)) for _ in range(2))
    slots, out = decode.device.array(np.full(3, -1, np.int32)), decode.device.empty(case.q.shape, np.float16)
    stream = decode.device.stream()

    def step() -> None:
        decode.append_kv(k_new, v_new, k, v, slots, stream=stream)
        decode.paged_attention(q, k, v, tables, lengths, starts, out=out, stream=stream)

    step()  # loads the code and makes the workspace
    stream.synchronize()
    with decode.device.capture(stream) as graph:
        step()
    for _ in range(4):
        new = [rng.standard_normal((3, 2, 64)).astype(FP16) for _ in range(2)]
        block = case.block_tables[np.arange(3), case.seqlens_k // 16]
        place = case.seqlens_k % 16
        for array, rows, cache in zip((k_new, v_new), new, (case.k, case.v), strict=True):
            array.copy_from(rows)
            cache[block, place] = rows
        slots.copy_from(block * 16 + place)
        case.seqlens_k[...] += 1
        lengths.copy_from(case.seqlens_k)
        out.copy_from(np.full(case.q.shape, np.nan, FP16))
        graph.launch(stream)
        stream.synchronize()
        exact, same = (f(*case.values(), scale=0.125) for f in (paged_attention, paged_attention_same_dtype))
        check([out], (exact,), (same,))


# What is refused


def paged_arguments() -> dict[str, np.ndarray]:
    case = paged([(1, 60), (1, 20)], 16)
    case.block_tables[case.block_tables > 100] = -1
    return vars(case)


@pytest.mark.parametrize(
    "name, at, value, message",
    (
        ("block_tables", (0, 1), 99, r"'block_tables' has 99 at \[0, 1\]; -1 to 8 \(-1 to blocks - 1\) is allowed"),
        ("block_tables", (1, 0), -2, r"'block_tables' has -2 at \[1, 0\]"),
        ("seqlens_k", 1, 81, r"'seqlens_k' has 81 at \[1\]; 0 to 80 \(0 to blocks_per_sequence \* block_size\)"),
        ("seqlens_k", 0, -1, "'seqlens_k' has -1"),
        ("cu_seqlens_q", 1, 3, "'cu_seqlens_q' decreases at 2, from 3 to 2"),
        ("cu_seqlens_q", 2, 3, "'cu_seqlens_q' ends with 3, but tokens is 2"),
        ("cu_seqlens_q", 1, 2, "gives sequence 0 a length of 2, but max_seqlen_q is 1"),
    ),
)
def test_tables_that_point_outside(decode: Bundle, looking: Bundle, name: str, at: object, value: int, message: str):
    """Wherever the host can see it; on the device, if the bundle was opened to look there."""
    arguments = paged_arguments()
    arguments[name][at] = value
    with pytest.raises(ArgumentError, match=message):
        decode.paged_attention(**arguments, max_seqlen_q=1)
    arrays = {name: decode.device.array(x) for name, x in arguments.items()}
    for _ in range(2):
        with pytest.raises(ArgumentError, match=message):
            looking.paged_attention(**arrays, max_seqlen_q=1)


@pytest.mark.parametrize(
    "name, at, value, message",
    (
        ("kv_indices", (0, 0, 1), 5,
         r"'kv_indices' has 5 at \[0, 0, 1\]; -1 to 4 \(-1 to cdiv\(seqlen_k, sparse_block_size\) - 1\) is allowed"),
        ("full_kv_indices", (0, 0, 0), -2, r"'full_kv_indices' has -2 at \[0, 0, 0\]"),
        ("kv_num_blocks", (0, 0), 6, r"'kv_num_blocks' has 6 at \[0, 0\]; 0 to 5 \(0 to kv_blocks\)"),
        ("full_kv_num_blocks", (0, 0), -1, "'full_kv_num_blocks' has -1"),
    ),
)  # fmt: skip
@pytest.mark.parametrize("on_device", (False, True))
def test_lists_that_point_outside(
    decode: Bundle, looking: Bundle, name: str, at: tuple[int, ...], value: int, message: str, on_device: bool
):
    arguments = all_blocks().arguments()
    arguments = {key: x.copy() if isinstance(x, np.ndarray) else x for key, x in arguments.items()}
    arguments[name][at] = value
    arguments |= {"q": np.zeros((1, 1, 1, 64), FP16)} | dict.fromkeys("kv", np.zeros((1, 1, 300, 64), FP16))
    bundle = decode
    if on_device:
        bundle = looking
        arguments = {key: decode.device.array(x) if isinstance(x, np.ndarray) else x for key, x in arguments.items()}
    with pytest.raises(ArgumentError, match=message):
        bundle.flex_decode(**arguments)


def test_blocks_of_the_default_size_are_counted(decode: Bundle):
    """300 keys are 3 blocks of 128."""
    lists = all_blocks(size=128).arguments()
    lists.pop("sparse_block_size")
    q, k = np.zeros((1, 1, 1, 64), FP16), np.zeros((1, 1, 300, 64), FP16)
    decode.flex_decode(q, k, k, **lists)
    with pytest.raises(ArgumentError, match=r"'kv_indices' has 3 at \[0, 0, 2\]; -1 to 2"):
        decode.flex_decode(q, k, k, **{**lists, "kv_indices": np.array([[[0, 1, 3]]], np.int32)})


def test_other_tensors_that_point_outside(decode: Bundle):
    q, k = np.zeros((2, 2, 1, 64), FP16), np.zeros((2, 1, 20, 64), FP16)
    with pytest.raises(ArgumentError, match=r"'seqlens_k' has 21 at \[1\]; 0 to 20"):
        decode.flash_decode(q, k, k, np.array([20, 21], np.int32))
    new, cache = np.zeros((1, 1, 64), FP16), np.zeros((2, 16, 1, 64), FP16)
    with pytest.raises(ArgumentError, match=r"'slots' has 32 at \[0\]; -1 to 31"):
        decode.append_kv(new, new, cache, cache.copy(), np.array([32], np.int32))


def test_contents_that_are_right_pass(decode: Bundle, looking: Bundle):
    arguments = paged_arguments()
    arrays = {name: decode.device.array(x) for name, x in arguments.items()}
    results = [op(**arrays).numpy() for op in (looking.paged_attention, decode.paged_attention)]
    assert np.array_equal(*results)


@pytest.mark.parametrize(
    "changes, message",
    (
        ({"q": np.zeros((2, 3, 64), FP16)}, "heads % heads_kv"),
        ({"k_scale": np.ones((1, 1, 1), np.float32)}, r"given\(k_scale\)"),
        ({"block_tables": np.zeros((3, 2), np.int32)}, "batch"),
        ({"q": np.zeros((2, 4, 300), FP16)}, "head_dim"),
    ),
)
def test_arguments_that_disagree(decode: Bundle, changes: dict, message: str):
    with pytest.raises(ArgumentError, match=message):
        decode.paged_attention(**paged_arguments() | changes)


def test_what_no_variant_has(decode: Bundle):
    """A number of groups, a size of blocks, a latent dim, and heads that do not divide, of the other ops."""
    q, k = np.zeros((1, 2, 1, 64), FP16), np.zeros((1, 1, 20, 64), FP16)
    packed, lengths = np.zeros((1, 1, 20, 32), np.uint8), np.array([20], np.int32)
    pairs = np.zeros((1, 1, 20, 3, 2), FP16)
    with pytest.raises(ArgumentError, match="groups"):
        decode.flash_decode_int4(q, packed, packed, pairs, pairs, lengths)
    pairs = np.zeros((1, 1, 20, 4, 2), FP16)
    with pytest.raises(ArgumentError, match=r"'k_scale' has shape .*: dim 4"):
        decode.flash_decode_int4(q, packed, packed, pairs[..., :1], pairs, lengths)
    with pytest.raises(ArgumentError, match="heads % heads_kv"):
        decode.flash_decode(np.zeros((1, 3, 1, 64), FP16), *(np.zeros((1, 2, 20, 64), FP16),) * 2)
    with pytest.raises(ArgumentError, match="sparse_block_size % 64"):
        decode.flex_decode(q, k, k, **{**all_blocks(20).arguments(), "sparse_block_size": 100})
    with pytest.raises(ArgumentError, match="leads % 2"):
        decode.flex_decode_relative_bias(q, k, k, **all_blocks(20).arguments(), bias=np.zeros((2, 40), np.float32))
    documents = {"documents": np.zeros((1, 20), np.int32), "first_query": 20}
    with pytest.raises(ArgumentError, match="first_query"):
        decode.flex_decode_document(q, k, k, **all_blocks(20).arguments(), **documents)
    with pytest.raises(ArgumentError, match="sparse_block_size"):
        decode.flex_decode(q, k, k, **{**all_blocks(20).arguments(), "sparse_block_size": 0})
    with pytest.raises(ArgumentError, match="latent"):
        decode.mla_decode(
            np.zeros((1, 2, 364), FP16), np.zeros((1, 16, 364), FP16), np.zeros((1, 1), np.int32),
            np.ones(1, np.int32), np.array([0, 1], np.int32), scale=1.0,
        )  # fmt: skip


def test_scales_that_are_missing_or_misshapen(decode: Bundle):
    case = paged([(1, 60)], 16, cache=INT8)
    arrays = [decode.device.array(x) for x in case.values()]
    with pytest.raises(ArgumentError, match=r"given\(k_scale\)"):
        decode.paged_attention(*arrays)
    with pytest.raises(ArgumentError, match="k_scale"):
        decode.paged_attention(*arrays, k_scale=np.ones((1, 1, 3), np.float32), v_scale=np.ones((1, 1, 2), np.float32))
