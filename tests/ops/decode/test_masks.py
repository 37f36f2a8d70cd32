"""Masks over all kinds of caches: windows, chunks, padding on the left; with slopes and sinks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_models.masks import pack_mask
from aot_runtime import ArgumentError, Bundle
from kernels.decode.reference import quantise_int4, shown_keys, visible_keys
from tests.ops.decode.cases import check, check_paged, normal, packed, paged
from tests.support.dtypes import BF16, FP16

pytestmark = pytest.mark.sampled(3)

LENGTHS = [(1, 130), (5, 90), (18, 18), (4, 2), (2, 0), (0, 40)]
"""(queries, keys) of sequences: some have more queries than keys."""


def draw_mask(rng: np.random.Generator) -> dict[str, Any]:
    """Draw the arguments of a mask; each is left out now and then."""
    causal = bool(rng.integers(2))
    drawn = {
        "causal": causal, "window_left": int(rng.choice([0, 1, 20, 64, 2**31 - 1])),
        "window_right": 0 if causal else int(rng.choice([0, 1, 7, 64, 2**31 - 1])),
        "attention_chunk": int(rng.choice([1, 7, 32, 64, 100, 2**31 - 1])),
    }  # fmt: skip
    return {name: value for name, value in drawn.items() if name == "causal" or rng.random() < 0.5}


def draw_first_keys(rng: np.random.Generator, keys: np.ndarray) -> dict[str, np.ndarray]:
    """Draw each sequence's first key, or none; a sequence may have nothing but padding."""
    if rng.random() < 0.5:
        return {}
    return {"first_keys": np.minimum(rng.choice([0, 1, 17, 63, 64, 70, 200], len(keys)), keys).astype(np.int32)}


def pad(cache: np.ndarray, case: Any, first_keys: np.ndarray) -> None:
    """Put NaN in a paged cache's keys before the first ones."""
    for b, first in enumerate(first_keys):
        at = np.arange(first)
        cache[case.block_tables[b, at // cache.shape[1]], at % cache.shape[1]] = np.nan


@pytest.mark.parametrize("seed", range(24))
def test_paged_attention(decode: Bundle, seed: int):
    rng = np.random.default_rng(seed)
    block_size, head_dim = int(rng.choice([16, 17, 64])), int(rng.choice([64, 128, 72]))
    case = paged(LENGTHS, block_size, (4, int(rng.choice([1, 2, 4]))), head_dim, rng.choice([FP16, BF16]))
    arrays = draw_first_keys(rng, case.seqlens_k)
    if arrays:
        pad(case.k, case, arrays["first_keys"])
        pad(case.v, case, arrays["first_keys"])
    if rng.random() < 0.5:
        arrays["alibi_slopes"] = rng.uniform(0.01, 0.5, (int(rng.choice([1, len(LENGTHS)])), 4)).astype(np.float32)
    check_paged(decode, case, num_splits=int(rng.choice([1, 3])), **arrays, **draw_mask(rng))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(8))
def test_chunks_of_prompts(decode: Bundle, seed: int):
    rng = np.random.default_rng(seed)
    case = paged([(100, 150), (70, 70), (1, 200)], 64)
    check_paged(decode, case, num_splits=1, **draw_first_keys(rng, case.seqlens_k), **draw_mask(rng))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(12))
def test_flash_decode(decode: Bundle, seed: int):
    rng = np.random.default_rng(seed)
    inputs = {"q": normal(rng, 2, 4, int(rng.choice([1, 5, 20])), 64)}
    inputs |= {name: normal(rng, 2, 2, 150, 64) for name in "kv"}
    lengths = np.array([150, 73], np.int32)
    inputs |= draw_first_keys(rng, lengths)
    for b, first in enumerate(inputs.get("first_keys", ())):
        inputs["k"][b, :, :first] = inputs["v"][b, :, :first] = np.nan
    check(decode, "flash_decode", inputs | {"seqlens_k": lengths}, num_splits=int(rng.choice([1, 3])), **draw_mask(rng))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(8))
def test_caches_of_4_bits(decode: Bundle, seed: int):
    rng = np.random.default_rng(seed)
    k, k_scale, v, v_scale = (x for _ in "kv" for x in quantise_int4(normal(rng, 2, 2, 150, 64), 4))
    inputs = {"q": normal(rng, 2, 4, 5, 64), "k": k, "v": v, "k_scale": k_scale, "v_scale": v_scale}
    inputs["seqlens_k"] = np.array([150, 73], np.int32)
    inputs |= draw_first_keys(rng, inputs["seqlens_k"])
    check(decode, "flash_decode_int4", inputs, dict.fromkeys("qkv", packed), num_splits=2, **draw_mask(rng))
    tables = {
        "block_tables": np.array([[1], [0]], np.int32), "cu_seqlens_q": np.array([0, 2, 5], np.int32),
        "seqlens_k": inputs["seqlens_k"], "q": normal(rng, 5, 4, 64),
    }  # fmt: skip
    by_token = {name: np.ascontiguousarray(inputs[name].swapaxes(1, 2)) for name in ("k", "v", "k_scale", "v_scale")}
    slopes = {"alibi_slopes": rng.uniform(0.01, 0.5, (2, 4)).astype(np.float32)}
    check(decode, "paged_attention_int4", tables | by_token | slopes, dict.fromkeys("kv", packed), max_seqlen_q=3,
          **draw_mask(rng))  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(12))
def test_latent_vectors(decode: Bundle, seed: int):
    rng = np.random.default_rng(seed)
    case = paged(LENGTHS, int(rng.choice([16, 64])), (int(rng.choice([3, 16])), 1), 320)
    first = draw_first_keys(rng, case.seqlens_k)
    pad(case.k, case, first.get("first_keys", ()))
    inputs = {"q": case.q, "cache": case.k[:, :, 0], **case.tables, **first}
    check(decode, "mla_decode", inputs, out_width=256, scale=0.1, num_splits=int(rng.choice([1, 3])), **case.longest,
          **draw_mask(rng))  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(12))
def test_custom_masks(decode: Bundle, seed: int):
    """Besides other masks; words past the last key are full, and keys past the last word are not seen."""
    rng = np.random.default_rng(seed)
    lengths = [(70, 200), *LENGTHS] if seed % 2 else LENGTHS
    case = paged(lengths, int(rng.choice([16, 17, 64])), (4, 2), int(rng.choice([64, 128, 256, 75])),
                 rng.choice([FP16, BF16]))  # fmt: skip
    words = -(-int(case.seqlens_k.max()) // 32) + int(rng.choice([-1, 0, 1]))
    arrays = draw_first_keys(rng, case.seqlens_k)
    arrays["custom_mask"] = pack_mask(rng.random((len(case.q), 32 * words)) < rng.choice([0.02, 0.5]))
    if rng.random() < 0.5:
        arrays |= {name: normal(rng, 250, 16, dtype=np.dtype(np.float32)) for name in ("cos", "sin")}
    check_paged(decode, case, "paged_attention_masked", num_splits=int(rng.choice([1, 3])),
                softcap=float(rng.choice([0, 20])), **arrays, **draw_mask(rng))  # fmt: skip


def test_packed_masks():
    shown = np.random.default_rng(0).random((3, 70)) < 0.5
    words = pack_mask(shown)
    assert words.dtype == np.int32 and words.shape == (3, 3)
    assert words[1, 2] & 1 << 5 == shown[1, 69] << 5
    np.testing.assert_array_equal(shown_keys(words, 70), shown)
    assert not shown_keys(words, 200)[:, 70:].any()


SINKS = np.array([3.0, -2.0, 0.0, 8.0], np.float32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("head_dim", (64, 72))
@pytest.mark.parametrize("splits", (1, 3))
def test_sinks(decode: Bundle, splits: int, head_dim: int):
    """A sequence's first queries see nothing but the sink: out is 0, lse the sink."""
    check_paged(decode, paged(LENGTHS, 16, head_dim=head_dim), num_splits=splits, sinks=SINKS)
    rng = np.random.default_rng(splits)
    inputs = {"q": normal(rng, 2, 4, 3, head_dim), "sinks": SINKS}
    inputs |= {name: normal(rng, 2, 2, 150, head_dim) for name in "kv"}
    check(decode, "flash_decode", inputs, num_splits=splits)


def test_a_right_window_beside_causal_is_refused(decode: Bundle):
    case = paged([(1, 20)], 16)
    with pytest.raises(ArgumentError, match="not causal or window_right <= 0"):
        decode.paged_attention(**vars(case), window_right=3)


def test_visible_keys_by_hand():
    """Three queries of seven keys, the first two of which are padding."""

    def seen(**mask: Any) -> list[str]:
        return ["".join("x" if shown else "." for shown in row) for row in visible_keys(3, 7, 2, **mask)]

    assert seen() == ["..xxx..", "..xxxx.", "..xxxxx"]
    assert seen(causal=False, window_right=1) == ["..xxxx.", "..xxxxx", "..xxxxx"]
    assert seen(window_left=1) == ["...xx..", "....xx.", ".....xx"]
    assert seen(causal=False, attention_chunk=2) == ["....xx.", "....xx.", "......x"]
    assert seen(attention_chunk=3) == ["..xxx..", ".....x.", ".....xx"]
