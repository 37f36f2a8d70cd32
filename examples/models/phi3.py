"""Phi-3, Phi-3.5 and Phi-4 (and mini): one matrix each for queries, keys and values, and for gate and up."""

from __future__ import annotations

from checkpoints.values import Values
from models.config import Config, Names
from models.reading import alike, common, demand_activation
from models.rope import rope_parameters_of

FORMER_KINDS = ("su", "yarn")
"""What older files of this family call longrope."""


def phi3(values: Values, context: int | None) -> Config:
    demand_activation(values, "silu")
    scaling = dict(rope_parameters_of(values))
    if (scaling.get("rope_type") or scaling.get("type")) in FORMER_KINDS:
        values = values.but(rope_parameters={**scaling, "rope_type": "longrope"})
    return Config(
        **common(values, context),
        attention=alike(values, context, values.get("sliding_window")),
        names=Names(queries_keys_values=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
    )
