"""Write answers: as text in the order of the prompts, the current one as it grows; or as one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from aot_models.generation.answers import Answer
from aot_models.generation.logprobs import TokenLogprobs
from aot_models.generation.prompts import Tokens

Write = Callable[[str], object]


class Output(Protocol):
    def show(self, answer: Answer, piece: str) -> None:
        """Write a new piece of an answer, or its end."""


class TextOutput:
    """Writes texts. openings: the text before each answer, by the number of its request."""

    def __init__(self, openings: Sequence[str], write: Write):
        self._openings, self._write = openings, write
        self._answers: dict[int, Answer] = {}
        self._current = 0
        self._begin()

    def show(self, answer: Answer, piece: str) -> None:
        self._answers[answer.sequence.number] = answer
        if answer.sequence.number != self._current:
            return
        self._write(piece)
        while (current := self._answers.get(self._current)) is not None and current.is_done:
            self._write("\n")
            self._current += 1
            self._begin()

    def _begin(self) -> None:
        if self._current < len(self._openings):
            self._write(self._openings[self._current])
            if self._current in self._answers:
                self._write(self._answers[self._current].text)


class JsonOutput:
    """Output as JSON lines, with the fields of `record`."""

    def __init__(self, tokens: Tokens, write: Write):
        self._tokens, self._write = tokens, write

    def show(self, answer: Answer, piece: str) -> None:
        if answer.is_done:
            self._write(json.dumps(record(answer, self._tokens), ensure_ascii=False) + "\n")


def record(answer: Answer, tokens: Tokens) -> dict[str, Any]:
    """A done answer: its number, text, why it ended, and how many tokens there were."""
    sequence = answer.sequence
    found = {
        "index": sequence.number,
        "text": answer.text,
        "finish": sequence.finished,
        "prompt_tokens": len(sequence.request.prompt),
        "new_tokens": len(sequence.new_tokens),
    }
    if sequence.request.limits.logprobs is not None:
        found["logprobs"] = [_logprobs(entry, tokens) for entry in answer.logprobs]
    return found


def _logprobs(entry: TokenLogprobs, tokens: Tokens) -> dict[str, Any]:
    def named(token: int, logprob: float) -> dict[str, Any]:
        return {"token": token, "text": tokens.text(token), "logprob": round(logprob, 6)}

    return {**named(entry.token, entry.logprob), "top": [named(*one) for one in entry.top]}
