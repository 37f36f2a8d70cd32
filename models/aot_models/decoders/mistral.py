"""Mistral: Llama's layers, all or some of them with a sliding window."""

from __future__ import annotations

from dataclasses import replace

from aot_models.checkpoints.keys import Table, only, or_null, whole
from aot_models.checkpoints.values import Values
from aot_models.decoders.config import Attention, Config
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

KEYS: Table = {
    **COMMON,
    **of_kind("mistral"),
    "hidden_act": only("silu"),
    "attention_bias": only(False),
    "mlp_bias": only(False),
    "num_key_value_heads": or_null(whole(), 8),
    "sliding_window": replace(WINDOW, default=4096),
}


def mistral(values: Values, context: int | None) -> Config:
    kind = FULL if values.get("sliding_window") is None else SLIDING
    kinds, rope = kinds_of(values, [kind] * values["num_hidden_layers"]), rope_of_all(values, context)
    return Config(
        **common(values, context),
        attention=mixed(kinds, Attention(rope), Attention(rope, window_of(values, kinds))),
    )
