"""Options of a request: sampling parameters and limits, each checked for its type and range."""

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
"""The bound of all numbers."""


class OptionError(ValueError):
    """An option is unknown, of a wrong type, or out of range."""


@dataclass(frozen=True)
class Sampling:
    """Parameters for sampling a token from its logits.

    Attributes:
        temperature: 0 selects the likeliest token.
        top_k: keep the k likeliest tokens; 0: all.
        top_p: keep the likeliest tokens whose probabilities sum up to p; 1: all.
        min_p: keep tokens with at least this fraction of the largest probability; 0: all.
        repetition_penalty: divides positive logits, and multiplies negative ones, of tokens in the prompt or the text.
        presence_penalty: is subtracted from the logits of tokens in the new text.
        frequency_penalty: is subtracted once for each occurrence in the new text.
        seed: the seed of the random numbers. A sample depends on logits, seed and position, not on other sequences.
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
        """Some tokens are excluded from sampling."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def is_penalised(self) -> bool:
        """Logits depend on earlier tokens."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


@dataclass(frozen=True)
class Limits:
    """The end of a text, and the log-probabilities to report.

    Attributes:
        tokens: the largest number of new tokens.
        stops: strings that end the text; they are not part of it.
        ignore_end: continue after tokens that end a text.
        logprobs: report the log-probability of each chosen token and of this many likeliest tokens; None: report none.
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
    """Raise `OptionError` unless `holds` is true."""
    if not holds:
        raise OptionError(f"{name} is {shown(given)}; it may be {allowed}")


GREEDY, UNTIL_END = Sampling(), Limits()


@dataclass(frozen=True)
class Defaults:
    """The defaults of a model, from generation_config.json.

    Attributes:
        sampling: the published parameters; greedy with `do_sample: false`.
        end: tokens that end a text.
        ignored: settings with an effect that is not supported, as (name, value).
    """

    sampling: Sampling = GREEDY
    end: frozenset[int] = frozenset()
    ignored: tuple[tuple[str, object], ...] = ()

    @classmethod
    def read(cls, folder: Path, end: frozenset[int] = frozenset()) -> Defaults:
        """Read a checkpoint's folder. end: the tokens in config.json. Raises `OptionError` if the file is invalid."""
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
            raise OptionError("not a JSON object")
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
"""Unsupported settings of generation_config.json, with the values that have no effect."""


def changed(options: Any, wanted: Mapping[str, object]) -> Any:
    """Replace values of a `Sampling` or `Limits`. Raises `OptionError` for wrong types and ranges."""
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
