"""Mixtral: Mistral's layers with eight experts, of which a token has two."""

from __future__ import annotations

from checkpoints.values import Values
from models.config import Config
from models.experts import Experts
from models.reading import alike, common, demand_activation


def mixtral(values: Values, context: int | None) -> Config:
    demand_activation(values, "silu")
    return Config(
        **common(values, context),
        attention=alike(values, context, values.get("sliding_window")),
        experts=Experts(
            values["num_local_experts"], values["num_experts_per_tok"], values["intermediate_size"],
            router="block_sparse_moe.gate", each="block_sparse_moe.experts", gate_up=("w1", "w3"), down="w2",
        ),
    )  # fmt: skip
