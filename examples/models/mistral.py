"""Mistral: Llama's layers, which may see a window of the tokens before."""

from __future__ import annotations

from checkpoints.values import Values
from models.config import Attention, Config
from models.reading import common, demand_activation, head_dim_of
from models.rope import rope_of


def mistral(values: Values, context: int | None) -> Config:
    demand_activation(values, "silu")
    layer = Attention(rope_of(values, head_dim_of(values)), values.get("sliding_window"))
    return Config(**common(values, context), attention=(layer,) * values["num_hidden_layers"])
