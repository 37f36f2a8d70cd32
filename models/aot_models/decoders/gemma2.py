"""Gemma 2: norms before and after with factors of 1 + weight, soft-capped scores and logits, and windows in every
second layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aot_models.checkpoints.keys import Table, flag, harmless, number, only, or_null, whole
from aot_models.checkpoints.values import Values
from aot_models.decoders.config import Attention, Biases, Config, Names
from aot_models.decoders.config_keys import (
    COMMON,
    FULL,
    SLIDING,
    WINDOW,
    common,
    kinds_of,
    mixed,
    of_kind,
    rope_of_all,
    window_of,
)

NAMES = Names(
    attention_out_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_out_norm="post_feedforward_layernorm",
)
BOUND = number(0, 1e6)
GEMMA: Table = {
    **COMMON,
    **harmless("sliding_window_size"),
    "hidden_activation": replace(only("gelu_pytorch_tanh", None), words="hidden_act {value}"),
    "hidden_act": only("gelu_pytorch_tanh", None),
    "attention_bias": flag(False),
    "num_key_value_heads": or_null(whole(), 4),
    "head_dim": whole(most=1 << 16, default=256),
    "tie_word_embeddings": flag(True),
    "query_pre_attn_scalar": number(0, 1e6, 256),
    "sliding_window": replace(WINDOW, default=4096),
}
"""Keys that Gemma 2 and 3 share."""
KEYS: Table = {
    **GEMMA,
    **of_kind("gemma2"),
    "attn_logit_softcapping": or_null(BOUND, 50.0),
    "final_logit_softcapping": or_null(BOUND, 30.0),
}


def gemma2(values: Values, context: int | None) -> Config:
    kinds = kinds_of(values, [FULL if number % 2 else SLIDING for number in range(values["num_hidden_layers"])])
    rope = rope_of_all(values, context)
    return Config(
        **gemma(values, context),
        attention=mixed(kinds, Attention(rope), Attention(rope, window_of(values, kinds))),
        attention_softcap=values.get("attn_logit_softcapping", 0.0),
        names=NAMES,
    )


def gemma(values: Values, context: int | None) -> dict[str, Any]:
    """Arguments of `Config` that Gemma 2 and 3 share."""
    biased = values["attention_bias"]
    return {
        **common(values, context),
        "activation": "gelu_tanh",
        "zero_centred": True,
        "embedding_scale": values["hidden_size"] ** 0.5,
        "attention_scale": values["query_pre_attn_scalar"] ** -0.5,
        "logits_softcap": values.get("final_logit_softcapping", 0.0),
        "biases": Biases(queries_keys_values=biased, attention_out=biased),
    }
