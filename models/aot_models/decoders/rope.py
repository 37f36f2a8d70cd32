"""Rotary embeddings, plain or stretched beyond the training context."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from aot_models.checkpoints.keys import Table, flag, harmless, held, listed, number, or_null, text, whole
from aot_models.checkpoints.values import CheckpointError, Values, said
from aot_models.decoders.config import Rope

Array = np.ndarray
LENGTHENING = ("linear", "dynamic", "yarn")
"""Kinds whose factor stretches the training context."""


@dataclass(frozen=True)
class Stretch:
    """The inputs of the frequencies.

    Attributes:
        values: the keys of rope_parameters or rope_scaling.
        positions: max_position_embeddings.
        trained: positions in training.
        context: the longest sequence, in tokens.
    """

    values: Values
    theta: float
    dims: int
    positions: int
    trained: int
    context: int

    @cached_property
    def plain(self) -> Array:
        return self.of_base(self.theta)

    def of_base(self, base: float) -> Array:
        return base ** (-np.arange(0, self.dims, 2) / self.dims)


def rope_of(values: Values, head_dim: int, context: int, parameters: Values | None = None) -> Rope:
    """The rotary embedding that config.json describes, for sequences of at most `context` tokens.

    parameters: the embedding's own parameters; by default those of all layers.

    Raises:
        CheckpointError: the kind is not supported, or its keys are missing or wrong.
    """
    scaling = rope_parameters_of(values) if parameters is None else parameters
    share = values.get("partial_rotary_factor", 1.0)
    given = scaling.get("partial_rotary_factor", share)
    values.demand(given == share, f"partial_rotary_factor {given} in the parameters of rope", [str(share)])
    dims = int(head_dim * share)
    values.demand(dims >= 2 and dims % 2 == 0, f"a rotation of {dims} elements of a head", ["even numbers from 2 on"])
    positions = values["max_position_embeddings"]
    trained = values.get("original_max_position_embeddings") or scaling.get("original_max_position_embeddings")
    theta = float(scaling.get("rope_theta", values.get("rope_theta", 1e4)))
    stretch = Stretch(scaling, theta, dims, positions, trained or positions, context)
    frequencies, scale = KINDS[kind_of(scaling)].frequencies(stretch)
    usable = all(math.isfinite(x) and x > 0 for x in (*frequencies.tolist(), scale))
    values.demand(usable, f"rope_type {kind_of(scaling)} with these frequencies", ["finite ones above 0"])
    return Rope(tuple(frequencies.tolist()), scale)


def rope_parameters_of(values: Values) -> Values:
    """The parameters of a rotary embedding that all layers share."""
    return known_parameters(values, given_parameters(values))


def given_parameters(values: Values) -> dict[str, Any]:
    """The value of rope_parameters or, in older files, rope_scaling. Raises `CheckpointError` if the two differ."""
    newer, older = values.get("rope_parameters", {}), values.get("rope_scaling", {})
    values.demand(not (newer and older) or newer == older, "rope_scaling beside other rope_parameters", ["one of them"])
    return newer or older


def known_parameters(values: Values, given: dict[str, Any]) -> Values:
    """Validate parameters by their kind. Raises `CheckpointError` for unknown kinds and keys."""
    kind = kind_of(values.part(given))
    values.demand(isinstance(kind, str) and kind in KINDS, f"rope_type {said(kind)}", KINDS)
    return held(values.part(given), {**PARAMETERS, **KINDS[kind].keys})


def longest_context(values: Values) -> int:
    """The longest sequence, in tokens. A factor stretches the training context."""
    scaling, positions = rope_parameters_of(values), values["max_position_embeddings"]
    if kind_of(scaling) not in LENGTHENING:
        return positions
    trained = scaling.get("original_max_position_embeddings", positions)
    return max(positions, int(trained * scaling.get("factor", 1)))


def kind_of(scaling: Values) -> Any:
    return scaling.get("rope_type") or scaling.get("type") or "default"


Frequencies = tuple[Array, float]
"""(radians per position, factor of cosines and sines)."""


def _default(stretch: Stretch) -> Frequencies:
    return stretch.plain, 1.0


def _linear(stretch: Stretch) -> Frequencies:
    return stretch.plain / stretch.values["factor"], 1.0


def _dynamic(stretch: Stretch) -> Frequencies:
    """Grow the base with the context beyond max_position_embeddings (NTK-aware scaling)."""
    factor, dims = stretch.values["factor"], stretch.dims
    stretch.values.demand(dims > 2, f"rope_type dynamic of {dims} elements of a head", ["4 or more"])
    times = max(stretch.context, stretch.positions) / stretch.positions
    return stretch.of_base(stretch.theta * (factor * times - factor + 1) ** (dims / (dims - 2))), 1.0


def _llama3(stretch: Stretch) -> Frequencies:
    """Keep fast frequencies, stretch slow ones, and interpolate between, by their turns in the training context."""
    values, plain = stretch.values, stretch.plain
    turns = stretch.trained * plain / (2 * math.pi)
    low, high = values["low_freq_factor"], values["high_freq_factor"]
    values.demand(low < high, f"low_freq_factor {low} with high_freq_factor {high}", ["lower ones than that"])
    share = np.clip((turns - low) / (high - low), 0, 1)
    return share * plain + (1 - share) * plain / values["factor"], 1.0


def _yarn(stretch: Stretch) -> Frequencies:
    """Interpolate like llama3, but by the index of the frequency; Peng et al., "YaRN", sections 3.2 to 3.4."""
    values, plain = stretch.values, stretch.plain
    factor = values.get("factor") or stretch.positions / stretch.trained

    def number(turns: float) -> float:
        return stretch.dims * math.log(stretch.trained / (turns * 2 * math.pi)) / (2 * math.log(stretch.theta))

    first, last = number(values.get("beta_fast", 32)), number(values.get("beta_slow", 1))
    if values.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, stretch.dims - 1)
    slow = np.clip((np.arange(len(plain)) - first) / (last - first or 0.001), 0, 1)
    return plain * (1 - slow) + plain / factor * slow, _yarn_scale(values, factor)


def _yarn_scale(values: Values, factor: float) -> float:
    if (given := values.get("attention_factor")) is not None:
        return float(given)

    def temperature(of: float) -> float:
        return 0.1 * of * math.log(factor) + 1 if factor > 1 else 1.0

    one, all_dims = values.get("mscale"), values.get("mscale_all_dim")
    return temperature(one) / temperature(all_dims) if one and all_dims else temperature(1)


def _longrope(stretch: Stretch) -> Frequencies:
    """Divide each frequency by its own divisor; contexts beyond the training have a second set."""
    values = stretch.values
    values.demand(stretch.trained > 1, "rope_type longrope with a training of 1 position", ["2 or more"])
    key = "long_factor" if stretch.context > stretch.trained else "short_factor"
    divisors = values[key]
    if len(divisors) != len(stretch.plain):
        raise CheckpointError(f"{values.path}: {key} has {len(divisors)} numbers, not one for {len(stretch.plain)}")
    factor = values.get("factor") or stretch.positions / stretch.trained
    scale = values.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(stretch.trained)) if factor > 1 else 1.0
    return stretch.plain / np.array(divisors), float(scale)


@dataclass(frozen=True)
class Kind:
    """A kind of rotary embedding: the function for its frequencies, and its own keys."""

    frequencies: Callable[[Stretch], Frequencies]
    keys: Table


FACTOR = number(0, 1e6)
TRAINED = or_null(whole(most=1 << 30))
PARAMETERS: Table = {
    "rope_type": or_null(text()),
    "type": or_null(text()),
    "rope_theta": or_null(number(1, 1e15)),
    "partial_rotary_factor": or_null(number(0, 1)),
    "original_max_position_embeddings": TRAINED,
    **harmless("mrope_section finetuned"),
}
_DIVISORS = listed(FACTOR, 1 << 16)
KINDS: dict[str, Kind] = {
    "default": Kind(_default, {"factor": or_null(FACTOR)}),
    "linear": Kind(_linear, {"factor": FACTOR}),
    "dynamic": Kind(_dynamic, {"factor": FACTOR}),
    "yarn": Kind(
        _yarn,
        {
            "factor": or_null(FACTOR),
            "beta_fast": or_null(FACTOR, 32),
            "beta_slow": or_null(FACTOR, 1),
            "truncate": flag(True),
            "attention_factor": or_null(FACTOR),
            "mscale": or_null(FACTOR),
            "mscale_all_dim": or_null(FACTOR),
        },
    ),
    "llama3": Kind(
        _llama3,
        {
            "factor": FACTOR,
            "low_freq_factor": FACTOR,
            "high_freq_factor": FACTOR,
            "original_max_position_embeddings": whole(most=1 << 30),
        },
    ),
    "longrope": Kind(
        _longrope,
        {
            "factor": or_null(FACTOR),
            "attention_factor": or_null(FACTOR),
            "short_factor": _DIVISORS,
            "long_factor": _DIVISORS,
        },
    ),
}
"""The kinds by rope_type."""
