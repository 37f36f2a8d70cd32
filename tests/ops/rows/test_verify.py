"""Verification of drafts: accepted tokens, and their unchanged probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.rows import reference
from kernels.rows.verify_reference import verify_drafts, verify_probs
from tests.ops.rows.checking import normal
from tests.support.dtypes import BF16, FP16, FP32
from tests.support.poison import into_poison, poisoned

pytestmark = pytest.mark.sampled(1)

DTYPES = (FP32, BF16, FP16)
LIMITS = ("top_k", "top_p", "min_p")


def softmax(x: np.ndarray) -> np.ndarray:
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def given(cols: int, dtype: np.dtype, *names: str, batch: int = 12, drafts: int = 3) -> dict[str, Any]:
    """Make drafts of a model like the one that verifies them. One is at temperature 0, and some rows have fewer
    drafts."""
    rng = np.random.default_rng(cols)
    logits = normal(rng, (batch, drafts + 1, cols), dtype, 2)
    temperature = rng.uniform(0.3, 1.5, batch).astype(np.float32)
    temperature[1] = 0
    noisy = logits[:, :-1].astype(np.float64) + 0.3 * rng.standard_normal((batch, drafts, cols))
    q = softmax(noisy / np.maximum(temperature, 0.1)[:, None, None])
    tokens = np.argmax(np.log(q) + rng.gumbel(size=q.shape), -1).astype(np.int32)
    tokens[1, 0] = np.argmax(logits[1, 0])
    tokens[2, -1], tokens[3, 0] = -1, cols
    every = {
        "draft_probs": q.astype(np.float32), "top_k": rng.integers(0, cols + 2, batch).astype(np.int32),
        "top_p": rng.uniform(0.5, 1, batch).astype(np.float32), "min_p": rng.uniform(0, 0.2, batch).astype(np.float32),
    }  # fmt: skip
    return {
        "draft_tokens": tokens, "logits": logits.reshape(-1, cols), "temperature": temperature,
        "seeds": rng.integers(-(2**63), 2**63 - 1, batch), "positions": rng.integers(0, 2**30, batch, dtype=np.int32),
    } | {name: every[name] for name in names}  # fmt: skip


def check(rows: Bundle, call: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Check (tokens, accepted) against the reference, with poison around each tensor."""
    wanted, accepted = verify_drafts(**call)
    placed = {name: poisoned(rows, value, 16 * at) for at, (name, value) in enumerate(call.items(), 1)}
    counts = rows.device.empty(accepted.shape, np.int32)
    tokens = into_poison(
        rows, wanted.shape, wanted.dtype, lambda out: rows.verify_drafts(**placed, tokens=out, accepted=counts)
    )
    assert np.array_equal(tokens, wanted) and np.array_equal(counts.numpy(), accepted)
    return tokens, counts.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("names", (("draft_probs", *LIMITS), ("draft_probs",), (), LIMITS), ids="-".join)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", (100, 1, 3, 1024, 9000))
def test_verification(rows: Bundle, cols: int, dtype: np.dtype, names: tuple[str, ...]):
    """Some drafts are accepted and some are not; nothing follows a number that is no token."""
    tokens, accepted = check(rows, given(cols, dtype, *names))
    assert accepted[2] < 3 and accepted[3] == 0 and (tokens[3, 1:] == -1).all()
    assert cols < 4 or 0 < accepted.sum() < 3 * len(accepted)


@pytest.mark.parametrize("names", (("draft_probs",), ("draft_probs", *LIMITS), ()), ids="-".join)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", (100, 9000))
def test_verification_of_probabilities(rows: Bundle, cols: int, dtype: np.dtype, names: tuple[str, ...]):
    """Probabilities need not sum to 1; the same are taken as of their logarithms."""
    call = given(cols, FP32, *names)
    heat = np.repeat(np.maximum(call.pop("temperature"), 0.1), 4)[:, None]
    call["probs"] = (3 * softmax(call.pop("logits").astype(np.float64) / heat)).astype(dtype)
    wanted, accepted = verify_probs(**call)
    placed = {name: poisoned(rows, value, 16 * at) for at, (name, value) in enumerate(call.items(), 1)}
    tokens, counts = rows.verify_probs(**placed)
    assert np.array_equal(tokens.numpy(), wanted) and np.array_equal(counts.numpy(), accepted)
    assert 0 < accepted.sum() < 3 * len(accepted)


@pytest.mark.slow
def test_parts_of_rows(rows: Bundle):
    """Few rows of a large vocabulary are dealt to several programs."""
    check(rows, given(20000, FP32, "draft_probs", batch=4, drafts=1))


@pytest.mark.slow
def test_without_probabilities_tokens_are_those_of_sample(rows: Bundle):
    """Whatever was drafted, the accepted drafts and the token behind them are those drawn row after row."""
    call = given(100, FP32)
    tokens, accepted = check(rows, call)
    drafts = call["draft_tokens"].shape[1]
    places = np.tile(np.arange(drafts + 1, dtype=np.int32), len(tokens))
    temperature, seeds, positions = (
        np.repeat(call[name], drafts + 1) for name in ("temperature", "seeds", "positions")
    )
    drawn = rows.sample(call["logits"], temperature, seeds, positions + places).reshape(tokens.shape)
    counted = np.arange(drafts + 1) <= accepted[:, None]
    assert np.array_equal(tokens, np.where(counted, drawn, -1))


@pytest.mark.slow
def test_drafts_of_the_model_itself_are_accepted(rows: Bundle):
    call = given(100, FP32)
    logits = call["logits"].reshape(12, 4, 100)[:, :-1].astype(np.float64)
    q = softmax(logits / np.maximum(call["temperature"], 1e-3)[:, None, None])
    call["draft_tokens"] = np.argmax(q, -1).astype(np.int32)
    _, accepted = check(rows, call | {"draft_probs": q.astype(np.float32)})
    assert (accepted == 3).all()


@pytest.mark.slow
def test_large_logits_at_a_low_temperature(rows: Bundle):
    """Logits of 100 differ by a few units of their last place: probabilities are made of differences."""
    rng = np.random.default_rng(0)
    q = np.full((100, 1, 8), 0.125, np.float32)
    call = {
        "draft_tokens": rng.integers(0, 8, (100, 1)).astype(np.int32),
        "logits": (100 + 1e-4 * rng.standard_normal((200, 8))).astype(np.float32),
        "temperature": np.array([1e-4], np.float32), "seeds": np.arange(100), "positions": np.zeros(100, np.int32),
        "draft_probs": q,
    }  # fmt: skip
    _, accepted = check(rows, call)
    assert 0 < accepted.sum() < 100


# Probabilities


P = softmax(np.array([[0, 0.7, 1.1, 2.3, -0.7, -1.6], [1, 0, 1.5, -2, 0.3, 0.9]]))
"""Probabilities of the token in place of the first draft, and of the one after it, whatever the first is."""
Q = np.array([0.3, 0.05, 0.25, 0.2, 0.1, 0.1])
"""Probabilities of the first draft."""


def drawn_for_drafts(draws: int, named: bool) -> dict[str, np.ndarray]:
    """Make the call with a draft that was drawn by Q, from numbers independent of those of the seeds."""
    logits = np.tile(np.log(P).astype(np.float32), (draws, 1))
    tokens = np.random.default_rng(0).choice(6, (draws, 1), p=Q).astype(np.int32)
    call = {
        "draft_tokens": tokens, "logits": logits, "temperature": np.ones(1, np.float32),
        "seeds": np.arange(draws), "positions": np.zeros(draws, np.int32),
    }  # fmt: skip
    return call | ({"draft_probs": np.tile(Q.astype(np.float32), (draws, 1, 1))} if named else {})


def check_probabilities(tokens: np.ndarray, accepted: np.ndarray, rate: float) -> None:
    """Apply chi-squared tests to the first tokens, to those behind accepted drafts, and to the rate of acceptance."""
    assert chi_squared(tokens[:, 0], P[0]) < 20.5  # 0.1 % of 5 degrees of freedom
    assert chi_squared(tokens[accepted == 1, 1], P[1]) < 20.5
    assert abs(accepted.mean() - rate) < 3.3 * (rate * (1 - rate) / len(accepted)) ** 0.5


def chi_squared(tokens: np.ndarray, probabilities: np.ndarray) -> float:
    expected = len(tokens) * probabilities
    return float(((np.bincount(tokens, minlength=6) - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("named, rate", ((True, np.minimum(P[0], Q).sum()), (False, (P[0] * Q).sum())))
def test_tokens_keep_their_probabilities(named: bool, rate: float):
    """The reference, against which kernels are checked, follows the distribution."""
    check_probabilities(*verify_drafts(**drawn_for_drafts(500, named)), rate)


@pytest.mark.slow
@pytest.mark.parametrize("named, rate", ((True, np.minimum(P[0], Q).sum()), (False, (P[0] * Q).sum())))
def test_tokens_of_the_kernels_keep_their_probabilities(rows: Bundle, named: bool, rate: float):
    check_probabilities(*rows.verify_drafts(**drawn_for_drafts(2000, named)), rate)


@pytest.mark.slow
def test_drafts_may_be_drawn_from_the_same_seeds(rows: Bundle):
    """A model that drafts with `sample`, and the same seeds and positions: refused drafts have noise of their own."""
    call = drawn_for_drafts(2000, True)
    logits = np.tile(np.log(Q).astype(np.float32), (2000, 1))
    drafts = reference.sample(logits, call["temperature"], call["seeds"], call["positions"])
    tokens, accepted = rows.verify_drafts(**call | {"draft_tokens": drafts[:, None]})
    check_probabilities(tokens, accepted, np.minimum(P[0], Q).sum())
