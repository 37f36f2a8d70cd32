"""Qwen3: queries and keys are normalised, each head by itself."""

from __future__ import annotations

from aot_models.checkpoints.keys import Table, flag, only, or_null, whole
from aot_models.checkpoints.values import Values
from aot_models.decoders.config import Attention, Biases, Config, Names
from aot_models.decoders.config_keys import COMMON, common, of_kind
from aot_models.decoders.qwen2 import WINDOWS, sliding

KEYS: Table = {
    **COMMON,
    **WINDOWS,
    **of_kind("qwen3"),
    "hidden_act": only("silu"),
    "attention_bias": flag(False),
    "mlp_bias": only(False),
    "num_key_value_heads": or_null(whole(), 32),
    "head_dim": whole(most=1 << 16, default=128),
}


def qwen3(values: Values, context: int | None) -> Config:
    return normed(values, context, sliding(values, context, lambda number: number >= values["max_window_layers"]))


def normed(values: Values, context: int | None, attention: tuple[Attention, ...]) -> Config:
    """The configuration of layers with normalised queries and keys."""
    biased = values["attention_bias"]
    return Config(
        **common(values, context),
        attention=attention,
        biases=Biases(queries_keys_values=biased, attention_out=biased),
        names=Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm"),
    )
