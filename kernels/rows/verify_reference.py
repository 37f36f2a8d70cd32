"""`verify_drafts` in numpy, given the random numbers that the kernels draw."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.rows.reference import COLD, OF_DRAFTS, OF_RESIDUALS, gumbel, kept, uniform

Array = np.ndarray


class Draws(NamedTuple):
    """Random draws of a row: noise [cols] for a token, noise for a token in place of a draft, and a value in (0, 1)."""

    noise: Array
    residual_noise: Array
    uniform: float


def verify_drafts(
    draft_tokens: Array, logits: Array, temperature: Array | None, seeds: Array, positions: Array,
    draft_probs: Array | None = None, top_k: Array | None = None, top_p: Array | None = None,
    min_p: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """(tokens, accepted): int32 [batch, drafts + 1] and [batch]. temperature: None if logits are probabilities."""
    batch, drafts = draft_tokens.shape
    limits = [np.broadcast_to(0 if x is None else x, batch) for x in (top_k, top_p, min_p)]
    limits[1] = limits[1] if top_p is not None else np.ones(batch)
    heats = [None] * batch if temperature is None else np.broadcast_to(temperature, batch).astype(float).tolist()
    tokens, accepted = np.full((batch, drafts + 1), -1, np.int32), np.zeros(batch, np.int32)
    for request in range(batch):
        for place in range(drafts + 1):
            row = logits[request * (drafts + 1) + place].astype(np.float64)
            draft = int(draft_tokens[request, place]) if place < drafts else -1
            q = draft_probs[request, place] if draft_probs is not None and 0 <= draft < len(row) else None
            draws = draws_of(int(seeds[request]), int(positions[request]) + place, len(row))
            limit = tuple(x[request] for x in limits)
            token, accept = decide(row, draft, q, heats[request], limit, draws)
            tokens[request, place] = token
            accepted[request] += accept
            if not accept:
                break
    return tokens, accepted


verify_drafts_same_dtype = verify_drafts


def verify_probs(
    draft_tokens: Array, probs: Array, seeds: Array, positions: Array, **given: Array
) -> tuple[Array, Array]:
    return verify_drafts(draft_tokens, probs, None, seeds, positions, **given)


verify_probs_same_dtype = verify_probs


def draws_of(seed: int, position: int, cols: int) -> Draws:
    """Return the Draws that the kernels make of a seed and a position."""
    of_draft = uniform(seed, position, 1, OF_DRAFTS)[0]
    return Draws(gumbel(seed, position, cols), gumbel(seed, position, cols, OF_RESIDUALS), of_draft)


def decide(
    logits: Array, draft: int, q: Array | None, heat: float | None, limits: tuple[float, float, float], draws: Draws
) -> tuple[int, bool]:
    """(the token of a place, whether it is the draft).

    logits: [cols]. heat: the temperature, or None if they are probabilities. draft: -1 if there is none. q: the
    probabilities that it was drawn with, [cols], or None. limits: top_k, top_p and min_p.
    """
    if heat is not None and heat <= COLD:
        largest = int(np.argmax(logits))
        return largest, largest == draft
    weights = logits if heat is None else np.exp((logits - logits.max()) / heat)
    p = np.where(kept(logits, *limits, heat), weights, 0)
    p /= p.sum()
    if q is None:
        token = _draw(p, draws.noise)
        return token, token == draft
    residual = np.maximum(p - q.astype(np.float64), 0)
    if draws.uniform * q[draft] < p[draft] or not residual.any():
        return draft, True
    return _draw(residual, draws.residual_noise), False


def _draw(weights: Array, noise: Array) -> int:
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(weights) + noise))
