"""Qwen2-MoE and Qwen3-MoE: layers of Qwen2 and Qwen3 with many small experts; Qwen2-MoE adds a shared expert."""

from __future__ import annotations

from dataclasses import replace

from aot_models.checkpoints.keys import Table, flag, listed, only, or_null, whole
from aot_models.checkpoints.values import CheckpointError, Values
from aot_models.decoders.config import Biases, Config
from aot_models.decoders.config_keys import COMMON, MIXTURE, MOST_LAYERS, SLIDING, check_experts, common, of_kind
from aot_models.decoders.experts import Experts
from aot_models.decoders.qwen2 import WINDOWS, sliding
from aot_models.decoders.qwen3 import normed

EXPERTS: Table = {
    **MIXTURE,
    "hidden_act": only("silu"),
    "mlp_bias": only(False),
    "num_experts": or_null(whole()),
    "num_local_experts": or_null(whole()),
    "moe_intermediate_size": whole(),
    "norm_topk_prob": flag(False),
    "decoder_sparse_step": whole(most=MOST_LAYERS, default=1),
    "mlp_only_layers": or_null(listed(whole(0, MOST_LAYERS), MOST_LAYERS)),
}
QWEN2_KEYS: Table = {
    **COMMON,
    **WINDOWS,
    **EXPERTS,
    **of_kind("qwen2_moe"),
    "num_key_value_heads": or_null(whole(), 16),
    "qkv_bias": flag(True),
    "shared_expert_intermediate_size": whole(),
}
QWEN3_KEYS: Table = {
    **COMMON,
    **WINDOWS,
    **EXPERTS,
    **of_kind("qwen3_moe"),
    "num_key_value_heads": or_null(whole(), 4),
    "attention_bias": flag(False),
}


def qwen2_moe(values: Values, context: int | None) -> Config:
    """The configuration of Qwen2-MoE. If layers slide, it is every second one before max_window_layers."""
    size, shared = values["moe_intermediate_size"], values["shared_expert_intermediate_size"]
    if shared % size:
        raise CheckpointError(
            f"{values.path}: shared_expert_intermediate_size {shared} is not a multiple of moe_intermediate_size {size}"
        )
    experts = replace(_experts(values), shared=shared // size, shared_is_gated=True, shared_one="mlp.shared_expert")
    return Config(
        **common(values, context),
        attention=sliding(values, context, lambda number: number % 2 == 0 and number < values["max_window_layers"]),
        biases=Biases(queries_keys_values=values["qkv_bias"]),
        experts=experts,
    )


def qwen3_moe(values: Values, context: int | None) -> Config:
    """The configuration of Qwen3-MoE. If layers slide, all do."""
    attention = sliding(values, context, lambda number: True)
    values.demand(len({layer.window for layer in attention}) == 1, "layer_types of two kinds", [f"all {SLIDING}"])
    return replace(normed(values, context, attention), experts=_experts(values))


def _experts(values: Values) -> Experts:
    every, count = values["decoder_sparse_step"], values["num_hidden_layers"]
    dense = {number for number in range(count) if (number + 1) % every} | set(values.get("mlp_only_layers", ()))
    return Experts(
        check_experts(values, _count(values)), values["num_experts_per_tok"], values["moe_intermediate_size"],
        renormalise=values["norm_topk_prob"], dense=frozenset(dense),
    )  # fmt: skip


def _count(values: Values) -> int:
    """The number of a layer's experts, which has another name in newer files."""
    older, newer = values.get("num_experts"), values.get("num_local_experts")
    if older and newer and older != newer:
        raise CheckpointError(f"{values.path}: num_experts is {older}, and num_local_experts {newer}")
    return newer or values["num_experts"]
