"""Phi-3, Phi-3.5 and Phi-4 (and mini): one matrix each for queries, keys and values, and for gate and up."""

from __future__ import annotations

from aot_models.checkpoints.keys import Table, number, only
from aot_models.checkpoints.values import Values, said
from aot_models.decoders.config import Config, Names
from aot_models.decoders.config_keys import COMMON, WINDOW, alike, common, of_kind
from aot_models.decoders.rope import given_parameters, kind_of, known_parameters

KEYS: Table = {
    **COMMON,
    **of_kind("phi3"),
    "hidden_act": only("silu"),
    "attention_bias": only(False),
    "mlp_bias": only(False),
    "partial_rotary_factor": number(0, 1, 1.0),
    "sliding_window": WINDOW,
    "full_attn_mod": only(1),
    "interpolate_factor": only(1),
}
KINDS = ("default", "longrope")
FORMER_KINDS = ("su", "yarn")
"""Names of longrope in older files of this family."""


def phi3(values: Values, context: int | None) -> Config:
    values = _in_newer_words(values)
    return Config(
        **common(values, context),
        attention=alike(values, context, values.get("sliding_window")),
        names=Names(queries_keys_values=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)),
    )


def _in_newer_words(values: Values) -> Values:
    """Rename former kinds of rope, and move partial_rotary_factor to the top level."""
    given = given_parameters(values)
    kind = kind_of(values.part(given))
    if kind in FORMER_KINDS:
        given = {**given, "rope_type": "longrope"}
    values.demand(kind in (*KINDS, *FORMER_KINDS), f"rope_type {said(kind)}", KINDS)
    share = known_parameters(values, given).get("partial_rotary_factor", values["partial_rotary_factor"])
    return values.but(rope_parameters=given, rope_scaling=None, partial_rotary_factor=share)
