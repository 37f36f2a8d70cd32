"""Qwen2-MoE and Qwen3-MoE: layers of Qwen2 and Qwen3 with many small experts; those of Qwen2 have a shared one."""

from __future__ import annotations

from dataclasses import replace

from checkpoints.values import CheckpointError, Values
from models.config import Config
from models.experts import Experts
from models.qwen2 import qwen2
from models.qwen3 import qwen3


def qwen3_moe(values: Values, context: int | None) -> Config:
    return replace(qwen3(values, context), experts=_experts(values))


def qwen2_moe(values: Values, context: int | None) -> Config:
    size, shared = values["moe_intermediate_size"], values["shared_expert_intermediate_size"]
    if shared % size:
        raise CheckpointError(
            f"{values.path}: shared_expert_intermediate_size {shared} is no multiple of moe_intermediate_size {size}"
        )
    experts = replace(_experts(values), shared=shared // size, shared_is_gated=True, shared_one="mlp.shared_expert")
    return replace(qwen2(values, context), experts=experts)


def _experts(values: Values) -> Experts:
    every, count = values.get("decoder_sparse_step", 1), values["num_hidden_layers"]
    dense = {number for number in range(count) if (number + 1) % every} | set(values.get("mlp_only_layers", ()))
    return Experts(
        values["num_experts"], values["num_experts_per_tok"], values["moe_intermediate_size"],
        renormalise=bool(values.get("norm_topk_prob", False)), dense=frozenset(dense),
    )  # fmt: skip
