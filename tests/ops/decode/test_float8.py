"""Float8 queries and results over caches of float8, and factors of results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle
from kernels.rows.reference import largest
from tests.ops.decode.cases import check, check_paged, normal, packed, paged, pieces
from tests.ops.decode.test_masks import LENGTHS, SINKS, draw_mask
from tests.support.dtypes import BF16, FP16, eight_bits
from tests.support.poison import poisoned

pytestmark = pytest.mark.sampled(3)


def factors(rng: np.random.Generator, batch: int, heads_kv: int) -> dict[str, np.ndarray]:
    """Draw q_scale, k_scale and v_scale by sequence and key head, by one of these, or of all; each may be left out."""
    drawn: dict[str, np.ndarray] = {}
    for name in ("q_scale", "k_scale", "v_scale"):
        if rng.random() < 0.8:
            shape = int(rng.choice([1, batch])), int(rng.choice([1, heads_kv]))
            drawn[name] = rng.uniform(0.02, 0.2, shape).astype(np.float32)
    return drawn


@pytest.mark.parametrize("seed", range(12))
def test_float8_queries(decode: Bundle, seed: int):
    rng = np.random.default_rng(seed)
    heads, head_dim = (4, int(rng.choice([1, 2, 4]))), int(rng.choice([64, 128, 96, 40, 256]))
    float8 = eight_bits(decode, "e4m3")
    case = paged(LENGTHS, int(rng.choice([16, 17, 64])), heads, head_dim, float8)
    sinks = {"sinks": SINKS} if rng.random() < 0.3 else {}
    check_paged(
        decode, case, "paged_attention_fp8", out_dtype=(FP16, BF16)[seed % 2], num_splits=int(rng.choice([1, 3])),
        **factors(rng, len(LENGTHS), heads[1]), **sinks, **draw_mask(rng),
    )  # fmt: skip


@pytest.mark.parametrize("head_dim, block_size, splits", ((128, 16, 1), (256, 48, 2), (80, 64, 3)), ids=str)
def test_float8_queries_over_pieces(decode: Bundle, head_dim: int, block_size: int, splits: int):
    rng = np.random.default_rng(head_dim)
    case = paged(LENGTHS, block_size, (4, 2), head_dim, eight_bits(decode, "e4m3"))
    inputs = vars(case) | pieces(case.k, case.v) | factors(rng, len(LENGTHS), 2)
    places, kind = dict.fromkeys("kv", poisoned), (FP16, BF16)[splits % 2]
    check(decode, "paged_attention_fp8_pieces", inputs, places, out_dtype=kind, num_splits=splits, **case.longest)


@pytest.mark.parametrize("splits", (1, 3))
@pytest.mark.parametrize("head_dim", (64, 72))
@pytest.mark.parametrize("queries", ("float8", FP16, BF16), ids=str)
def test_float8_results(decode: Bundle, queries: Any, head_dim: int, splits: int):
    """The largest results do not saturate, and are not much smaller."""
    float8 = eight_bits(decode, "e4m3")
    case = paged(LENGTHS, 16, (4, 2), head_dim, float8 if queries == "float8" else queries, cache=float8)
    scale = {"out_scale": np.array([0.5], np.float32), "v_scale": np.array([[0.7, 1.1]], np.float32)}
    check_paged(decode, case, "paged_attention_fp8", out_dtype=float8, num_splits=splits, scale=0.02, **scale)


@pytest.mark.parametrize("splits", (1, 3))
def test_float8_results_saturate(decode: Bundle, splits: int):
    float8 = eight_bits(decode, "e4m3")
    case = paged([(1, 20), (2, 40)], 16, cache=float8)
    arrays = {name: packed(decode, x) for name, x in vars(case).items()}
    arrays |= {
        "out_scale": packed(decode, np.array([1e-6], np.float32)),
        "out": packed(decode, np.zeros_like(case.q, float8)),
    }
    decode.paged_attention_fp8(**arrays, max_seqlen_q=2, num_splits=splits)
    assert (np.abs(arrays["out"].numpy().astype(np.float32)) == largest(float8)).mean() > 0.9


@pytest.mark.parametrize("splits", (1, 3))
def test_factor_of_the_result(decode: Bundle, splits: int):
    check_paged(decode, paged(LENGTHS, 16), num_splits=splits, out_factor=-3.5, sinks=SINKS)
    rng = np.random.default_rng(splits)
    inputs = {name: normal(rng, 2, heads, rows, 64) for name, heads, rows in (("q", 4, 3), ("k", 2, 90), ("v", 2, 90))}
    check(decode, "flash_decode", inputs, num_splits=splits, out_factor=0.3)


def test_queries_of_16_bits_to_results_of_16_bits_are_those_of_another_op(decode: Bundle):
    case = paged([(1, 20)], 16, cache=eight_bits(decode, "e4m3"))
    with pytest.raises(ArgumentError, match="paged_attention_fp8"):
        decode.paged_attention_fp8(**vars(case), out=np.zeros(case.q.shape, FP16))
