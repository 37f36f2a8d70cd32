"""`process_logits`, `count_tokens` and `token_logprobs` in numpy.

Shapes are those of manifests/rows.yaml; each `f` computes in float64, each `f_same_dtype` in float32.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray

IN_PROMPT = 1 << 30
"""Bit of a count: the token is in the prompt."""


def process_logits(logits: Array, **given: Array | float | None) -> Array:
    """Apply soft-cap, bias and penalties, in this order."""
    return _processed(np.float64, logits, **given)


def process_logits_same_dtype(logits: Array, **given: Array | float | None) -> Array:
    return _processed(np.float32, logits, **given).astype(logits.dtype)


def _processed(
    compute: type, logits: Array, bias: Array | None = None, counts: Array | None = None,
    sequences: Array | None = None, repetition_penalty: Array | None = None, presence_penalty: Array | None = None,
    frequency_penalty: Array | None = None, softcap: float = 0.0,
) -> Array:  # fmt: skip
    values = logits.astype(compute)
    if softcap > 0:
        cap = compute(softcap)
        values = cap * np.tanh(values / cap)
    if bias is not None:
        values = values + bias.astype(compute)
    if counts is None:
        return values
    rows = np.arange(len(logits)) if sequences is None else sequences
    has = (rows >= 0) & (rows < len(counts))
    count = np.where(has[:, None], counts[np.where(has, rows, 0)], 0)
    times = count % IN_PROMPT
    repetition, presence, frequency = (
        compute(neutral) if given is None else given.astype(compute)[:, None]
        for given, neutral in ((repetition_penalty, 1), (presence_penalty, 0), (frequency_penalty, 0))
    )
    values = np.where(count != 0, np.where(values > 0, values / repetition, values * repetition), values)
    return np.where(times > 0, values - (frequency * times.astype(compute) + presence), values)


def count_tokens(tokens: Array, counts: Array, sequences: Array | None = None, prompt: bool = False) -> Array:
    """Return the new counts."""
    counts = counts.copy()
    for sequence, token in zip(range(len(tokens)) if sequences is None else sequences, tokens, strict=True):
        if 0 <= sequence < counts.shape[0] and 0 <= token < counts.shape[1]:
            counts[sequence, token] = counts[sequence, token] | IN_PROMPT if prompt else counts[sequence, token] + 1
    return counts


count_tokens_same_dtype = count_tokens


def token_logprobs(logits: Array, tokens: Array) -> Array:
    """Return log(softmax(row)[token]), [rows]; -inf for a token without a column."""
    return _logprobs(np.float64, logits, tokens)


def token_logprobs_same_dtype(logits: Array, tokens: Array) -> Array:
    return _logprobs(np.float32, logits, tokens)


def _logprobs(compute: type, logits: Array, tokens: Array) -> Array:
    values = logits.astype(compute)
    known = (tokens >= 0) & (tokens < logits.shape[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        values = values - values.max(-1, keepdims=True)
        values = values - np.log(np.exp(values).sum(-1, keepdims=True, dtype=compute))
    chosen = np.take_along_axis(values, np.where(known, tokens, 0)[:, None].astype(np.int64), 1)[:, 0]
    return np.where(known, chosen, compute(-np.inf))
