"""Collect the texts of requests from an engine's events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from aot_models.generation.engine import Event
from aot_models.generation.logprobs import TokenLogprobs, token_logprobs
from aot_models.generation.prompts import Tokens
from aot_models.generation.scheduler import Running, Scheduler
from aot_models.generation.stops import TextStream


@dataclass(eq=False)
class Answer:
    """The answer to a request.

    Attributes:
        logprobs: the log-probabilities of each new token, if requested, including the tokens of a stop string.
    """

    sequence: Running
    stream: TextStream
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def text(self) -> str:
        return self.stream.text

    @property
    def is_done(self) -> bool:
        return bool(self.sequence.finished)


def follow(
    events: Iterable[Event], sequences: Iterable[Running], scheduler: Scheduler, tokens: Tokens
) -> Iterator[tuple[Answer, str]]:
    """Yield each answer that grows or ends, with its new piece of text. A stop string ends its request."""
    answers = {
        sequence: Answer(sequence, TextStream(tokens.decode, sequence.request.prompt, sequence.request.limits.stops))
        for sequence in sequences
    }
    for event in events:
        answer = answers[event.sequence]
        wanted = event.sequence.request.limits.logprobs
        if wanted is not None and event.logits is not None:
            answer.logprobs += [token_logprobs(event.logits, token, wanted) for token in event.tokens]
        piece = "".join(_pieces(answer, event.tokens))
        if answer.stream.stopped:
            scheduler.finish(event.sequence, "stop")
            event.sequence.finished = "stop"  # not "length", which the tokens of the same step may have set
        elif answer.is_done:
            piece += answer.stream.finish()
        yield answer, piece


def _pieces(answer: Answer, tokens: Iterable[int]) -> Iterator[str]:
    for token in tokens:
        if not answer.stream.stopped:
            yield answer.stream.add(token)
