"""Caches in blocks, of 16 and of 8 bits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from aot_runtime import Bundle
from aot_runtime.call.callspec import CallSpec, plan_call
from aot_runtime.call.planner import op_planner
from kernels.decode.reference import (
    flash_decode,
    flash_decode_same_dtype,
    paged_attention,
    paged_attention_same_dtype,
)
from tests.ops.decode.cases import (
    BF16,
    FP16,
    INT8,
    MIXED,
    PER_TOKEN,
    BundleFor,
    Host,
    check,
    paged,
    quantised,
    run_paged,
)
from tests.support.poison import poisoned


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
