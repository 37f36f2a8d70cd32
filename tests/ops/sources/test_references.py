"""The references themselves: against naive loops, results known in closed form, and the rule that uses them."""

import math

import ml_dtypes
import numpy as np
import pytest

from kernels.attention.reference import attention, attention_same_dtype
from kernels.rows.reference import softmax, softmax_same_dtype
from kernels.tolerance import assert_close

DTYPES = [np.float16, ml_dtypes.bfloat16]


def naive_attention(q, k, v, scale, causal):
    """One score at a time, in Python floats."""
    batch, heads, seqlen_q, _ = q.shape
    heads_kv, seqlen_k = k.shape[1:3]
    out, lse = np.zeros(q.shape), np.full(q.shape[:3], -np.inf)
    for b, h, i in np.ndindex(batch, heads, seqlen_q):
        g = h * heads_kv // heads
        keys = [j for j in range(seqlen_k) if not causal or seqlen_k - j >= seqlen_q - i]
        weights = {j: math.exp(scale * dot(q[b, h, i], k[b, g, j])) for j in keys}
        if keys:
            total = math.fsum(weights.values())
            lse[b, h, i] = math.log(total)
            out[b, h, i] = [math.fsum(w * float(v[b, g, j, d]) for j, w in weights.items()) / total for d in range(5)]
    return out, lse


def dot(a, b):
    return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def random_qkv(seqlen_q, seqlen_k, heads=1, heads_kv=1, dtype=np.float16):
    rng = np.random.default_rng(0)
    shapes = [(2, heads, seqlen_q, 5), (2, heads_kv, seqlen_k, 5), (2, heads_kv, seqlen_k, 5)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(4, 4), (3, 7), (7, 3), (1, 5), (5, 1), (1, 1)])
@pytest.mark.parametrize(("heads", "heads_kv"), [(1, 1), (4, 2), (3, 1)])
def test_attention_matches_naive_loops(dtype, causal, seqlen_q, seqlen_k, heads, heads_kv):
    q, k, v = random_qkv(seqlen_q, seqlen_k, heads, heads_kv, dtype)
    out, lse = attention(q, k, v, scale=0.7, causal=causal, return_lse=True)
    naive_out, naive_lse = naive_attention(q, k, v, 0.7, causal)
    assert out.dtype == lse.dtype == np.float64
    np.testing.assert_allclose(out, naive_out, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(lse, naive_lse, rtol=1e-12, atol=1e-14)


def test_attention_survives_scores_beyond_exp():
    q, k, v = random_qkv(4, 6)
    out, lse = attention(q, k, v, scale=5000.0, return_lse=True)
    best = np.argmax(q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3), 3)
    np.testing.assert_array_equal(out, np.take_along_axis(v, best[..., None], 2))
    assert np.isfinite(lse).all()


@pytest.mark.parametrize("function", [attention, attention_same_dtype])
def test_rows_without_a_key_are_zero_and_minus_infinity(function):
    q, k, v = random_qkv(5, 2)
    out, lse = function(q, k, v, scale=1.0, causal=True, return_lse=True)
    assert (out[:, :, :3] == 0).all() and np.isneginf(lse[:, :, :3]).all()
    assert (out[:, :, 3:] != 0).all() and np.isfinite(lse[:, :, 3:]).all()
    np.testing.assert_array_equal(out[:, :, 3], v[:, :, 0])  # the first row to see a key sees only that one


def test_equal_scores_average_the_values():
    q, k, v = random_qkv(3, 8)
    out, lse = attention(np.zeros_like(q), k, v, scale=1.0, return_lse=True)
    np.testing.assert_allclose(out, np.broadcast_to(v.astype(float).mean(2, keepdims=True), out.shape), rtol=1e-13)
    np.testing.assert_allclose(lse, math.log(8), rtol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_dtype_attention_errs_as_its_dtype_does(dtype):
    q, k, v = random_qkv(40, 50, dtype=dtype)
    out, lse = attention_same_dtype(q, k, v, scale=0.5, return_lse=True)
    exact, exact_lse = attention(q, k, v, scale=0.5, return_lse=True)
    error = np.abs(out.astype(float) - exact).max()
    resolution = float(ml_dtypes.finfo(dtype).eps)
    assert out.dtype == dtype and lse.dtype == np.float32
    assert resolution / 16 < error < 2 * resolution, "neither exact nor careless"
    assert 0 < np.abs(lse - exact_lse).max() < 1e-5


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="heads = 3 is not a multiple of heads_kv = 2"):
        attention(*random_qkv(2, 2, 3, 2), scale=1.0)


def test_softmax_matches_naive_loops():
    x = (3 * np.random.default_rng(0).standard_normal((6, 31))).astype(np.float16)
    naive = [[math.exp(float(a)) / math.fsum(math.exp(float(b)) for b in row) for a in row] for row in x]
    np.testing.assert_allclose(softmax(x), naive, rtol=1e-13)


@pytest.mark.parametrize("function", [softmax, softmax_same_dtype])
def test_softmax_special_rows(function):
    x = np.array([[1000, 1000], [-np.inf, 0], [-np.inf, -np.inf], [np.inf, 0], [np.nan, 0]], np.float32)
    expected = [[0.5, 0.5], [0, 1]] + 3 * [[np.nan, np.nan]]
    np.testing.assert_array_equal(function(x), expected)


@pytest.mark.parametrize("dtype", [*DTYPES, np.float32])
def test_same_dtype_softmax_errs_as_its_dtype_does(dtype):
    x = np.random.default_rng(0).standard_normal((20, 64)).astype(dtype)
    result = softmax_same_dtype(x)
    error = np.abs(result.astype(float) / softmax(x) - 1).max()
    resolution = float(ml_dtypes.finfo(dtype).eps)
    assert result.dtype == dtype and resolution / 8 < error < 8 * resolution


class TestAssertClose:
    exact = np.array([1.0, 2.0, 3.0])
    same = np.array([1.0, 2.5, 3.0])

    def test_accepts_twice_the_error_of_the_same_dtype(self):
        assert_close(self.exact + np.array([1, -1, 1]), self.exact, self.same, 0.0)

    def test_accepts_the_floor_on_top(self):
        assert_close(self.exact + 0.25, self.exact, self.exact, 0.25)

    def test_refuses_more_and_says_where(self):
        message = r"out: max error 1.250e\+00 > 1.000e\+00 .*first at \(2,\).*1 of 3 elements"
        with pytest.raises(AssertionError, match=message):
            assert_close(self.exact + np.array([0, 0, 1.25]), self.exact, self.same, 0.0, "out")

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_refuses_what_is_not_finite(self, bad):
        with pytest.raises(AssertionError, match=r"first at \(1,\)"):
            assert_close(np.array([1, bad, 3]), self.exact, self.same, 1e9)

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_refuses_a_reference_that_would_pass_anything(self, bad):
        with pytest.raises(AssertionError, match="same-dtype reference is itself not finite"):
            assert_close(self.exact, self.exact, np.array([1, bad, 3]), 0.0)

    @pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
    def test_infinities_and_nans_have_to_be_the_same(self, special):
        exact = np.array([1.0, special])
        assert_close(exact, exact, exact, 0.0)
        for other in {0.0, 1e30, np.inf, -np.inf, np.nan} - {special}:
            if not (np.isnan(other) and np.isnan(special)):
                with pytest.raises(AssertionError, match=r"first at \(1,\)"):
                    assert_close(np.array([1.0, other]), exact, exact, 1e9)

    def test_refuses_other_shapes(self):
        with pytest.raises(AssertionError, match="shape"):
            assert_close(self.exact[:2], self.exact, self.same, 1.0)

    def test_accepts_nothing_at_all(self):
        assert_close(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros((0, 3)), 0.0)

    def test_reads_bfloat16(self):
        low = self.exact.astype(ml_dtypes.bfloat16)
        assert_close(low, self.exact, low, 0.0)
