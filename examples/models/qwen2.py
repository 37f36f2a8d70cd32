"""Qwen2 and Qwen2.5: queries, keys and values have biases; the last layers may see a window."""

from __future__ import annotations

from checkpoints.values import Values
from models.config import Attention, Biases, Config
from models.reading import alike, common, demand_activation, mixed


def qwen2(values: Values, context: int | None) -> Config:
    demand_activation(values, "silu")
    return Config(
        **common(values, context),
        attention=last_layers_slide(values, context),
        biases=Biases(queries_keys_values=True),
    )


def last_layers_slide(values: Values, context: int | None) -> tuple[Attention, ...]:
    """Layers from max_window_layers on see a window, if use_sliding_window says that any does."""
    layers = alike(values, context)
    if not values.get("use_sliding_window", False) or values.get("sliding_window") is None:
        return layers
    sliding = Attention(layers[0].rope, values["sliding_window"])
    return mixed(values, layers[0], sliding, lambda number: number < values.get("max_window_layers", 28))
