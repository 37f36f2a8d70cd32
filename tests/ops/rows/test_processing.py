"""Processing of logits, counts of tokens, and log probabilities of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.rows import processing_reference as reference
from tests.ops.rows.checking import check, normal
from tests.support.dtypes import BF16, FP16, FP32
from tests.support.poison import poisoned

pytestmark = pytest.mark.sampled(1)

DTYPES = (FP32, BF16, FP16)
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
IN_PROMPT = 2**30


def counts_of(rng: np.random.Generator, capacity: int, cols: int) -> np.ndarray:
    """Draw counts: most tokens were never there; some are in the prompt, generated, or both."""
    times = rng.integers(1, 5, (capacity, cols)) * (rng.random((capacity, cols)) < 0.3)
    return (times + IN_PROMPT * (rng.random((capacity, cols)) < 0.3)).astype(np.int32)


def given(cols: int, dtype: np.dtype, names: tuple[str, ...]) -> dict[str, Any]:
    """Make six rows, whose sequences are in any order; some have none."""
    rng = np.random.default_rng(cols)
    bias = normal(rng, (6, cols), FP32, 3)
    bias[2, cols // 2] = -np.inf
    every = {
        "bias": bias, "counts": counts_of(rng, 7, cols), "sequences": np.array([6, 0, -1, 3, 7, 3], np.int32),
        "repetition_penalty": rng.uniform(0.5, 2, 6), "presence_penalty": rng.uniform(-2, 2, 6),
        "frequency_penalty": rng.uniform(-2, 2, 6),
    }  # fmt: skip
    return {"logits": normal(rng, (6, cols), dtype, 10)} | {
        name: every[name].astype(FP32) if name in PENALTIES else every[name] for name in names
    }


ALL = ("bias", "counts", "sequences", *PENALTIES)


@pytest.mark.parametrize(
    "names", (ALL, (), ("bias",), *(("counts", name) for name in PENALTIES), ("counts", *PENALTIES)), ids="-".join
)
@pytest.mark.parametrize("softcap", (30.0, 0.0))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", (1000, 1, 2064, 5001))
def test_process_logits(rows: Bundle, cols: int, dtype: np.dtype, softcap: float, names: tuple[str, ...]):
    """Calls ask for any part of it, in place too."""
    call = given(cols, dtype, names) | {"softcap": softcap}
    result = check(rows, "process_logits", floor=2e-5, **call)
    placed = poisoned(rows, call["logits"])
    rows.process_logits(**call | {"logits": placed}, out=placed)
    assert np.array_equal(placed.numpy(), result)


def test_penalties_are_those_of_their_definitions(rows: Bundle):
    """The penalties of a token of the prompt, one generated twice, both, and a new one are computed by hand, for logits
    above 0 and below."""
    logits = np.array([[2, 2, 2, 2, -2, -2, -2, -2]], np.float32)
    counts = np.tile(np.array([IN_PROMPT, 2, IN_PROMPT + 2, 0], np.int32), 2)[None]
    penalties = dict(zip(PENALTIES, (np.array([x], np.float32) for x in (4, 0.25, 0.5)), strict=True))
    found = rows.process_logits(logits, counts=counts, **penalties)
    assert found.tolist() == [[0.5, 0.5 - 1.25, 0.5 - 1.25, 2, -8, -8 - 1.25, -8 - 1.25, -2]]


def test_nothing_exceeds_the_cap(rows: Bundle):
    logits = np.array([[0, 1e-3, 30, -60, 1e30, -3e38, np.inf, -np.inf, np.nan]], np.float32)
    wanted = [[0, 1e-3, 30 * np.tanh(1), -30 * np.tanh(2), 30, -30, 30, -30, np.nan]]
    assert np.allclose(rows.process_logits(logits, softcap=30.0), wanted, rtol=1e-6, atol=3e-6, equal_nan=True)


@pytest.mark.parametrize("n, capacity, cols", ((1000, 5, 37), (3, 3, 37)))
@pytest.mark.parametrize("prompt", (False, True))
@pytest.mark.parametrize("indexed", (True, False))
def test_count_tokens(rows: Bundle, indexed: bool, prompt: bool, n: int, capacity: int, cols: int):
    """Equal ones are all counted; tokens outside of the counts are left out."""
    rng = np.random.default_rng(n)
    tokens, sequences = (rng.integers(-1, limit + 1, n).astype(np.int32) for limit in (cols, capacity))
    counts, more = counts_of(rng, capacity, cols), {"sequences": sequences} if indexed else {}
    placed = poisoned(rows, counts)
    rows.count_tokens(poisoned(rows, tokens), placed, prompt=prompt, **more)
    assert np.array_equal(placed.numpy(), reference.count_tokens(tokens, counts, prompt=prompt, **more))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", (1000, 1, 3, 4096, 32000, 20001))
def test_token_logprobs(rows: Bundle, cols: int, dtype: np.dtype):
    """Tokens outside of the vocabulary get -inf."""
    rng = np.random.default_rng(cols)
    logits, tokens = normal(rng, (6, cols), dtype, 5), rng.integers(0, cols, 6).astype(np.int32)
    tokens[:3] = -1, cols, cols - 1
    found = check(rows, "token_logprobs", floor=1e-5, shape=(6,), dtype=FP32, logits=logits, tokens=tokens)
    assert np.isneginf(found[:2]).all()


@pytest.mark.slow
def test_token_logprobs_of_special_rows(rows: Bundle):
    logits = np.array([[1000, 1000], [-np.inf, 0], [0, -np.inf], [-np.inf] * 2, [np.inf, 0], [np.nan, 0]], np.float32)
    found = rows.token_logprobs(logits, np.ones(6, np.int32))
    np.testing.assert_allclose(found, [-np.log(2), 0, -np.inf, np.nan, np.nan, np.nan], rtol=1e-6)
