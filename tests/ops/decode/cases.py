"""Calls of the ops of decoding, and how their results are checked against the fp64 references.

Caches have NaN past each sequence's end, in blocks that no sequence uses, and around the arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from aot_runtime import Bundle, DeviceArray
from aot_runtime.masks import BlockMask
from kernels.decode.reference import (
    paged_attention,
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


PER_TOKEN = ((False, False), (True, False), (False, True))
"""Whether keys, and values, have a scale for each token."""


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


def all_blocks(seqlen_k: int = 300, size: int = 64, heads: int = 1) -> BlockMask:
    """Every block is one that a function is asked about."""
    count = -(-seqlen_k // size)
    indices = np.broadcast_to(np.arange(count, dtype=np.int32), (1, heads, count)).copy()
    none = np.zeros((1, heads), np.int32)
    return BlockMask(none + count, indices, none, indices, size)
