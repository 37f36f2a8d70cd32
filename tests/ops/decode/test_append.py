"""Writing to caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.decode import reference
from kernels.decode.reference import dequantise_int4, quantise_int4
from kernels.tolerance import assert_close
from tests.ops.decode.cases import normal, other_layout, packed, references
from tests.support.dtypes import BF16, FP16, FP32, INT8, eight_bits
from tests.support.poison import into_poison, poisoned

SLOTS = np.array([0, 37, -1, 5, 79, 80, 10**6], np.int32)
"""Slots of a cache of 80: -1 and slots from 80 on are not in it."""
CACHE = (5, 16, 3)


def new_tokens(seed: int, head_dim: int = 64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: normal(rng, len(SLOTS), CACHE[2], head_dim) for name in ("k_new", "v_new")}


def angles(positions: int, pairs: int) -> dict[str, np.ndarray]:
    phases = np.random.default_rng(1).uniform(-np.pi, np.pi, (positions, pairs))
    return {"cos": np.cos(phases).astype(np.float32), "sin": np.sin(phases).astype(np.float32)}


def filled(shape: tuple[int, ...], value: float, dtype: np.dtype) -> list[np.ndarray]:
    return [np.full(shape, value, dtype) for _ in "kv"]


def run_append(
    decode: Bundle, op: str, new: dict[str, np.ndarray], caches: list[np.ndarray], written: int = 2, **options: Any
) -> tuple[tuple[np.ndarray, ...], ...]:
    """Append; return what the first caches and scales hold then, what they should exactly, and what their dtypes
    allow."""
    given = new | dict(zip(("k", "v", "k_scale", "v_scale"), caches, strict=False))
    arrays = {name: (other_layout if name == "v" else packed)(decode, x) for name, x in given.items()}
    getattr(decode, op)(**arrays, slots=packed(decode, SLOTS), **options)
    actual = tuple(arrays[name].numpy() for name in ("k", "v", "k_scale", "v_scale")[:written])
    return actual, *(function(**given, slots=SLOTS, **options) for function in references(op))


@pytest.mark.parametrize("head_dim, dtype", ((64, FP16), (40, FP16), (64, FP32)), ids=str)
def test_append(decode: Bundle, head_dim: int, dtype: np.dtype):
    caches = filled((*CACHE, head_dim), np.nan, dtype)
    new = {name: x.astype(dtype) for name, x in new_tokens(0, head_dim).items()}
    actual, _, same = run_append(decode, "append_kv", new, caches)
    for found, wanted in zip(actual, same, strict=True):
        assert np.array_equal(found, wanted, equal_nan=True)
        assert np.isfinite(found).sum() == 4 * 3 * head_dim


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("pairs", (32, 8))
def test_append_rotated(decode: Bundle, pairs: int, interleaved: bool):
    options = angles(50, pairs) | {"positions": np.array([0, 49, 3, 7, 20, 1, 2], np.int32), "interleaved": interleaved}
    for results in zip(
        *run_append(decode, "append_kv", new_tokens(1), filled((*CACHE, 64), 0, FP16), **options), strict=True
    ):
        assert_close(*results, 1e-7)


@pytest.mark.parametrize("interleaved", (False, True))
def test_append_rotated_by_element(decode: Bundle, interleaved: bool):
    options = angles(50, 2 * 8) | {"positions": np.array([0, 49, 3, 7, 20, 1, 2], np.int32)}
    options |= {"interleaved": interleaved, "by_element": True}
    results = run_append(decode, "append_kv", new_tokens(1), filled((*CACHE, 64), 0, FP16), **options)
    for found, wanted, like in zip(*results, strict=True):
        assert_close(found, wanted, like, 1e-7)


@pytest.mark.parametrize("head_dim, pairs, interleaved", ((64, 32, False), (128, 16, True), (40, 20, False)), ids=str)
@pytest.mark.parametrize("cache", ("", "e4m3", "int8"))
def test_append_with_queries(decode: Bundle, head_dim: int, pairs: int, interleaved: bool, cache: str):
    """Queries are rotated in the launch, those of tokens without a slot too; indices of 64 bits are taken."""
    rng = np.random.default_rng(3)
    dtype = eight_bits(decode, cache) if cache else FP16
    q, positions = normal(rng, len(SLOTS), 9, head_dim), np.array([0, 49, 3, 7, 20, 1, 2])
    caches, options = filled((*CACHE, head_dim), 0, dtype), angles(50, pairs) | {"interleaved": interleaved, "q": q}
    given = new_tokens(1, head_dim) | dict(zip("kv", caches, strict=True)) | options | {"positions": positions}
    if cache:
        given |= {name: rng.uniform(0.01, 0.03, (1, 1, 3)).astype(FP32) for name in ("k_scale", "v_scale")}
        given |= {"q_scale": rng.uniform(0.01, 0.03, 9).astype(FP32), "quantise_q": True}
    arrays = {name: packed(decode, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    queries = into_poison(
        decode, q.shape, dtype,
        lambda out: decode.append_kv(
            **arrays, slots=packed(decode, SLOTS.astype(np.int64)), **{"q_quantised" if cache else "q_out": out}
        ),
    )  # fmt: skip
    actual = arrays["k"].numpy(), arrays["v"].numpy(), queries
    exact, same = (function(**given, slots=SLOTS) for function in references("append_kv"))
    for found, wanted, like in zip(actual, exact, same, strict=True):
        assert np.array_equal(found, like) if cache else assert_close(found, wanted, like, 1e-7) is None


def test_queries_without_a_scale_saturate(decode: Bundle):
    new, caches = new_tokens(1), filled((*CACHE, 64), 0, INT8)
    scales = {name: np.ones((1, 1, 1), FP32) for name in ("k_scale", "v_scale")}
    found = decode.append_kv(**new, **dict(zip("kv", caches, strict=True)), slots=np.arange(7), **scales,
                             q=300 * new["k_new"], quantise_q=True)  # fmt: skip
    wanted = np.clip(np.rint((300 * new["k_new"]).astype(FP32)), -127, 127)
    assert np.array_equal(found, wanted) and np.abs(wanted).max() == 127


def test_a_position_past_the_table_reads_nothing_past_it(decode: Bundle):
    positions = np.array([4, -1, 2**31 - 1, 0, -(2**31), 3, 3], np.int32)
    caches = dict(zip("kv", (packed(decode, x) for x in filled((*CACHE, 64), 0, FP16)), strict=True))
    given = {name: packed(decode, x) for name, x in (new_tokens(1) | {"slots": SLOTS}).items()}
    decode.append_kv(**given, **caches, **angles(4, 8), positions=positions)
    assert np.isfinite(caches["k"].numpy()).all()


@pytest.mark.parametrize("cache", ("int8", "e4m3", "e5m2"))
def test_append_of_8_bits(decode: Bundle, cache: str):
    new, caches = new_tokens(2), filled((*CACHE, 64), 0, eight_bits(decode, cache))
    # So small that some saturate.
    unit = 1.3 / float(reference.largest(caches[0].dtype))
    given = [np.random.default_rng(2).uniform(0.5 * unit, 2 * unit, (1, 1, 3)).astype(np.float32) for _ in "kv"]
    actual, _, same = run_append(decode, "append_kv", new, [*caches, *given])
    assert all(np.array_equal(found, wanted) for found, wanted in zip(actual, same, strict=True))
    new["k_new"][0, 1] = 0  # a row without a scale
    scales = filled(CACHE, np.nan, FP32)
    actual, _, same = run_append(decode, "append_kv_per_token", new, [*caches, *scales], 4)
    assert all(np.array_equal(found, wanted, equal_nan=True) for found, wanted in zip(actual, same, strict=True))
    largest = np.abs(new["k_new"][[0, 1, 3, 4]].astype(np.float32)).max(-1)
    wanted = largest / np.float32(reference.largest(caches[0].dtype))
    assert np.array_equal(actual[2].reshape(-1, CACHE[2])[SLOTS[[0, 1, 3, 4]]], wanted)


@pytest.mark.parametrize("head_dim, groups", ((64, 1), (80, 2), (48, 4), (64, 8)), ids=str)
def test_append_of_4_bits(decode: Bundle, head_dim: int, groups: int):
    new = new_tokens(3, head_dim)
    new["v_new"][3, 0], new["v_new"][3, 1] = 0.5, -0.5  # all alike
    caches = filled((*CACHE, head_dim // 2), 0, np.dtype(np.uint8)) + filled((*CACHE, groups, 2), np.nan, FP16)
    actual, _, same = run_append(decode, "append_kv_int4", new, caches, 4)
    assert all(np.array_equal(found, wanted, equal_nan=True) for found, wanted in zip(actual, same, strict=True))
    back = dequantise_int4(actual[0][0, 0], actual[2][0, 0])
    step = actual[2][0, 0, :, :, 0].astype(np.float32).repeat(head_dim // groups, -1)
    assert (np.abs(back - new["k_new"][0]) <= 0.51 * step + 2e-3).all()


def test_a_row_of_4_bits_by_hand():
    """Group 0 goes from 1 to 16 in steps of 1, group 1 from -30 to 0 in steps of 2."""
    x = np.array([1, 16, 4, 9, -30, 0, -28, -2], np.float32)
    rows, pairs = quantise_int4(x, 2)
    np.testing.assert_array_equal(pairs, np.array([[1, 1], [2, -30]], np.float16))
    np.testing.assert_array_equal(rows, [0xF0, 0x83, 0xF0, 0xE1])
    np.testing.assert_array_equal(dequantise_int4(rows, pairs), x)


@pytest.mark.parametrize("latent, rope, pairs", ((512, 64, 32), (256, 128, 16), (40, 7, 3)), ids=str)
@pytest.mark.parametrize("cache", ("", "e4m3", "int8"))
@pytest.mark.parametrize("normed", (False, True))
def test_append_of_latent_vectors(decode: Bundle, latent: int, rope: int, pairs: int, cache: str, normed: bool):
    """Vectors are normed, keys rotated and joined to them, and so are queries."""
    rng, tokens = np.random.default_rng(5), len(SLOTS)
    dtype = eight_bits(decode, cache) if cache else BF16
    shapes = {"c": (tokens, latent), "k_pe": (tokens, rope), "q_latent": (tokens, 9, latent), "q_pe": (tokens, 9, rope)}
    given = {name: normal(rng, *shape, dtype=BF16) for name, shape in shapes.items()} | angles(50, pairs)
    given |= {"cache": np.zeros((5, 16, latent + rope), dtype), "positions": np.array([0, 49, 3, 7, 20, 1, 2])}
    given |= {"weight": normal(rng, latent, dtype=BF16)} if normed else {}
    options = {"eps": 1e-6, "interleaved": normed} | ({"quantise_q": True} if cache else {})
    if cache:
        given |= {"scale": np.array([0.02], FP32), "q_scale": rng.uniform(0.01, 0.03, 9).astype(FP32)}
    arrays = {name: (poisoned if name == "cache" else packed)(decode, x) for name, x in given.items()}
    queries = into_poison(
        decode, (tokens, 9, latent + rope), dtype,
        lambda out: decode.append_latent(
            **arrays, slots=packed(decode, SLOTS), **options, **{"q_quantised" if cache else "q_out": out}
        ),
    )  # fmt: skip
    exact, same = (function(**given, slots=SLOTS, **options) for function in references("append_latent"))
    for found, wanted, like in zip((arrays["cache"].numpy(), queries), exact, same, strict=True):
        if cache:  # a norm may be another in the last place
            step = np.abs(found.astype(FP32) - like.astype(FP32)) / np.maximum(np.abs(like.astype(FP32)), 1)
            assert step.max() <= (0.125 if cache == "e4m3" else 1) * normed and (step > 0).mean() < 0.001
        else:
            assert_close(found, wanted, like, 1e-6)


@pytest.mark.parametrize("head_dim", (80, 256))
@pytest.mark.parametrize("cache", ("float16", "e4m3"))
def test_append_in_pieces(decode: Bundle, head_dim: int, cache: str):
    dtype = FP16 if cache == "float16" else eight_bits(decode, cache)
    pack, heads_kv = 16 // dtype.itemsize, CACHE[2]
    shapes = {"k": (5, heads_kv, head_dim // pack, 16, pack), "v": (5, heads_kv, 16 // pack, head_dim, pack)}
    given = new_tokens(7, head_dim) | angles(50, 8) | {"positions": np.array([0, 49, 3, 7, 20, 1, 2])}
    given |= {name: np.zeros(shape, dtype) for name, shape in shapes.items()}
    if cache != "float16":
        given |= {name: np.full((1, 1, 1), 0.01, FP32) for name in ("k_scale", "v_scale")}
    arrays = {name: packed(decode, x) for name, x in given.items()}
    v = poisoned(decode, given["v"].transpose(0, 1, 3, 2, 4)).transpose(0, 1, 3, 2, 4)
    decode.append_kv_pieces(**arrays | {"v": v}, slots=packed(decode, SLOTS))
    exact, same = (function(**given, slots=SLOTS) for function in references("append_kv_pieces"))
    for found, wanted, like in zip((arrays["k"].numpy(), v.numpy()), exact, same, strict=True):
        assert np.array_equal(found, like) if cache == "e4m3" else assert_close(found, wanted, like, 1e-7) is None
        assert np.count_nonzero(found) > 0.9 * 4 * heads_kv * head_dim


@pytest.mark.parametrize("dtype, shape", ((FP16, (16, 3, 40)), (BF16, (64, 8, 128)), (INT8, (8, 1, 4))), ids=str)
def test_copies_of_blocks(decode: Bundle, dtype: np.dtype, shape: tuple[int, ...]):
    """Between caches, and within one; a pair with a block that does not exist is left out."""
    rng = np.random.default_rng(1)
    x, out = (rng.integers(-99, 99, (blocks, *shape)).astype(dtype) for blocks in (6, 5))
    words_x, words_out = (array.reshape(len(array), -1).view(np.int32) for array in (x, out))
    pairs = np.array([[5, 1], [0, 4], [-1, 2], [6, 3], [2, 5]])
    cache = poisoned(decode, words_out)
    decode.copy_blocks(poisoned(decode, words_x), cache, decode.device.array(pairs))
    expected = out.copy()
    expected[[1, 4]] = x[[5, 0]]
    assert np.array_equal(cache.numpy(), expected.reshape(5, -1).view(np.int32))
    decode.copy_blocks(cache, cache, decode.device.array(np.array([[1, 0], [3, 2]], np.int32)))
    expected[[0, 2]] = expected[[1, 3]]
    assert np.array_equal(cache.numpy(), expected.reshape(5, -1).view(np.int32))
