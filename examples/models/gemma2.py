"""Gemma 2: norms before and after, whose factors are 1 + weight, bounded scores and logits, windows in every second
layer."""

from __future__ import annotations

from typing import Any

from checkpoints.values import CheckpointError, Values
from models.config import Attention, Biases, Config, Names
from models.reading import alike, common, demand_activation, mixed

NORMS = {
    "attention_out_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_out_norm": "post_feedforward_layernorm",
}


def gemma2(values: Values, context: int | None) -> Config:
    values = values.with_defaults(attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    full = alike(values, context)[0]
    sliding = Attention(full.rope, values["sliding_window"])
    return Config(
        **gemma(values, context),
        attention=mixed(values, full, sliding, lambda number: number % 2 == 1),
        attention_softcap=values.get("attn_logit_softcapping", 0.0),
        names=Names(**NORMS),
    )


def gemma(values: Values, context: int | None) -> dict[str, Any]:
    """Arguments of `Config` that Gemma 2 and 3 share."""
    demand_activation(values, "gelu_pytorch_tanh", "hidden_activation", "hidden_act")
    if values.get("use_bidirectional_attention"):
        raise CheckpointError(f"{values.path}: use_bidirectional_attention is not supported")
    biased = bool(values.get("attention_bias", False))
    return {
        **common(values.with_defaults(tie_word_embeddings=True), context),
        "activation": "gelu_tanh",
        "zero_centred": True,
        "embedding_scale": values["hidden_size"] ** 0.5,
        "attention_scale": values.get("query_pre_attn_scalar", 256) ** -0.5,
        "logits_softcap": values.get("final_logit_softcapping", 0.0),
        "biases": Biases(queries_keys_values=biased, attention_out=biased),
    }
