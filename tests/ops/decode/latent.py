"""Multi-head latent attention."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.decode.reference import (
    mla_decode,
    mla_decode_same_dtype,
)
from tests.ops.decode.cases import (
    FP16,
    check,
    paged,
)
from tests.support.poison import poisoned


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
