"""DeepSeek-V2-Lite: latent attention, with rotation of neighbouring pairs. The first layers are dense; the others have
many small experts, and shared ones."""

from __future__ import annotations

import math

from aot_models.checkpoints.keys import Table, flag, harmless, number, only, or_null, whole
from aot_models.checkpoints.values import Values
from aot_models.decoders.config import Attention, Biases, Config
from aot_models.decoders.config_keys import (
    COMMON,
    FULL,
    MIXTURE,
    MOST_LAYERS,
    check_experts,
    common,
    context_of,
    layers_of,
    of_kind,
)
from aot_models.decoders.experts import Experts
from aot_models.decoders.latent import Latent
from aot_models.decoders.rope import kind_of, rope_of, rope_parameters_of

KEYS: Table = {
    **COMMON,
    **MIXTURE,
    **of_kind("deepseek_v2"),
    **harmless("head_dim qk_head_dim"),
    "hidden_act": only("silu"),
    "attention_bias": flag(False),
    "mlp_bias": only(False),
    "rms_norm_eps": only(1e-6, needed=True),  # the norm of the latents has this one, whatever the file says
    "q_lora_rank": only(None, needed=True),
    "kv_lora_rank": whole(most=1 << 16),
    "qk_nope_head_dim": whole(most=1 << 16),
    "qk_rope_head_dim": whole(most=1 << 16),
    "v_head_dim": whole(most=1 << 16),
    "n_routed_experts": whole(),
    "n_shared_experts": or_null(whole(0, 1 << 12), 2),
    "moe_intermediate_size": whole(),
    "first_k_dense_replace": whole(0, MOST_LAYERS, 0),
    "moe_layer_freq": only(1),
    "topk_method": only("greedy", "group_limited_greedy"),
    "n_group": or_null(whole()),
    "topk_group": or_null(whole()),
    "routed_scaling_factor": number(0, 1e6, 1.0),
    "norm_topk_prob": only(False, None),
    "scoring_func": only("softmax"),
}


def deepseek_v2(values: Values, context: int | None) -> Config:
    latent = Latent(
        values["kv_lora_rank"], values["qk_nope_head_dim"], values["qk_rope_head_dim"], values["v_head_dim"]
    )
    rope = rope_of(values, latent.rotated, context_of(values, context))
    biased = values["attention_bias"]
    return Config(
        **common(values, context) | {"heads_kv": 1, "head_dim": latent.row},
        attention=(Attention(rope),) * layers_of(values, FULL),
        attention_scale=(latent.plain + latent.rotated) ** -0.5 * _temperature(values) ** 2,
        biases=Biases(queries_keys_values=biased, attention_out=biased),
        latent=latent,
        experts=_experts(values),
    )


def _temperature(values: Values) -> float:
    stretch = rope_parameters_of(values)
    share = stretch.get("mscale_all_dim", 0)
    if kind_of(stretch) == "default" or not share:
        return 1.0
    factor = stretch["factor"]
    return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0


def _experts(values: Values) -> Experts:
    count = check_experts(values, values["n_routed_experts"])
    groups, topk_groups = _groups(values, count)
    return Experts(
        count, values["num_experts_per_tok"], values["moe_intermediate_size"],
        shared=values.get("n_shared_experts", 0), renormalise=False, groups=groups, topk_groups=topk_groups,
        scale=values["routed_scaling_factor"], dense=frozenset(range(values["first_k_dense_replace"])),
    )  # fmt: skip


def _groups(values: Values, count: int) -> tuple[int, int]:
    if values["topk_method"] == "greedy":
        return 1, 1
    groups, chosen = values["n_group"], values["topk_group"]
    enough = count % groups == 0 and chosen <= groups and values["num_experts_per_tok"] <= chosen * (count // groups)
    values.demand(enough, f"{chosen} of {groups} groups of {count} experts", ["as many as a token's experts need"])
    return groups, chosen
