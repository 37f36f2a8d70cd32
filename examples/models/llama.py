"""Llama 2 and 3."""

from __future__ import annotations

from checkpoints.values import Values
from models.config import Attention, Biases, Config
from models.reading import common, demand_activation, head_dim_of
from models.rope import rope_of


def llama(values: Values, context: int | None) -> Config:
    demand_activation(values, "silu")
    attention, mlp = bool(values.get("attention_bias", False)), bool(values.get("mlp_bias", False))
    layer = Attention(rope_of(values, head_dim_of(values)))
    return Config(
        **common(values, context),
        attention=(layer,) * values["num_hidden_layers"],
        biases=Biases(queries_keys_values=attention, attention_out=attention, mlp=mlp),
    )
