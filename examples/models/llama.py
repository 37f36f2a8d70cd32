"""Llama 2 and 3."""

from __future__ import annotations

from checkpoints.values import Values
from models.config import Biases, Config
from models.reading import alike, common, demand_activation


def llama(values: Values, context: int | None) -> Config:
    demand_activation(values, "silu")
    attention, mlp = bool(values.get("attention_bias", False)), bool(values.get("mlp_bias", False))
    return Config(
        **common(values, context),
        attention=alike(values, context),
        biases=Biases(queries_keys_values=attention, attention_out=attention, mlp=mlp),
    )
