"""The reference of attention itself: against naive loops, and results known in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from kernels.attention.reference import attention, attention_same_dtype
from tests.support.dtypes import BF16, FP16

Array = np.ndarray


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(map(math.prod, zip(a, b, strict=True)))


def naive_attention(q: Array, k: Array, v: Array, scale: float, causal: bool) -> tuple[Array, Array]:
    """Compute attention by Python floats, one score at a time."""
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for b, h, i in np.ndindex(q.shape[:3]):
        g = h * k.shape[1] // q.shape[1]
        keys = [j for j in range(k.shape[2]) if not causal or k.shape[2] - j >= q.shape[2] - i]
        scores = [scale * dot(q[b, h, i].tolist(), k[b, g, j].tolist()) for j in keys]
        if keys:
            total = math.fsum(map(math.exp, scores))
            lse[b, h, i] = math.log(total)
            weights = [math.exp(score) / total for score in scores]
            out[b, h, i] = [dot(weights, column) for column in v[b, g, keys].T.tolist()]
    return out, lse


def random_qkv(q: int, k: int, heads: int = 1, heads_kv: int = 1, dtype: np.dtype = FP16) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, *shape, 5)).astype(dtype) for shape in ((heads, q), (heads_kv, k), (heads_kv, k))]


@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("lengths", ((4, 4), (3, 7), (7, 3), (1, 5), (5, 1), (1, 1)))
@pytest.mark.parametrize("heads", ((1, 1), (4, 2), (3, 1)))
def test_matches_naive_loops(heads: tuple[int, int], lengths: tuple[int, int], causal: bool, dtype: np.dtype):
    q, k, v = random_qkv(*lengths, *heads, dtype)
    results = attention(q, k, v, scale=0.7, causal=causal, return_lse=True)
    for found, naive in zip(results, naive_attention(q, k, v, 0.7, causal), strict=True):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, naive, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("function", (attention, attention_same_dtype))
def test_rows_without_a_key_are_zero_and_minus_infinity(function: Callable[..., tuple[Array, Array]]):
    q, k, v = random_qkv(5, 2)
    out, lse = function(q, k, v, scale=1.0, causal=True, return_lse=True)
    assert (out[:, :, :3] == 0).all() and np.isneginf(lse[:, :, :3]).all()
    assert (out[:, :, 3:] != 0).all() and np.isfinite(lse[:, :, 3:]).all()
    np.testing.assert_array_equal(out[:, :, 3], v[:, :, 0])  # the first row to see a key sees only that one
