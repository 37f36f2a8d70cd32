"""DeepSeek-V2-Lite: latent attention, rotated by neighbouring pairs; the first layers have one gated layer, the others
many small experts and shared ones."""

from __future__ import annotations

import math

from checkpoints.values import CheckpointError, Values
from models.config import Attention, Biases, Config
from models.experts import Experts
from models.latent import Latent
from models.reading import common, context_of, demand_activation
from models.rope import rope_of, rope_parameters_of

ROUTING = ("greedy", "group_limited_greedy")


def deepseek_v2(values: Values, context: int | None) -> Config:
    demand_activation(values, "silu")
    if values.get("q_lora_rank") is not None:
        raise CheckpointError(f"{values.path}: queries of q_lora_rank {values['q_lora_rank']} are not supported")
    latent = Latent(
        values["kv_lora_rank"], values["qk_nope_head_dim"], values["qk_rope_head_dim"], values["v_head_dim"]
    )
    rope = rope_of(values, latent.rotated, context_of(values, context))
    biased = bool(values.get("attention_bias", False))
    return Config(
        **common(values, context) | {"heads_kv": 1, "head_dim": latent.row},
        attention=(Attention(rope),) * values["num_hidden_layers"],
        attention_scale=(latent.plain + latent.rotated) ** -0.5 * _temperature(values) ** 2,
        biases=Biases(queries_keys_values=biased, attention_out=biased),
        latent=latent,
        experts=_experts(values),
    )


def _temperature(values: Values) -> float:
    """What yarn multiplies queries and keys by, beside their rotation."""
    stretch = values.part(rope_parameters_of(values))
    share = stretch.get("mscale_all_dim", 0)
    if (stretch.get("rope_type") or stretch.get("type") or "default") == "default" or not share:
        return 1.0
    factor = stretch["factor"]
    return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0


def _experts(values: Values) -> Experts:
    method = values.get("topk_method", "greedy")
    values.demand(method in ROUTING, f"topk_method {method}", ROUTING)
    scoring = values.get("scoring_func", "softmax")
    values.demand(scoring == "softmax", f"scoring_func {scoring}", ["softmax"])
    values.demand(not values.get("norm_topk_prob", False), "norm_topk_prob true", ["false"])
    every = values.get("moe_layer_freq", 1)
    values.demand(every == 1, f"moe_layer_freq {every}", ["1"])
    limited = method == "group_limited_greedy"
    return Experts(
        values["n_routed_experts"], values["num_experts_per_tok"], values["moe_intermediate_size"],
        shared=values.get("n_shared_experts", 0), renormalise=False,
        groups=values["n_group"] if limited else 1, topk_groups=values["topk_group"] if limited else 1,
        scale=values.get("routed_scaling_factor", 1.0), dense=frozenset(range(values.get("first_k_dense_replace", 0))),
    )  # fmt: skip
