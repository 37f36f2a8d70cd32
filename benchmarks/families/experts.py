"""Mixtures of experts of any number and size."""

from __future__ import annotations

import numpy as np

from aot_bundle.callspec import CallSpec

from .family import DTYPES_16, Asked, Call, Drawn, Family, Offer, Part, Peaks, Rng, extent, near, one_of

MOST_WEIGHTS = 1 << 30
"""Maximum number of weights of all experts."""
MOST_OF_ONE = 1 << 23
"""Maximum product of the two sizes of an expert."""


def draw_experts(rng: Rng, offer: Offer) -> Drawn | None:
    tokens, experts = extent(rng, 1, 16384), extent(rng, 1, 256)
    topk, unit = min(experts, extent(rng, 1, 8)), one_of(rng, (1, 8, 64, 64))
    hidden, intermediate = (extent(rng, 128, 8192, unit) for _ in range(2))
    if hidden * intermediate > MOST_OF_ONE or 3 * experts * hidden * intermediate > MOST_WEIGHTS:
        return None
    chosen = np.argsort(rng.random((tokens, experts)), axis=1)[:, :topk].astype(np.int32)
    used, dtype = len(np.unique(chosen)), one_of(rng, DTYPES_16)

    def make(hidden: int, intermediate: int) -> Call:
        dims = {"tokens": tokens, "experts": experts, "topk": topk, "hidden": hidden, "intermediate": intermediate}
        weights = 3 * hidden * intermediate
        values = {"chosen": chosen, "weights": (0.0, 1.0), "gate_up": hidden**-0.5, "down": intermediate**-0.5}
        return Call("moe", CallSpec(dims=dims, dtypes={"T": dtype}), values, 2.0 * tokens * topk * weights,
                    2 * used * weights + 4 * tokens * hidden)  # fmt: skip

    each = tokens * topk / experts
    group = "1 token or less" if each <= 1 else "up to 16 tokens" if each <= 16 else "more tokens"
    return Drawn(f"{group} an expert", make(hidden, intermediate), make(near(hidden), near(intermediate)))


def experts_part(call: Call, where: float) -> Part:
    """Cut a token and its experts."""
    token = int(where * call.spec.dims["tokens"])
    chosen = np.asarray(call.values["chosen"])[token]
    return Part({"tokens": range(token, token + 1), "experts": [int(expert) for expert in chosen]},
                {"chosen": np.arange(len(chosen), dtype=np.int32)[None]})  # fmt: skip


def matmul_peak(peaks: Peaks) -> float:
    return peaks.flops


FAMILIES = {
    "experts": Family("experts", Asked(0.7, 0.5, 0.4), ("moe",), draw_experts, "out", experts_part, rate=matmul_peak)
}
