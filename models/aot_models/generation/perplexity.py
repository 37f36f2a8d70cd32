"""How well a model foresees a text: the mean logarithm of the probabilities that it gives the text's tokens.

A text that is longer than a window is read in windows that overlap: each token is judged once, in the first window that
has it, with all that is before it there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aot_models.decoders.buffers import Buffers
from aot_models.decoders.decoder import Decoder
from aot_models.generation.cache import Cache
from aot_models.generation.logprobs import log_softmax
from aot_models.generation.options import demand
from aot_runtime import DeviceArray

ROWS = 256
"""Rows of logits that are computed at a time."""


@dataclass(frozen=True)
class Window:
    """Tokens begin to end are read, those from `first` on are judged."""

    begin: int
    first: int
    end: int


def windows(count: int, size: int, stride: int) -> Iterator[Window]:
    """Of a text of so many tokens; each window begins `stride` tokens behind the one before. The first token of a text
    is not judged: nothing foresees it.

    Raises `OptionError`: a window without a token that is judged, a stride with which tokens would be left out.
    """
    demand("window", size, "a whole number of at least 2", size >= 2)
    demand("stride", stride, f"a whole number from 1 to {size - 1}, less than the window", 1 <= stride < size)
    demand("the number of the text's tokens", count, "2 or more", count >= 2)
    judged = 1
    for begin in range(0, count, stride):
        end = min(begin + size, count)
        yield Window(begin, judged, end)
        judged = end
        if end == count:
            return


@dataclass(frozen=True)
class Score:
    """Of `count` tokens; logprob: the sum of their probabilities' natural logarithms."""

    logprob: float = 0.0
    count: int = 0

    @property
    def perplexity(self) -> float:
        return math.exp(-self.logprob / self.count)

    def __add__(self, other: Score) -> Score:
        return Score(self.logprob + other.logprob, self.count + other.count)


class Judge:
    """A model that reads windows of at most `size` tokens; nothing of them is kept in a cache."""

    def __init__(self, model: Decoder, size: int):
        self._model, self._stream = model, model.device.stream()
        self._cache = Cache(model, 1)
        self._logits = model.device.empty((min(ROWS, size), model.config.vocabulary), model.dtype)

    def score(self, tokens: Sequence[int], first: int) -> Score:
        """Of the tokens from `first` on, behind those before them. Raises `ValueError`: a token that there is not."""
        vocabulary = self._model.config.vocabulary
        if not 0 <= min(tokens) <= max(tokens) < vocabulary:
            raise ValueError(f"tokens are 0 to {vocabulary - 1}")
        buffers = self._model.buffers(len(tokens))
        hidden = self._hidden(tokens, buffers)
        total = Score()
        for begin in range(first - 1, len(tokens) - 1, len(self._logits)):
            end = min(begin + len(self._logits), len(tokens) - 1)
            logits = self._logits[: end - begin]
            self._model.head(hidden[begin:end], logits, buffers.rows, self._stream)
            found = log_softmax(logits.numpy(self._stream))
            chosen = found[np.arange(end - begin), np.asarray(tokens[begin + 1 : end + 1])]
            total += Score(float(chosen.sum()), end - begin)
        return total

    def _hidden(self, tokens: Sequence[int], buffers: Buffers) -> DeviceArray:
        model, stream, count = self._model, self._stream, len(tokens)
        columns = (tokens, np.arange(count), np.full(count, -1), (0, count))
        ids, positions, nowhere, starts = (model.device.array(np.asarray(x, np.int32), stream=stream) for x in columns)
        attend = model.attend_prompts(starts, count, stream)
        return model.hidden(ids, positions, nowhere, self._cache, attend, buffers, stream)


def judge(model: Decoder, tokens: Sequence[int], size: int, stride: int) -> Iterator[Score]:
    """The score so far, after each window."""
    reader, total = Judge(model, size), Score()
    for window in windows(len(tokens), size, stride):
        total += reader.score(tokens[window.begin : window.end], window.first - window.begin)
        yield total
