"""Llama 2 and 3."""

from __future__ import annotations

from aot_models.checkpoints.keys import Table, flag, only
from aot_models.checkpoints.values import Values
from aot_models.decoders.config import Biases, Config
from aot_models.decoders.config_keys import COMMON, alike, common, of_kind

KEYS: Table = {
    **COMMON,
    **of_kind("llama"),
    "hidden_act": only("silu"),
    "attention_bias": flag(False),
    "mlp_bias": flag(False),
}


def llama(values: Values, context: int | None) -> Config:
    biased = values["attention_bias"]
    return Config(
        **common(values, context),
        attention=alike(values, context),
        biases=Biases(queries_keys_values=biased, attention_out=biased, mlp=values["mlp_bias"]),
    )
