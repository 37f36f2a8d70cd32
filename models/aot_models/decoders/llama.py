"""Llama 2 and 3."""

from __future__ import annotations

from checkpoints.keys import Table, flag, only
from checkpoints.values import Values
from models.config import Biases, Config
from models.reading import COMMON, alike, common, of_kind

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
