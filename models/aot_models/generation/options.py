"""How a request's tokens are chosen and when it ends. Each option is held to its type and its range."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from aot_models.checkpoints.values import CheckpointError, read_text
from aot_runtime.texts import shown

LARGEST = 1e300
"""Numbers of options are below it."""


class OptionError(ValueError):
    """An option of generation is unknown, of another type, or out of its range."""


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from its logits.

    Attributes:
        temperature: 0 takes the likeliest token.
        top_k: only so many of the likeliest take part; 0: all.
        top_p: only as few of the likeliest as have this part of the probability take part; 1: all.
        min_p: only tokens with at least this part of the likeliest one's probability take part; 0: all.
        repetition_penalty: divides logits over 0, and multiplies the others, of tokens that the prompt or the text has.
        presence_penalty: is subtracted from the logits of tokens that the new text has.
        frequency_penalty: likewise, as often as the new text has them.
        seed: of the random numbers. What is drawn depends on logits, seed and position, and on no other sequence.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        demand("temperature", self.temperature, "a number from 0 to 1000", 0 <= self.temperature <= 1000)
        demand("top_k", self.top_k, "a whole number from 0 to 2147483647", 0 <= self.top_k < 2**31)
        demand("top_p", self.top_p, "a number over 0, up to 1", 0 < self.top_p <= 1)
        demand("min_p", self.min_p, "a number from 0 to 1", 0 <= self.min_p <= 1)
        demand("repetition_penalty", self.repetition_penalty, "a number over 0, up to 100",
               0 < self.repetition_penalty <= 100)  # fmt: skip
        for name in ("presence_penalty", "frequency_penalty"):
            demand(name, getattr(self, name), "a number from -100 to 100", -100 <= getattr(self, name) <= 100)
        demand("seed", self.seed, "a whole number from 0 to 9223372036854775807", 0 <= self.seed < 2**63)

    @property
    def is_limited(self) -> bool:
        """Whether tokens are left out."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def is_penalised(self) -> bool:
        """Whether tokens that were there before have other logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


@dataclass(frozen=True)
class Limits:
    """When a text ends, and what is said of its tokens.

    Attributes:
        tokens: most new ones.
        stops: strings at which the text ends; they are not part of it.
        ignore_end: go on past tokens that end a text.
        logprobs: of each chosen token and of so many of the likeliest; None: of none.
    """

    tokens: int = 64
    stops: tuple[str, ...] = ()
    ignore_end: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        demand("tokens", self.tokens, "a whole number of at least 1", self.tokens >= 1)
        for stop in self.stops:
            demand("stop", stop, "a text of at least one character", bool(stop))
        if self.logprobs is not None:
            demand("logprobs", self.logprobs, "a whole number from 0 to 100", 0 <= self.logprobs <= 100)


def demand(name: str, given: object, allowed: str, holds: bool) -> None:
    """Raises `OptionError` where it does not hold."""
    if not holds:
        raise OptionError(f"{name} is {shown(given)}; it may be {allowed}")


GREEDY, UNTIL_END = Sampling(), Limits()


@dataclass(frozen=True)
class Defaults:
    """What generation_config.json says of a model.

    Attributes:
        sampling: as published; greedy where it says `do_sample: false`.
        end: tokens that end a text.
        ignored: settings of it that have an effect and are not supported, as name and value.
    """

    sampling: Sampling = GREEDY
    end: frozenset[int] = frozenset()
    ignored: tuple[tuple[str, object], ...] = ()

    @classmethod
    def read(cls, folder: Path, end: frozenset[int] = frozenset()) -> Defaults:
        """Of a checkpoint's folder; `end`: what config.json says. Raises `OptionError`: the file makes no sense."""
        path = folder / "generation_config.json"
        if not os.path.lexists(path):
            return cls(end=end)
        try:
            found = json.loads(read_text(path))
        except CheckpointError as error:
            raise OptionError(str(error)) from None
        except (ValueError, RecursionError) as error:
            raise OptionError(f"{path}: {error}") from None
        try:
            return cls.parse(found, end)
        except OptionError as error:
            raise OptionError(f"{path}: {error}") from None

    @classmethod
    def parse(cls, found: object, end: frozenset[int] = frozenset()) -> Defaults:
        if not isinstance(found, dict):
            raise OptionError("it is no JSON object")
        values = {name: value for name, value in found.items() if value is not None}
        names = (*_ALWAYS, *_SAMPLED) if values.get("do_sample", False) else _ALWAYS
        temperature = {"temperature": 1.0} if values.get("do_sample", False) else {}
        sampling = changed(GREEDY, temperature | {name: values[name] for name in names if name in values})
        ends = values.get("eos_token_id", [])
        ends = ends if isinstance(ends, list) else [ends]
        for token in ends:
            demand("eos_token_id", token, "whole numbers of at least 0", is_whole(token) and token >= 0)
        ignored = tuple((name, values[name]) for name, none in _UNSUPPORTED.items() if values.get(name, none) != none)
        return cls(sampling, frozenset(ends) or end, ignored)


_SAMPLED = ("temperature", "top_k", "top_p", "min_p")
_ALWAYS = ("repetition_penalty",)
_UNSUPPORTED = {
    "typical_p": 1.0, "num_beams": 1, "no_repeat_ngram_size": 0,
    "suppress_tokens": [], "begin_suppress_tokens": [],
}  # fmt: skip
"""Of generation_config.json: settings that would change what is generated, and with which value they do not."""


def changed(options: Any, wanted: Mapping[str, object]) -> Any:
    """A `Sampling` or `Limits` with other values, whose types are checked. Raises `OptionError`."""
    types = {field.name: type(field.default) for field in fields(options)}
    return replace(options, **{name: _typed(name, value, types[name]) for name, value in wanted.items()})


def _typed(name: str, value: object, kind: type) -> object:
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        demand(name, value, "a number", abs(value) < LARGEST)
        return float(value)
    if kind is int or (kind is type(None) and value is not None):
        demand(name, value, "a whole number", is_whole(value))
    elif kind is tuple:
        value = (value,) if isinstance(value, str) else value
        is_texts = isinstance(value, (list, tuple)) and all(isinstance(text, str) for text in value)
        demand(name, value, "a text or a list of texts", is_texts)
        return tuple(value)  # type: ignore[arg-type]
    elif kind is not type(None):
        demand(name, value, "a number" if kind is float else "true or false", isinstance(value, kind))
    return value


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
