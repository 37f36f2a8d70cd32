"""Mixtral: Mistral's layers with eight experts, two for each token."""

from __future__ import annotations

from aot_models.checkpoints.keys import Table, harmless, number, only, or_null, whole
from aot_models.checkpoints.values import Values
from aot_models.decoders.config import Config
from aot_models.decoders.config_keys import COMMON, MIXTURE, WINDOW, alike, check_experts, common, of_kind
from aot_models.decoders.experts import Experts

KEYS: Table = {
    **COMMON,
    **MIXTURE,
    **of_kind("mixtral"),
    **harmless("moe_intermediate_size"),
    "hidden_act": only("silu"),
    "attention_bias": only(False),
    "num_key_value_heads": or_null(whole(), 8),
    "num_local_experts": whole(),
    "rope_theta": number(1, 1e15, 1e6),
    "sliding_window": WINDOW,
}


def mixtral(values: Values, context: int | None) -> Config:
    return Config(
        **common(values, context),
        attention=alike(values, context, values.get("sliding_window")),
        experts=Experts(
            check_experts(values, values["num_local_experts"]), values["num_experts_per_tok"],
            values["intermediate_size"], router="block_sparse_moe.gate", each="block_sparse_moe.experts",
            gate_up=("w1", "w3"), down="w2",
        ),
    )  # fmt: skip
