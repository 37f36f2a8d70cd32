"""Continuous batching: which tokens of which requests are computed in the next pass.

A request waits until a slot and all the blocks that it may come to need are free, enters, and leaves as soon as it is
done; so no request that entered is ever stopped for want of memory. Requests enter in the order in which they came.
Nothing here touches a device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from aot_models.generation.blocks import BlockPool, Key, blocks_for, keys_of
from aot_models.generation.options import GREEDY, UNTIL_END, Limits, Sampling, demand


class ContextError(ValueError):
    """A sequence is longer than the model's context, or needs more of the cache than there is."""


@dataclass(frozen=True)
class Request:
    """A prompt's tokens, and how they are to be continued.

    Attributes:
        end: tokens that end the text; they are not part of it.
        adapter: the name of what changes the model's weights for this request; "": nothing does.
    """

    prompt: tuple[int, ...]
    sampling: Sampling = GREEDY
    limits: Limits = UNTIL_END
    end: frozenset[int] = frozenset()
    adapter: str = ""

    @property
    def longest(self) -> int:
        """Tokens that the sequence may come to have."""
        return len(self.prompt) + self.limits.tokens


@dataclass(eq=False)
class Running:
    """A request on its way.

    Attributes:
        number: by the order in which requests came.
        tokens: the prompt's, then the new ones.
        computed: how many of the tokens have their keys and values in the cache.
        blocks: of the cache, in order; none before it has entered and after it is done.
        finished: why it is done: "end" (a token that ends texts), "stop" (a stop string), "length"; "" before that.
    """

    request: Request
    number: int
    tokens: list[int]
    keys: tuple[Key, ...]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    finished: str = ""

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def remaining(self) -> int:
        return self.request.longest - len(self.tokens)

    @property
    def new_tokens(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]


@dataclass(frozen=True)
class Span:
    """Tokens start to start + count of a sequence, whose keys and values a pass computes.

    samples: whether its last token is the sequence's, so that the pass chooses the next one.
    """

    sequence: Running
    start: int
    count: int
    samples: bool


@dataclass(frozen=True)
class Step:
    """One pass over tokens of several sequences, at most one span of each.

    repeats: how often a token is chosen for each before anybody looks; more than 1 only where each span is one token.
    """

    spans: tuple[Span, ...]
    repeats: int = 1

    @property
    def sampling(self) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span.samples)


class Scheduler:
    """The requests that wait and those that run.

    Args:
        slots: sequences that run at a time, at most.
        chunk: tokens of prompts in one pass, at most.
        burst: steps between two looks at the tokens, at most.
        context: tokens of a sequence, at most.
        vocabulary: tokens are below it.

    Attributes:
        running: the sequences that have entered, in the order in which they came.
        shared: tokens of prompts that were found in the cache, and so were not computed again.
    """

    def __init__(
        self, pool: BlockPool, block_size: int, slots: int, chunk: int, burst: int, context: int,
        vocabulary: int = 1 << 31,
    ):  # fmt: skip
        for name, value in (("slots", slots), ("chunk", chunk), ("burst", burst)):
            demand(name, value, "a whole number of at least 1", value >= 1)
        self.pool, self.block_size, self.slots = pool, block_size, slots
        self.chunk, self.burst, self.context, self.vocabulary = chunk, burst, context, vocabulary
        self.running: list[Running] = []
        self.shared = 0
        self._waiting: deque[Running] = deque()
        self._count = 0

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self.running

    def submit(self, request: Request) -> Running:
        """Have a request wait. Raises `ContextError` where it can never enter, `ValueError` for unknown tokens."""
        number = self._count
        check_request(request, number, self.context, self.vocabulary)
        needed, size, tokens = blocks_for(request.longest, self.block_size), self.block_size, len(request.prompt)
        if needed > self.pool.count:
            raise ContextError(
                f"prompt {number} of {tokens} tokens needs, with {request.limits.tokens} new ones, {needed} blocks of "
                f"{size} tokens; the cache has {self.pool.count}"
            )
        # The last token is always computed: the next one is chosen by what the model makes of it.
        keys = tuple(keys_of(request.prompt[:-1], size, request.adapter))
        sequence = Running(request, number, list(request.prompt), keys)
        self._waiting.append(sequence)
        self._count += 1
        return sequence

    def next(self) -> Step | None:
        """What is to be computed now; None where no request is left."""
        self._admit()
        reading = [sequence for sequence in self.running if sequence.pending > 1]
        spans = [self._span(sequence, 1) for sequence in self.running if sequence.pending == 1]
        repeats = 1 if reading else min([self._patience(span.sequence) for span in spans], default=1)
        left = self.chunk
        for sequence in reading:
            if left:
                self._reuse(sequence)
                spans.append(self._span(sequence, min(left, sequence.pending)))
                left -= spans[-1].count
        return Step(tuple(spans), repeats) if spans else None

    def following(self, step: Step) -> Step | None:
        """The step after one that is under way, whatever its tokens are; None where it depends on them.

        A sequence that turns out to be done gets its tokens for nothing, and its blocks may be another's by then: steps
        have to be computed one after the other.
        """
        spans = step.spans
        may_enter = self._waiting and len(self.running) < self.slots
        if may_enter or len(spans) < len(self.running) or not all(self._goes_on(span, step.repeats) for span in spans):
            return None
        repeats = min(min(self.burst, span.sequence.remaining - step.repeats) for span in spans)
        return Step(tuple(Span(span.sequence, span.start + step.repeats, 1, True) for span in spans), repeats)

    def _goes_on(self, span: Span, repeats: int) -> bool:
        """Whether a span is of a sequence that gets further tokens without anybody looking."""
        sequence = span.sequence
        unknown = not sequence.finished and sequence.request.limits.logprobs is None
        return unknown and span.count == 1 and span.samples and sequence.remaining > repeats

    def done(self, step: Step, tokens: Sequence[Sequence[int]]) -> list[tuple[Running, list[int]]]:
        """Take note of a step's result: `step.repeats` tokens for each span that samples.

        Returns the sequences that got tokens, and those that they got: none behind a token that ends the text, which is
        not among them either. Sequences that were done before get none.
        """
        for span in step.spans:
            span.sequence.computed = span.start + span.count
        return [
            (span.sequence, self._grow(span.sequence, found))
            for span, found in zip(step.sampling, tokens, strict=True)
            if not span.sequence.finished
        ]

    def finish(self, sequence: Running, reason: str) -> None:
        """A sequence is done, running or not: its blocks are free."""
        if sequence.finished:
            return
        sequence.finished = reason
        (self.running if sequence in self.running else self._waiting).remove(sequence)
        for block in reversed(sequence.blocks):  # a text's beginning stays longest: it is what others share
            self.pool.give_back(block)
        sequence.blocks = []

    def _admit(self) -> None:
        while self._waiting and len(self.running) < self.slots and self._enter(self._waiting[0]):
            self.running.append(self._waiting.popleft())

    def _enter(self, sequence: Running) -> bool:
        """Take blocks for all of a sequence: those that the pool has of its prompt, and new ones."""
        needed = blocks_for(sequence.request.longest, self.block_size)
        idle = known = 0
        for key in sequence.keys:
            if not self.pool.has(key):
                break
            known, idle = known + 1, idle + self.pool.idle_with(key)
        if needed - known + idle > self.pool.free:
            return False
        for key in sequence.keys[:known]:
            self._append_shared(sequence, key)
        sequence.blocks += [self.pool.take() for _ in range(needed - known)]
        return True

    def _append_shared(self, sequence: Running, key: Key) -> None:
        block = self.pool.share(key)
        assert block is not None
        sequence.blocks.append(block)
        sequence.computed += self.block_size
        self.shared += self.block_size

    def _reuse(self, sequence: Running) -> None:
        """Put blocks that others have computed since a sequence entered in the place of its own ones."""
        index, rest = divmod(sequence.computed, self.block_size)
        while not rest and index < len(sequence.keys):
            block = self.pool.share(sequence.keys[index])
            if block is None:
                break
            self.pool.give_back(sequence.blocks[index])
            sequence.blocks[index] = block
            sequence.computed += self.block_size
            self.shared += self.block_size
            index += 1

    def _span(self, sequence: Running, count: int) -> Span:
        """The next tokens of a sequence. Others may share its blocks that are full then: a pass writes the keys and
        values of all its tokens before it reads any."""
        start, end = sequence.computed, sequence.computed + count
        for index in range(start // self.block_size, min(end // self.block_size, len(sequence.keys))):
            self.pool.publish(sequence.blocks[index], sequence.keys[index])
        return Span(sequence, start, count, end == len(sequence.tokens))

    def _patience(self, sequence: Running) -> int:
        return 1 if sequence.request.limits.logprobs is not None else min(self.burst, sequence.remaining)

    def _grow(self, sequence: Running, found: Sequence[int]) -> list[int]:
        new: list[int] = []
        end = frozenset() if sequence.request.limits.ignore_end else sequence.request.end
        for token in found:
            if token in end:
                self.finish(sequence, "end")
                break
            new.append(token)
            sequence.tokens.append(token)
            if not sequence.remaining:
                self.finish(sequence, "length")
                break
        # All but the last have been through the model.
        sequence.computed = max(sequence.computed, len(sequence.tokens) - 1)
        return new


def check_request(request: Request, number: int, context: int, vocabulary: int) -> None:
    """Raises `ContextError` for a prompt without tokens, or one that gets longer than the context; `ValueError` for one
    with tokens that the vocabulary has not."""
    if not request.prompt:
        raise ContextError(f"prompt {number} has no tokens")
    if request.longest > context:
        raise ContextError(
            f"prompt {number} has {len(request.prompt)} tokens, with {request.limits.tokens} new ones "
            f"{request.longest}; the context has {context}"
        )
    if not 0 <= min(request.prompt) <= max(request.prompt) < vocabulary:
        raise ValueError(f"prompt {number}: tokens are 0 to {vocabulary - 1}")
