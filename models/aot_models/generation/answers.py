"""What becomes of events: the texts of requests, as they grow and when they are done."""

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
    """A request's text.

    Attributes:
        text: the new one so far; a stop string is not part of it.
        logprobs: of each new token, where they are wanted. Those of a stop string are among them.
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
    """Each answer that goes on, or is done, and what its text has gained. A stop string ends its request."""
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
            event.sequence.finished = "stop"  # rather than a length that it has reached behind it
        elif answer.is_done:
            piece += answer.stream.finish()
        yield answer, piece


def _pieces(answer: Answer, tokens: Iterable[int]) -> Iterator[str]:
    for token in tokens:
        if not answer.stream.stopped:
            yield answer.stream.add(token)
