"""Choosing tokens: the largest logit, or one at random."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.rows import reference
from tests.ops.rows.checking import check_sample, normal, parameters
from tests.support.dtypes import BF16, FP16, FP32
from tests.support.poison import poisoned

pytestmark = pytest.mark.sampled(1)

DTYPES = (BF16, FP16, FP32)
VOCABULARIES = (1, 3, 127, 1000, 4096, 32000, 131072, 20000)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", VOCABULARIES)
def test_argmax(rows: Bundle, cols: int, dtype: np.dtype):
    """Many bfloat16 logits are equal, and the first wins."""
    x = normal(np.random.default_rng(cols), (5, cols), dtype)
    assert np.array_equal(rows.argmax(poisoned(rows, x)).numpy(), reference.argmax(x))


@pytest.mark.parametrize("cols", (40, 9000))
def test_argmax_of_special_values(rows: Bundle, cols: int):
    x = np.full((7, cols), -np.inf, np.float32)
    x[1:] = -3
    x[1, 20:] = -2  # the first of equal ones
    x[2, [30, 35]] = np.inf
    x[3, [30, 35]] = np.inf, -np.nan
    x[4] = -0.0
    x[4, 7] = 0.0  # equal to those before it
    x[5, 39] = 1e-45
    x[6, [3, cols - 1]] = np.nan
    assert rows.argmax(x).tolist() == [0, 20, 30, 35, 0, 39, 3]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", VOCABULARIES)
def test_sample(rows: Bundle, cols: int, dtype: np.dtype):
    rng = np.random.default_rng(cols)
    x = normal(rng, (6, cols), dtype, 3)
    assert np.array_equal(check_sample(rows, x, parameters(rng, 6))[1:4], reference.argmax(x)[1:4])


@pytest.mark.parametrize(
    "limits", (("top_k", "top_p", "min_p"), ("top_k", "top_p"), ("top_k",), ("top_p",), ("min_p",)), ids=str
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", (1000, 3, 32000, 100))
def test_limits(rows: Bundle, cols: int, dtype: np.dtype, limits: tuple[str, ...]):
    """Limits apply together or alone, and one may keep a single logit."""
    rng = np.random.default_rng(cols)
    x, given = normal(rng, (8, cols), dtype, 3), parameters(rng, 8)
    top_k, top_p = (0, 2, 40, 40, 1, cols, 2**31 - 1, 500), (0.9, 0.99, 1, 0.5, 1, 0.95, 1, 0.0)
    every = {"top_k": np.array(top_k, np.int32), "top_p": np.array(top_p, np.float32)}
    every["min_p"] = np.array((0, 0.1, 0.1, 0.05, 0.3, 0.02, 1, 0.2), np.float32)
    tokens = check_sample(rows, x, given | {name: every[name] for name in limits})
    assert np.array_equal(tokens[1:4], reference.argmax(x)[1:4])
    assert "top_k" not in limits or tokens[4] == reference.argmax(x)[4]
    assert "min_p" not in limits or tokens[6] == reference.argmax(x)[6]


def test_the_kept_set_is_exact(rows: Bundle):
    """Over many seeds exactly the kept columns are drawn.

    Equal logits are kept together. The largest are at the ends, which a pass over all columns has to count, too.
    """
    draws, different = 12, np.random.default_rng(0).permutation(100).astype(np.float32) / 100
    different[[0, -1]] = 1.01, 1.02
    equal = np.full(100, -np.inf, np.float32)
    equal[:6] = (2, 1, 2, 0, 2, 1.5)
    order = np.argsort(-different)
    largest, first, third, fourth = set(order[:3].tolist()), *different[order[[0, 2, 3]]]
    x = np.repeat(np.stack([different, different, equal, different]), draws, 0)
    given = {"temperature": np.ones(1, np.float32), "seeds": np.arange(len(x)), "positions": np.zeros(len(x), np.int32)}
    limits = {"top_k": np.array([3, 0, 2, 0], np.int32), "top_p": np.array([1, 0.04, 0.1, 1], np.float32)}
    limits["min_p"] = np.array([0, 0, 0, np.exp((third + fourth) / 2 - first)], np.float32)
    tokens = rows.sample(x, **given, **{name: np.repeat(values, draws) for name, values in limits.items()})
    assert [set(drawn.tolist()) for drawn in tokens.reshape(4, draws)] == [largest, largest, {0, 2, 4}, largest]


def test_nan_and_infinity_are_chosen(rows: Bundle):
    rng = np.random.default_rng(0)
    x, given = normal(rng, (3, 500), FP32), parameters(rng, 3)
    x[0, 400], x[1, 300], x[2] = np.nan, np.inf, -np.inf
    x[2, 7] = 0
    limits = {"top_k": np.array([7], np.int32), "top_p": np.array([0.5], np.float32), "min_p": np.ones(1, np.float32)}
    for more in ({}, limits):
        assert rows.sample(x, **given, **more).tolist() == [400, 300, 7]


def test_a_captured_step_draws_anew(rows: Bundle):
    """Positions in device memory change from step to step, and select other random numbers of the same seeds."""
    rng, device = np.random.default_rng(0), rows.device
    x, given = normal(rng, (6, 100), FP32), parameters(rng, 6)
    logits, arrays = device.array(x), {name: device.array(value) for name, value in given.items()}
    out, stream = device.empty((6,), np.int32), device.stream()
    rows.sample(logits, **arrays, out=out, stream=stream)  # loads the code and makes the workspace
    stream.synchronize()
    with device.capture(stream) as graph:
        rows.sample(logits, **arrays, out=out, stream=stream)
    drawn = []
    for step in range(3):
        given["positions"] = np.full(6, step, np.int32)
        arrays["positions"].copy_from(given["positions"])
        graph.launch(stream)
        stream.synchronize()
        drawn.append(out.numpy())
        assert np.array_equal(drawn[-1], check_sample(rows, x, given))
    assert len({tuple(tokens) for tokens in drawn}) == 3


# The reference, to which kernels are held


@pytest.mark.parametrize("varied", ("seeds", "positions"))
def test_frequencies_are_the_probabilities(varied: str):
    """A chi-squared test compares them."""
    draws, x = 2048, np.array([0, 0.7, 1.1, 2.3, -0.7, 3.4, -np.inf, 1.6], np.float32)
    probabilities = np.exp(x.astype(np.float64) / 0.7)
    expected = draws * probabilities / probabilities.sum()
    given = {"seeds": np.full(draws, 5), "positions": np.zeros(draws, np.int64)} | {varied: np.arange(draws)}
    tokens = reference.sample(np.repeat(x[None], draws, 0), np.array([0.7], np.float32), **given)
    counts = np.bincount(tokens, minlength=8)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert ((counts - expected)[possible] ** 2 / expected[possible]).sum() < 24.3  # 0.1 % of 6 degrees of freedom


def test_philox_has_the_known_numbers():
    """Philox agrees with the test vectors that its authors publish."""
    zeros, ones = (tuple(np.full(1, word, np.uint64) for _ in range(4)) for word in (0, 2**32 - 1))
    assert [int(word[0]) for word in reference.philox(zeros, 0)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    found = [int(word[0]) for word in reference.philox(ones, 2**64 - 1)]
    assert found == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
