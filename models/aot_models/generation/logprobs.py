"""How likely a model holds tokens to be: the chosen ones, the likeliest, and those of a given text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of probabilities, by the logits as the model gives them: before temperature, top_k and top_p.

    Attributes:
        token, logprob: the chosen one.
        top: (token, its logprob) of the likeliest, in order.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def log_softmax(logits: Array) -> Array:
    """float64 [.., vocabulary]."""
    exact = logits.astype(np.float64)
    exact -= exact.max(-1, keepdims=True)
    return exact - np.log(np.exp(exact).sum(-1, keepdims=True))


def token_logprobs(logits: Array, token: int, count: int) -> TokenLogprobs:
    """logits: [vocabulary]; count: of the likeliest that are wanted, of equally likely ones the first."""
    found = log_softmax(logits)
    likeliest = np.argsort(-found, kind="stable")[:count]
    return TokenLogprobs(token, float(found[token]), tuple((int(one), float(found[one])) for one in likeliest))
