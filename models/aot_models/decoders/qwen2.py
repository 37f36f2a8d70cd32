"""Qwen2 and Qwen2.5: queries, keys and values have biases; the last layers may slide."""

from __future__ import annotations

from collections.abc import Callable

from aot_models.checkpoints.keys import Table, flag, only, or_null, whole
from aot_models.checkpoints.values import Values
from aot_models.decoders.config import Attention, Biases, Config
from aot_models.decoders.config_keys import (
    COMMON,
    FULL,
    MOST_LAYERS,
    SLIDING,
    common,
    kinds_of,
    mixed,
    of_kind,
    rope_of_all,
    window_of,
)

WINDOWS: Table = {
    "use_sliding_window": flag(False),
    "sliding_window": or_null(whole(0, 1 << 30), 4096),
    "max_window_layers": whole(0, MOST_LAYERS, 28),
}
"""Keys that select sliding layers. Newer files have a window of 0 if there are none."""
KEYS: Table = {
    **COMMON,
    **WINDOWS,
    **of_kind("qwen2"),
    "hidden_act": only("silu"),
    "attention_bias": only(True),
    "mlp_bias": only(False),
    "num_key_value_heads": or_null(whole(), 32),
}


def qwen2(values: Values, context: int | None) -> Config:
    return Config(
        **common(values, context),
        attention=sliding(values, context, lambda number: number >= values["max_window_layers"]),
        biases=Biases(queries_keys_values=True),
    )


def sliding(values: Values, context: int | None, slides: Callable[[int], bool]) -> tuple[Attention, ...]:
    """The attention of layers of which some slide, if use_sliding_window is true.

    slides: returns True for the number of a sliding layer; it is used if there are no layer_types.

    Raises:
        CheckpointError: layers slide without use_sliding_window or without a window.
    """
    used = values["use_sliding_window"] and values.get("sliding_window") is not None
    implied = [SLIDING if used and slides(number) else FULL for number in range(values["num_hidden_layers"])]
    kinds, rope = kinds_of(values, implied), rope_of_all(values, context)
    values.demand(used or SLIDING not in kinds, "layer_types that slide without use_sliding_window", [FULL])
    return mixed(kinds, Attention(rope), Attention(rope, window_of(values, kinds)))
