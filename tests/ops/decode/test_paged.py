"""Caches in blocks: of keys and values of 16, 8 and 4 bits, and of latent vectors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle
from tests.ops.decode.cases import PER_TOKEN, assert_right, check, check_paged, normal, packed, paged, pieces, scales
from tests.support.dtypes import BF16, FP16, FP32, INT8, eight_bits
from tests.support.poison import poisoned

pytestmark = pytest.mark.sampled(2)

MIXED = [(1, 1), (1, 2), (1, 15), (1, 16), (1, 17), (1, 130), (1, 64)]


@pytest.mark.parametrize("splits", (1, 2, 5))
@pytest.mark.parametrize("block_size", (1, 5, 16, 32, 64, 128, 256, 17))
def test_block_sizes(decode: Bundle, block_size: int, splits: int):
    check_paged(decode, paged(MIXED, block_size), num_splits=splits)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize(
    "dtype, head_dim, heads", ((BF16, 128, (8, 1)), (BF16, 100, (6, 2)), (FP16, 56, (3, 3))), ids=str
)
def test_ragged_queries(decode: Bundle, dtype: np.dtype, head_dim: int, heads: tuple[int, int], splits: int):
    case = paged([(1, 70), (5, 5), (0, 30), (33, 120), (4, 2), (2, 0)], 16, heads, head_dim, dtype)
    check_paged(decode, case, num_splits=splits)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "head_dim, cache",
    ((256, FP16), (200, FP16), (256, INT8), (512, FP16), (264, FP16), (511, FP16)),
    ids=str,
)
def test_wide_heads(decode: Bundle, head_dim: int, cache: np.dtype):
    factors = scales(np.random.default_rng(0), (1, 1, 1), (1, 1, 1)) if cache == INT8 else {}
    check_paged(decode, paged([(1, 100), (2, 33)], 64, (8, 1), head_dim, cache=cache), num_splits=2, **factors)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize(
    "head_dim, head_dim_v, cache",
    ((192, 128, BF16), (64, 128, FP16), (128, 64, INT8), (36, 500, FP16), (64, 40, FP32)), ids=str,
)  # fmt: skip
def test_values_of_other_dims(decode: Bundle, head_dim: int, head_dim_v: int, cache: np.dtype, splits: int):
    dtype = FP16 if cache == INT8 else cache
    wide = paged([(1, 100), (5, 33), (0, 40), (2, 0)], 16, (4, 2), max(head_dim, head_dim_v), dtype, cache)
    case = replace(wide, q=wide.q[..., :head_dim], k=wide.k[..., :head_dim], v=wide.v[..., :head_dim_v])
    factors = scales(np.random.default_rng(0), (1, 1, 2), wide.v.shape[:3]) if cache == INT8 else {}
    check_paged(decode, case, out_width=head_dim_v, num_splits=splits, **factors)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("head_dim, cache", ((64, "float32"), (100, "float32"), (128, "e4m3"), (24, "e5m2")), ids=str)
def test_queries_of_float32(decode: Bundle, head_dim: int, cache: str, splits: int):
    """Products are of float32, too."""
    dtype = FP32 if cache == "float32" else eight_bits(decode, cache)
    factors = {} if dtype == FP32 else scales(np.random.default_rng(0), (1, 1, 2), (1, 1, 1))
    case = paged([(1, 70), (5, 40), (0, 3)], 16, (4, 2), head_dim, FP32, dtype)
    check_paged(decode, case, num_splits=splits, **factors)


def test_chunk_of_a_prompt(decode: Bundle):
    check_paged(decode, paged([(100, 150), (70, 70), (1, 200)], 64), num_splits=1)


@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("window", (0, 1, 20, 100, 1000))
def test_window(decode: Bundle, window: int, splits: int):
    check_paged(decode, paged([(1, 130), (3, 90), (18, 18)], 32), window_left=window, num_splits=splits)


@pytest.mark.parametrize("options", ({"softcap": 1.5}, {"softcap": 30.0, "window_left": 40}, {"scale": -0.3}), ids=str)
@pytest.mark.parametrize("alibi", (False, True))
def test_scores(decode: Bundle, alibi: bool, options: dict[str, Any]):
    slopes = {"alibi_slopes": np.array([[0.5, 0.25, 0.125, 0.0625]], np.float32)} if alibi else {}
    check_paged(decode, paged([(1, 100), (4, 40)], 64), num_splits=2, **options, **slopes)


@pytest.mark.parametrize("per_token", PER_TOKEN)
@pytest.mark.parametrize("cache", ("int8", "e4m3", "e5m2"))
def test_blocks_of_8_bits(decode: Bundle, cache: str, per_token: tuple[bool, bool]):
    case = paged([(1, 100), (2, 40)], 16, cache=eight_bits(decode, cache))
    shapes = [case.k.shape[:3] if each else (1, 1, case.k.shape[2]) for each in per_token]
    check_paged(decode, case, num_splits=2, **scales(np.random.default_rng(0), *shapes))


@pytest.mark.parametrize(
    "dtype, queries, head_dim, pairs, options",
    ((FP16, 1, 128, 64, {"num_splits": 2}), (BF16, 70, 128, 64, {"num_splits": 1, "causal": False}),
     (FP16, 3, 256, 128, {"num_splits": 1, "window_left": 50}), (FP16, 2, 100, 20, {"interleaved": True})), ids=str,
)  # fmt: skip
@pytest.mark.parametrize("cache", ("", "e4m3", "e5m2"))
def test_keys_rotated_in_attention(
    decode: Bundle, dtype: np.dtype, queries: int, head_dim: int, pairs: int, options: dict[str, Any], cache: str
):
    """By tables of cosines and sines, of which the last row serves what is past them."""
    kind = eight_bits(decode, cache) if cache else dtype
    case = paged([(queries, 130), (1, 40), (1, 0)], 16, (8, 2), head_dim, dtype, kind)
    phases = np.arange(120)[:, None] * 100.0 ** (-np.arange(pairs) / pairs)
    given = {"cos": np.cos(phases).astype(np.float32), "sin": np.sin(phases).astype(np.float32)}
    if cache:
        given |= scales(np.random.default_rng(0), (1, 1, 2), case.v.shape[:3])
    check(decode, "paged_attention_rotated", vars(case) | given, **case.longest, **options)


@pytest.mark.parametrize("cache", ("float16", "e4m3"))
@pytest.mark.parametrize(
    "queries, head_dim, block_size, splits",
    ((1, 128, 16, 2), (3, 80, 32, 1), (3, 256, 1024, 1), (100, 128, 16, 1), (2, 64, 48, 3)), ids=str,
)  # fmt: skip
def test_caches_in_pieces(decode: Bundle, queries: int, head_dim: int, block_size: int, splits: int, cache: str):
    """As vLLM has them: keys in pieces of 16 bytes, values with the keys of a block innermost; and as aiter does."""
    dtype = FP16 if cache == "float16" else eight_bits(decode, cache)
    case = paged([(queries, 130), (1, 40), (1, 0)], block_size, (8, 2), head_dim, cache=dtype)
    given = {"first_keys": np.array([7, 0, 0], np.int32)}
    if cache != "float16":
        given |= scales(np.random.default_rng(0), (1, 1, 1), case.v.shape[:3])
    in_columns = lambda bundle, x: poisoned(bundle, x.transpose(0, 1, 3, 2, 4)).transpose(0, 1, 3, 2, 4)  # noqa: E731
    inputs = vars(case) | pieces(case.k, case.v) | given
    for place in (poisoned, in_columns):
        check(decode, "paged_attention_pieces", inputs, {"k": poisoned, "v": place}, num_splits=splits, window_left=120,
              causal=True, **case.longest)  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("options", ({}, {"softcap": 2.0, "window_left": 40}), ids=("plain", "window"))
@pytest.mark.parametrize(
    "head_dim, groups, block_size",
    ((64, 4, 64), (64, 4, 16), (160, 1, 16), (64, 4, 17), (64, 1, 64), (80, 8, 64)),
    ids=str,
)
def test_blocks_of_4_bits(
    decode: Bundle, head_dim: int, groups: int, block_size: int, options: dict[str, Any], splits: int
):
    rng = np.random.default_rng(groups)
    case = paged([*MIXED, (3, 70), (1, 0)], block_size, head_dim=head_dim)
    rows = (*case.k.shape[:3], head_dim // 2)
    inputs = vars(case) | {name: rng.integers(0, 256, rows).astype(np.uint8) for name in "kv"}
    for name, cache in (("k_scale", case.k), ("v_scale", case.v)):
        inputs[name] = normal(rng, *cache.shape[:3], groups, 2)
        inputs[name][np.isnan(cache[..., 0])] = np.nan
    check(decode, "paged_attention_int4", inputs, dict.fromkeys("kv", packed), max_seqlen_q=3, num_splits=splits,
          **options)  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("heads, block_size", ((16, 64), (3, 16), (40, 1), (128, 32)), ids=str)
@pytest.mark.parametrize("latent, rope", ((96, 48), (256, 64), pytest.param(512, 64, marks=pytest.mark.slow), (33, 7)))
def test_latent_vectors(decode: Bundle, latent: int, rope: int, heads: int, block_size: int, splits: int):
    case = paged([(1, 70), (1, 1), (2, 33), (1, 0)], block_size, (heads, 1), latent + rope)
    inputs = {"q": case.q, "cache": case.k[:, :, 0], **case.tables}
    options = {} if rope == 64 else {"rope": rope}
    check(decode, "mla_decode", inputs, out_width=latent, scale=0.1, num_splits=splits, **case.longest, **options)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("latent, rope, dtype, cache", (
    (256, 128, FP16, ""), (96, 80, BF16, ""), (200, 127, FP16, ""), (249, 7, FP16, ""), (512, 64, BF16, "e4m3"),
    (96, 48, FP16, "e4m3"), (33, 7, FP16, "e4m3"), (256, 64, FP32, ""), (96, 127, FP32, ""),
), ids=str)  # fmt: skip
def test_latent_vectors_of_other_dims_and_dtypes(
    decode: Bundle, latent: int, rope: int, dtype: np.dtype, cache: str, splits: int
):
    """There are sinks, too, and a scale of float8."""
    stored = eight_bits(decode, cache) if cache else None
    case = paged([(1, 70), (1, 1), (2, 33), (1, 0)], 64, (5, 1), latent + rope, dtype, stored)
    inputs = {"q": case.q, "cache": case.k[:, :, 0], **case.tables, "sinks": np.linspace(-2, 3, 5, dtype=np.float32)}
    inputs |= {"cache_scale": np.array([0.05], np.float32)} if cache else {}
    check(decode, "mla_decode", inputs, out_width=latent, scale=0.1, rope=rope, num_splits=splits, **case.longest)


@pytest.mark.on("gpu")
@pytest.mark.parametrize("scale", (0.1, -0.05, 0.0))
@pytest.mark.parametrize("splits", (0, 1, 3, 9))
@pytest.mark.parametrize(
    "heads, block_size, dtype",
    ((16, 64, FP16), (128, 128, BF16), (40, 192, FP16), (24, 48, BF16), (70, 16, FP16)),
    ids=str,
)
def test_latent_vectors_in_many_blocks(
    decode: Bundle, heads: int, block_size: int, dtype: np.dtype, splits: int, scale: float
):
    """There are more rows than a tile, and even and odd numbers of tiles of keys, some of which belong to no
    sequence."""
    lengths = [(1, 1000), (4, 333), (1, 64), (3, 65), (2, 1), (1, 128), (5, 3), (1, 0), (1, 705)]
    case = paged(lengths, block_size, (heads, 1), 576, dtype)
    inputs = {"q": case.q, "cache": case.k[:, :, 0], **case.tables}
    check(decode, "mla_decode", inputs, out_width=512, scale=scale, num_splits=splits, **case.longest)


@pytest.mark.on("gpu")
def test_latent_vectors_give_the_same_bits_each_time(decode: Bundle):
    """Groups of warps take turns in memory; if one was early, results would differ."""
    case = paged([(1, 3000), (2, 1001), (1, 130)] * 10, 64, (64, 1), 576)
    arrays = {name: packed(decode, x) for name, x in case.tables.items()}
    arrays |= {"q": packed(decode, case.q), "cache": packed(decode, case.k[:, :, 0])}
    first, *others = (decode.mla_decode(**arrays, scale=0.1, **case.longest, num_splits=3) for _ in range(30))
    assert all(np.array_equal(first.numpy(), other.numpy()) for other in others)


# Tables


@pytest.mark.parametrize("splits", (1, 3))
def test_rows_of_no_sequence_are_left_out(decode: Bundle, splits: int):
    case = paged([(1, 60), (2, 20)], 16)
    q = np.concatenate([case.q, np.full((2, *case.q.shape[1:]), np.nan, FP16)])
    arrays = {name: packed(decode, x) for name, x in (vars(case) | {"q": q}).items()}
    out = packed(decode, np.full(q.shape, np.nan, FP16))
    decode.paged_attention(**arrays, max_seqlen_q=2, num_splits=splits, out=out)
    assert_right("paged_attention", [out.numpy()[:3]], vars(case))
    assert np.isnan(out.numpy()[3:]).all()


@pytest.mark.parametrize(
    "starts, splits", (([-4, 10**6, 3, -(2**31)], 1), ([-4, 10**6, 3, -(2**31)], 2), ([3, 1, 2**31 - 1, 2], 1)), ids=str
)
def test_queries_that_are_outside_are_neither_read_nor_written(decode: Bundle, starts: list[int], splits: int):
    case = paged([(1, 60), (1, 20), (1, 40)], 16)
    tables = {name: packed(decode, x) for name, x in case.tables.items()}
    tables |= {"cu_seqlens_q": packed(decode, np.array(starts, np.int32))}
    options = {"max_seqlen_q": 5, "num_splits": splits, "return_lse": True}
    decode.paged_attention(*(poisoned(decode, x) for x in (case.q, case.k, case.v)), **tables, **options)
    q, cache = np.zeros((3, 4, 320), FP16), np.zeros((9, 16, 320), FP16)
    decode.mla_decode(packed(decode, q), packed(decode, cache), **tables, scale=1.0, **options)


@pytest.mark.parametrize("sequences", (0, 2))
@pytest.mark.parametrize("splits", (1, 2))
def test_nothing_to_do(decode: Bundle, sequences: int, splits: int):
    """The step has no sequences, or none with a query."""
    tables = {
        "block_tables": np.zeros((sequences, 4), np.int32), "seqlens_k": np.full(sequences, 30, np.int32),
        "cu_seqlens_q": np.zeros(sequences + 1, np.int32),
    }  # fmt: skip
    cache, options = np.ones((9, 16, 2, 64), FP16), {"num_splits": splits, "return_lse": True}
    out, lse = decode.paged_attention(np.ones((0, 4, 64), FP16), cache, cache, **tables, **options)
    assert out.shape == (0, 4, 64) and lse.shape == (0, 4)
    with pytest.raises(ArgumentError, match="batch > 0 or tokens == 0"):
        decode.paged_attention(np.ones((3, 4, 64), FP16), cache, cache, **{
            name: table[:0] if name != "cu_seqlens_q" else table[:1] for name, table in tables.items()
        })  # fmt: skip


def test_a_table_that_points_outside_reads_nothing_outside(decode: Bundle):
    case = paged([(1, 60)], 16)
    case.block_tables[0, 1:3] = -5, 2**31 - 1
    tables = {name: packed(decode, x) for name, x in case.tables.items()}
    decode.paged_attention(*(poisoned(decode, x) for x in (case.q, case.k, case.v)), **tables, return_lse=True)


@pytest.mark.parametrize(
    "counts",
    ((7, 128), pytest.param(range(1, 129), marks=[pytest.mark.slow, pytest.mark.timeout(900)])),
    ids=("some", "every"),
)
def test_parts_change_no_more_than_rounding(decode: Bundle, counts: Iterable[int]):
    """Nor do results change from run to run. There are more parts than tiles, and more than are joined at once."""
    case = paged([(1, 1300)], 64, (2, 1))
    for splits in counts:
        check_paged(decode, case, num_splits=splits)
        arrays = {name: packed(decode, x) for name, x in vars(case).items()}
        runs = [decode.paged_attention(**arrays, num_splits=splits, return_lse=True) for _ in range(2)]
        assert all(np.array_equal(first.numpy(), second.numpy()) for first, second in zip(*runs, strict=True))


LENGTHS = (1, 2, 15, 16, 17, 1000, 1024, 4097)


@pytest.mark.parametrize(
    "block_size", (64, *(pytest.param(size, marks=pytest.mark.slow) for size in (16, 32, 128, 256)))
)
def test_every_length_within_a_batch(decode: Bundle, block_size: int):
    check_paged(decode, paged([(1, keys) for keys in LENGTHS], block_size, (2, 1)))


def test_a_contiguous_cache_of_which_each_sequence_has_an_entry(decode: Bundle):
    """A block is as long as the cache, and each table has one entry: what others call an index into the cache's
    batch."""
    case = paged([(1, 100), (1, 30), (2, 64)], 128)
    assert case.block_tables.shape == (3, 2)
    check_paged(decode, replace(case, block_tables=case.block_tables[:, :1].copy()), num_splits=2)


def test_a_captured_step_decodes_token_after_token(decode: Bundle):
    """A graph writes a token to the cache and attends to all; lengths and slots change between its launches."""
    case = paged([(1, 200), (1, 100), (1, 33)], 16)
    there = {name: packed(decode, x) for name, x in vars(case).items()}
    rng = np.random.default_rng(1)
    k_new, v_new = (packed(decode, np.zeros((3, 2, 64), FP16)) for _ in range(2))
    slots, out = packed(decode, np.full(3, -1, np.int32)), decode.device.empty(case.q.shape, np.float16)
    stream = decode.device.stream()

    def step() -> None:
        decode.append_kv(k_new, v_new, there["k"], there["v"], slots, stream=stream)
        decode.paged_attention(**there, num_splits=3, out=out, stream=stream)

    step()  # loads the code and makes the workspace
    stream.synchronize()
    with decode.device.capture(stream) as graph:
        step()
    for _ in range(4):
        block, place = case.block_tables[np.arange(3), case.seqlens_k // 16], case.seqlens_k % 16
        for array, cache in ((k_new, case.k), (v_new, case.v)):
            cache[block, place] = normal(rng, 3, 2, 64)
            array.copy_from(cache[block, place])
        slots.copy_from(block * 16 + place)
        case.seqlens_k[...] += 1
        there["seqlens_k"].copy_from(case.seqlens_k)
        out.copy_from(np.full(case.q.shape, np.nan, FP16))
        graph.launch(stream)
        stream.synchronize()
        assert_right("paged_attention", [out], vars(case))
