"""Gemma 3, of its text: queries and keys are normalised, five layers see a window for one that sees all, and the two
kinds have rotary embeddings of their own."""

from __future__ import annotations

from dataclasses import replace

from checkpoints.values import Values
from models.config import Attention, Config, Names
from models.gemma2 import NORMS, gemma
from models.reading import context_of, head_dim_of, mixed
from models.rope import rope_of

DEFAULTS = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6, "sliding_window": 4096, "query_pre_attn_scalar": 256, "sliding_window_pattern": 6,
    "rope_theta": 1e6, "rope_local_base_freq": 1e4,
}  # fmt: skip
"""Of the keys that published files leave out."""


def gemma3(values: Values, context: int | None) -> Config:
    values = values.with_defaults(**DEFAULTS)
    values.demand(values.get("attn_logit_softcapping") is None, "attn_logit_softcapping", ["null"])
    full, sliding = _ropes(values)
    values = values.but(rope_parameters=None, rope_scaling=None)
    head_dim, length, every = head_dim_of(values), context_of(values, context), values["sliding_window_pattern"]
    return Config(
        **gemma(values, context),
        attention=mixed(
            values,
            Attention(rope_of(values, head_dim, length, full)),
            Attention(rope_of(values, head_dim, length, sliding), values["sliding_window"]),
            lambda number: (number + 1) % every == 0,
        ),
        names=Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm", **NORMS),
    )


def gemma3_with_images(values: Values, context: int | None) -> Config:
    """The text's part of a model that reads images, too: it stands in config.json, and in names, by itself."""
    shared = {key: values.found[key] for key in ("dtype", "torch_dtype", "eos_token_id") if key in values.found}
    config = gemma3(values.part(values["text_config"]).with_defaults(**shared), context)
    return replace(config, root="language_model.model", head="language_model.lm_head")


def _ropes(values: Values) -> tuple[dict[str, object], dict[str, object]]:
    """Parameters of layers that see all, and of those that see a window: in one object by kind, or in keys that older
    files have."""
    by_kind = values.get("rope_parameters", {})
    return (
        {"rope_theta": values["rope_theta"], **(by_kind.get("full_attention") or values.get("rope_scaling", {}))},
        {"rope_theta": values["rope_local_base_freq"], **(by_kind.get("sliding_attention") or {})},
    )
