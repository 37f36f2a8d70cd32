"""Merging of attention over parts of the keys."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.rows import merge_reference as reference
from kernels.tolerance import assert_close
from tests.ops.rows.checking import normal
from tests.support.dtypes import BF16, FP16, FP32
from tests.support.poison import into_poison, poisoned

pytestmark = pytest.mark.sampled(2)

FLOOR = 1e-6


def drawn(shape: tuple[int, int, int, int], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Draw states and logarithms that lie far apart; some parts saw no key, and hold NaN, as do all of one row."""
    rng = np.random.default_rng(shape)
    states, lses = normal(rng, shape, dtype), normal(rng, shape[:3], FP32, 20)
    lses[rng.random(lses.shape) < 0.2] = -np.inf
    lses[rng.random(lses.shape) < 0.1] = np.inf
    lses[0, :, 0] = -np.inf
    states[np.isinf(lses)] = np.nan
    return states, lses


def check_merged(bundle: Bundle, shape: tuple[int, int, int, int], dtype: np.dtype) -> None:
    states, lses = drawn(shape, dtype)
    lse = bundle.device.array(np.full((shape[2], shape[0] + 3), 7, FP32)).transpose(1, 0)[2:-1]  # by heads
    placed = poisoned(bundle, states), poisoned(bundle, lses)
    out_shape = (shape[0], *shape[2:])
    out = into_poison(bundle, out_shape, dtype, lambda out: bundle.merge_states(*placed, out=out, lse=lse))
    exact, same = reference.merge_states(states, lses), reference.merge_states_same_dtype(states, lses)
    assert_close(out, exact[0], same[0], FLOOR)
    assert_close(lse.numpy(), exact[1], same[1], FLOOR)


@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
@pytest.mark.parametrize("shape", ((3, 3, 9, 33), (5, 1, 2, 64), (2, 17, 16, 128), (4, 2, 3, 320)), ids=str)
def test_many_parts(rows: Bundle, shape: tuple[int, int, int, int], dtype: np.dtype):
    check_merged(rows, shape, dtype)


@pytest.mark.parametrize("masked", (True, False))
@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
@pytest.mark.parametrize("tokens, heads, head_dim", ((5, 9, 33), (3, 2, 320)))
def test_two_parts_in_place(rows: Bundle, tokens: int, heads: int, head_dim: int, dtype: np.dtype, masked: bool):
    states, lses = drawn((tokens, 2, heads, head_dim), dtype)
    parts = states[:, 0], lses[:, 0], states[:, 1], lses[:, 1]
    mask = {"mask": np.arange(tokens) % 2 == 0} if masked else {}
    a, lse_a, b, lse_b = (poisoned(rows, np.ascontiguousarray(part)) for part in parts)
    rows.merge_two_states(a, lse_a, b, lse_b, **mask, out=a, lse=lse_a)
    exact, same = (f(*parts, **mask) for f in (reference.merge_two_states, reference.merge_two_states_same_dtype))
    assert_close(a.numpy(), exact[0], same[0], FLOOR)
    assert_close(lse_a.numpy(), exact[1], same[1], FLOOR)


def test_parts_of_softmax_merge_to_the_whole():
    """The reference is exact attention over all keys."""
    rng = np.random.default_rng(0)
    scores, values = rng.standard_normal((2, 3, 8)), rng.standard_normal((2, 3, 8, 4))
    parts = [(np.exp(s), v) for s, v in zip(np.split(scores, 2, 2), np.split(values, 2, 2), strict=True)]
    means = np.stack([(p[..., None] * v).sum(2) / p.sum(2)[..., None] for p, v in parts], 1)
    out, lse = reference.merge_states(means, np.log(np.stack([p.sum(2) for p, _ in parts], 1)))
    p = np.exp(scores)
    assert np.allclose(out, (p[..., None] * values).sum(2) / p.sum(2)[..., None])
    assert np.allclose(lse, np.log(p.sum(2)))
