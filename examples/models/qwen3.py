"""Qwen3: queries and keys are normalised, each head by itself."""

from __future__ import annotations

from checkpoints.values import Values
from models.config import Biases, Config, Names
from models.qwen2 import last_layers_slide
from models.reading import common, demand_activation


def qwen3(values: Values, context: int | None) -> Config:
    demand_activation(values, "silu")
    biased = bool(values.get("attention_bias", False))
    return Config(
        **common(values, context),
        attention=last_layers_slide(values, context),
        biases=Biases(queries_keys_values=biased, attention_out=biased),
        names=Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm"),
    )
