"""Continuous batching: choose the tokens of the next pass.

A request waits for a slot and for all the blocks that it may need, so a running request is never preempted. It leaves
as soon as it is done. Requests enter in the order of submission. No device is used here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from aot_models.generation.blocks import BlockPool, Key, blocks_for, keys_of
from aot_models.generation.options import GREEDY, UNTIL_END, Limits, Sampling, demand


class ContextError(ValueError):
    """A sequence exceeds the model's context or the size of the cache."""


@dataclass(frozen=True)
class Request:
    """A prompt's tokens, and the options of its continuation.

    Attributes:
        end: tokens that end the text; they are not part of it.
        adapter: the name of the adapter; "": none.
    """

    prompt: tuple[int, ...]
    sampling: Sampling = GREEDY
    limits: Limits = UNTIL_END
    end: frozenset[int] = frozenset()
    adapter: str = ""

    @property
    def longest(self) -> int:
        """The largest number of tokens of the sequence."""
        return len(self.prompt) + self.limits.tokens


@dataclass(eq=False)
class Running:
    """A submitted request.

    Attributes:
        number: the order of submission.
        tokens: the tokens of the prompt and the new ones.
        computed: number of tokens with keys and values in the cache.
        blocks: blocks of the cache, in order; empty before it enters and after it is done.
        finished: the reason for the end: "end" (an end token), "stop" (a stop string), "length"; "" while it runs.
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
    """Tokens start to start + count of a sequence, computed by one pass.

    samples: the span ends with the sequence's last token, so that the next token is sampled.
    """

    sequence: Running
    start: int
    count: int
    samples: bool


@dataclass(frozen=True)
class Step:
    """A pass over at most one span of each sequence.

    repeats: number of tokens to sample before the host reads them; more than 1 only if all spans are one token.
    """

    spans: tuple[Span, ...]
    repeats: int = 1

    @property
    def sampling(self) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span.samples)


class Scheduler:
    """The waiting and the running requests.

    Args:
        slots: the largest number of running sequences.
        chunk: the most prompt tokens in a pass.
        burst: the most steps before the host reads the tokens.
        context: the longest sequence, in tokens.
        vocabulary: the number of tokens in the vocabulary.

    Attributes:
        running: the sequences that have entered, in order.
        shared: prompt tokens that were found in the cache.
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
        """Queue a request. Raises `ContextError` if it can never enter, `ValueError` for unknown tokens."""
        number = self._count
        check_request(request, number, self.context, self.vocabulary)
        needed, size, tokens = blocks_for(request.longest, self.block_size), self.block_size, len(request.prompt)
        if needed > self.pool.count:
            raise ContextError(
                f"prompt {number} of {tokens} tokens needs, with {request.limits.tokens} new ones, {needed} blocks of "
                f"{size} tokens; the cache has {self.pool.count}"
            )
        # The last token is always computed, since its logits are needed.
        keys = tuple(keys_of(request.prompt[:-1], size, request.adapter))
        sequence = Running(request, number, list(request.prompt), keys)
        self._waiting.append(sequence)
        self._count += 1
        return sequence

    def next(self) -> Step | None:
        """The next step; None if no request is left."""
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
        """The step after the current one, if it is the same for all possible tokens; otherwise None.

        A sequence that has ended meanwhile is computed in vain, in blocks that may have a new user. So steps must be
        computed in order.
        """
        spans = step.spans
        may_enter = self._waiting and len(self.running) < self.slots
        if may_enter or len(spans) < len(self.running) or not all(self._goes_on(span, step.repeats) for span in spans):
            return None
        repeats = min(min(self.burst, span.sequence.remaining - step.repeats) for span in spans)
        return Step(tuple(Span(span.sequence, span.start + step.repeats, 1, True) for span in spans), repeats)

    def _goes_on(self, span: Span, repeats: int) -> bool:
        """True if the sequence continues, whatever its tokens are."""
        sequence = span.sequence
        unknown = not sequence.finished and sequence.request.limits.logprobs is None
        return unknown and span.count == 1 and span.samples and sequence.remaining > repeats

    def done(self, step: Step, tokens: Sequence[Sequence[int]]) -> list[tuple[Running, list[int]]]:
        """Record the result of a step: `step.repeats` tokens for each span that samples.

        Returns the sequences that grew, with their new tokens up to the end of the text. Finished ones do not grow.
        """
        for span in step.spans:
            span.sequence.computed = span.start + span.count
        return [
            (span.sequence, self._grow(span.sequence, found))
            for span, found in zip(step.sampling, tokens, strict=True)
            if not span.sequence.finished
        ]

    def finish(self, sequence: Running, reason: str) -> None:
        """End a sequence, which may be waiting or running, and free its blocks."""
        if sequence.finished:
            return
        sequence.finished = reason
        (self.running if sequence in self.running else self._waiting).remove(sequence)
        for block in reversed(sequence.blocks):  # the beginning stays longest, since others may share it
            self.pool.give_back(block)
        sequence.blocks = []

    def _admit(self) -> None:
        while self._waiting and len(self.running) < self.slots and self._enter(self._waiting[0]):
            self.running.append(self._waiting.popleft())

    def _enter(self, sequence: Running) -> bool:
        """Take all blocks of a sequence: shared ones for its prompt, and new ones. False if too few are free."""
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
        """Replace blocks that another sequence has computed since this one entered."""
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
        """The next `count` tokens of a sequence. Blocks that they fill can be shared at once, since a pass writes all
        keys and values of a layer before it reads any."""
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
        # The model has computed all tokens but the last.
        sequence.computed = max(sequence.computed, len(sequence.tokens) - 1)
        return new


def check_request(request: Request, number: int, context: int, vocabulary: int) -> None:
    """Check a request. Raises `ContextError` for an empty prompt and for sequences beyond the context, `ValueError` for
    tokens outside of the vocabulary."""
    if not request.prompt:
        raise ContextError(f"prompt {number} has no tokens")
    if request.longest > context:
        raise ContextError(
            f"prompt {number} has {len(request.prompt)} tokens, with {request.limits.tokens} new ones "
            f"{request.longest}; the context has {context}"
        )
    if not 0 <= min(request.prompt) <= max(request.prompt) < vocabulary:
        raise ValueError(f"prompt {number}: tokens are 0 to {vocabulary - 1}")
