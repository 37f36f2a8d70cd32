"""Log-probabilities of tokens, from logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of probabilities, before temperature, penalties, top_k and top_p.

    Attributes:
        token, logprob: the chosen token.
        top: (token, logprob) of the likeliest tokens, in order.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def log_softmax(logits: Array) -> Array:
    """Log-probabilities, float64 [.., vocabulary]."""
    exact = logits.astype(np.float64)
    exact -= exact.max(-1, keepdims=True)
    return exact - np.log(np.exp(exact).sum(-1, keepdims=True))


def token_logprobs(logits: Array, token: int, count: int) -> TokenLogprobs:
    """The log-probabilities of a token and of the `count` likeliest ones. logits: [vocabulary]. Ties: lowest number."""
    found = log_softmax(logits)
    likeliest = np.argsort(-found, kind="stable")[:count]
    return TokenLogprobs(token, float(found[token]), tuple((int(one), float(found[one])) for one in likeliest))
