"""Calls of the ops of decoding, and how their results are checked against the fp64 references.

Caches have NaN past each sequence's end, in blocks that no sequence uses, and around the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from aot_models.masks import BlockMask
from aot_runtime import Bundle, DeviceArray
from kernels.decode import flex_reference, reference
from kernels.tolerance import assert_close
from tests.support.dtypes import FP16, INT8
from tests.support.poison import into_poison, poisoned

Arrays = Mapping[str, np.ndarray]
FLOORS = {"out": 1e-6, "lse": 1e-5}


def references(op: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the results of an op: exact, and in its dtypes."""
    module = flex_reference if op.startswith("flex") else reference
    return getattr(module, op), getattr(module, f"{op}_same_dtype")


def packed(bundle: Bundle, host: np.ndarray) -> DeviceArray:
    return bundle.device.array(host)


def other_layout(bundle: Bundle, host: np.ndarray) -> DeviceArray:
    """Put `host` [.., .., .., ..] on the device with its middle dims swapped in memory, poisoned around."""
    return poisoned(bundle, host.swapaxes(1, 2)).transpose(0, 2, 1, 3)


PLACES: dict[str, Callable[[Bundle, np.ndarray], Any]] = {
    "q": poisoned, "k": poisoned, "v": other_layout, "cache": poisoned,
}  # fmt: skip
"""Functions that place inputs on the device; others are packed."""


def check(
    bundle: Bundle, op: str, inputs: Arrays, places: Mapping[str, Any] | None = None, out_width: int = 0, out_dtype:
    np.dtype | None = None, **options: Any,
) -> None:  # fmt: skip
    """Call an op with its inputs on the device and NaN in its output; compare with the references.

    places: instead of those of PLACES. out_width: of a row of out; by default that of q. out_dtype: of an out that the
    op takes as an argument.
    """
    known = PLACES | (places or {})
    on_device = {name: known.get(name, packed)(bundle, x) for name, x in inputs.items()}
    q, function, lse = inputs["q"], partial(getattr(bundle, op), return_lse=True), []
    lse_of = (lambda result: result) if out_dtype else (lambda result: result.lse)
    out = into_poison(
        bundle, (*q.shape[:-1], out_width or q.shape[-1]), out_dtype or q.dtype,
        lambda out: lse.append(lse_of(function(**on_device, **options, out=out))),
    )  # fmt: skip
    if out_dtype:
        inputs = inputs | {"out": out}  # for its dtype
    assert_right(op, (out, *lse), inputs, **options)


def assert_right(op: str, results: Sequence[Any], inputs: Arrays, **options: Any) -> None:
    """Assert that out, or out and lse, agree with the references."""
    options = {"scale": inputs["q"].shape[-1] ** -0.5} | options | {"return_lse": True}
    exact, same = (function(**inputs, **options) for function in references(op))
    for result, wanted, like, (name, floor) in zip(results, exact, same, FLOORS.items(), strict=False):
        assert_close(result if isinstance(result, np.ndarray) else result.numpy(), wanted, like, floor, name)


def normal(rng: np.random.Generator, *shape: int, dtype: np.dtype = FP16) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


# Caches


def cache_of(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype == INT8:
        return rng.integers(-127, 128, shape).astype(dtype)
    return (rng.standard_normal(shape) * (20 if dtype.itemsize == 1 else 1)).astype(dtype)


def scales(rng: np.random.Generator, *shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return k_scale and v_scale of a cache of 8 bits."""
    factors = (rng.uniform(0.01, 0.05, shape).astype(np.float32) for shape in shapes)
    return dict(zip(("k_scale", "v_scale"), factors, strict=True))


PER_TOKEN = ((False, False), (True, False), (False, True))
"""Keys, and values, have a scale for each token."""


@dataclass(frozen=True)
class Paged:
    """Arguments of `paged_attention`: random caches, blocks in a random order, NaN where no key is."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    block_tables: np.ndarray
    seqlens_k: np.ndarray
    cu_seqlens_q: np.ndarray

    @property
    def tables(self) -> dict[str, np.ndarray]:
        return {name: x for name, x in vars(self).items() if name not in "qkv"}

    @property
    def longest(self) -> dict[str, int]:
        return {"max_seqlen_q": int(np.diff(self.cu_seqlens_q).max())}


def paged(
    lengths: Sequence[tuple[int, int]], block_size: int, heads: tuple[int, int] = (4, 2), head_dim: int = 64,
    dtype: np.dtype = FP16, cache: np.dtype | None = None,
) -> Paged:  # fmt: skip
    """lengths: (queries, keys) of each sequence."""
    rng = np.random.default_rng(block_size)
    cache = cache or dtype
    queries, keys = (np.array(x, np.int32) for x in zip(*lengths, strict=True))
    counts = -(-keys // block_size)
    per_sequence, blocks = max(1, counts.max()) + 1, int(counts.sum()) + 3
    k, v = (
        np.full((blocks, block_size, heads[1], head_dim), 127 if cache == INT8 else np.nan, cache) for _ in range(2)
    )
    free = iter(rng.permutation(blocks))
    tables = np.full((len(lengths), per_sequence), 2**31 - 1, np.int32)  # past the end: anything
    for b, count in enumerate(counts):
        for i in range(count):
            block, filled = next(free), min(block_size, keys[b] - i * block_size)
            tables[b, i] = block
            for x in (k, v):
                x[block, :filled] = cache_of(rng, (filled, *x.shape[2:]), cache)
    q = normal(rng, queries.sum(), heads[0], head_dim, dtype=dtype)
    return Paged(q, k, v, tables, keys, np.concatenate([[0], queries.cumsum()]).astype(np.int32))


def pieces(k: np.ndarray, v: np.ndarray) -> dict[str, np.ndarray]:
    """Return caches in pieces of 16 bytes, as `paged_attention_pieces` has them."""
    blocks, size, heads, dim = k.shape
    pack = 16 // k.itemsize
    return {
        "k": k.reshape(blocks, size, heads, dim // pack, pack).transpose(0, 2, 3, 1, 4),
        "v": v.reshape(blocks, size // pack, pack, heads, dim).transpose(0, 3, 1, 4, 2),
    }


def check_paged(bundle: Bundle, case: Paged, op: str = "paged_attention", **options: Any) -> None:
    arrays = {name: options.pop(name) for name in list(options) if isinstance(options[name], np.ndarray)}
    check(bundle, op, vars(case) | arrays, **case.longest, **options)


def all_blocks(seqlen_k: int = 300, size: int = 64) -> BlockMask:
    """Every block is one that a function is asked about."""
    count = -(-seqlen_k // size)
    indices = np.arange(count, dtype=np.int32).reshape(1, 1, count)
    none = np.zeros((1, 1), np.int32)
    return BlockMask(none + count, indices, none, indices.copy(), size)
