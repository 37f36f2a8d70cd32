"""The reference of attention itself: against naive loops, and results known in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from kernels.attention.reference import attention, attention_same_dtype
from tests.ops.attention.calls import BFLOAT16, FLOAT16

DTYPES = (FLOAT16, BFLOAT16)


def naive_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    """One score at a time, in Python floats."""
    batch, heads, seqlen_q, width = q.shape
    heads_kv, seqlen_k = k.shape[1:3]
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for b, h, i in np.ndindex(batch, heads, seqlen_q):
        g = h * heads_kv // heads
        keys = [j for j in range(seqlen_k) if not causal or seqlen_k - j >= seqlen_q - i]
        products = {
            j: math.fsum(float(x) * float(y) for x, y in zip(q[b, h, i], k[b, g, j], strict=True)) for j in keys
        }
        weights = {j: math.exp(scale * product) for j, product in products.items()}
        if keys:
            total = math.fsum(weights.values())
            lse[b, h, i] = math.log(total)
            out[b, h, i] = [
                math.fsum(w * float(v[b, g, j, d]) for j, w in weights.items()) / total for d in range(width)
            ]
    return out, lse


def random_qkv(
    seqlen_q: int, seqlen_k: int, heads: int = 1, heads_kv: int = 1, dtype: np.dtype = FLOAT16
) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [(2, heads, seqlen_q, 5), (2, heads_kv, seqlen_k, 5), (2, heads_kv, seqlen_k, 5)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("lengths", ((4, 4), (3, 7), (7, 3), (1, 5), (5, 1), (1, 1)))
@pytest.mark.parametrize("heads", ((1, 1), (4, 2), (3, 1)))
def test_matches_naive_loops(heads: tuple[int, int], lengths: tuple[int, int], causal: bool, dtype: np.dtype):
    q, k, v = random_qkv(*lengths, *heads, dtype)
    results = attention(q, k, v, scale=0.7, causal=causal, return_lse=True)
    for found, naive in zip(results, naive_attention(q, k, v, 0.7, causal), strict=True):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, naive, rtol=1e-12, atol=1e-14)


def test_scores_beyond_exp():
    q, k, v = random_qkv(4, 6)
    out, lse = attention(q, k, v, scale=5000.0, return_lse=True)
    best = np.argmax(q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3), 3)
    np.testing.assert_array_equal(out, np.take_along_axis(v, best[..., None], 2))
    assert np.isfinite(lse).all()


@pytest.mark.parametrize("function", (attention, attention_same_dtype))
def test_rows_without_a_key_are_zero_and_minus_infinity(function: Callable[..., tuple[np.ndarray, np.ndarray]]):
    q, k, v = random_qkv(5, 2)
    out, lse = function(q, k, v, scale=1.0, causal=True, return_lse=True)
    assert (out[:, :, :3] == 0).all() and np.isneginf(lse[:, :, :3]).all()
    assert (out[:, :, 3:] != 0).all() and np.isfinite(lse[:, :, 3:]).all()
    np.testing.assert_array_equal(out[:, :, 3], v[:, :, 0])  # the first row to see a key sees only that one


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_dtype_errs_as_it_does(dtype: np.dtype):
    q, k, v = random_qkv(40, 50, dtype=dtype)
    out, lse = attention_same_dtype(q, k, v, scale=0.5, return_lse=True)
    exact, exact_lse = attention(q, k, v, scale=0.5, return_lse=True)
    resolution = float(ml_dtypes.finfo(dtype).eps)
    assert out.dtype == dtype and lse.dtype == np.float32
    assert resolution / 16 < np.abs(out.astype(float) - exact).max() < 2 * resolution, "neither exact nor careless"
    assert 0 < np.abs(lse - exact_lse).max() < 1e-5


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="heads = 3"):
        attention(*random_qkv(2, 2, 3, 2), scale=1.0)
