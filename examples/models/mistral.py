"""Mistral: Llama's layers, which may see a window of the tokens before."""

from __future__ import annotations

from checkpoints.values import Values
from models.config import Config
from models.reading import alike, common, demand_activation


def mistral(values: Values, context: int | None) -> Config:
    demand_activation(values, "silu")
    return Config(**common(values, context), attention=alike(values, context, values.get("sliding_window")))
