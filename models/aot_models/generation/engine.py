"""Run a scheduler's steps on a device. Prompts are computed in chunks, and steps that only decode are replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from aot_models.decoders.buffers import Buffers
from aot_models.decoders.decoder import Attend, Decoder
from aot_models.generation.arrays import Part, Pass, pass_of
from aot_models.generation.batch import Batch
from aot_models.generation.blocks import blocks_for
from aot_models.generation.cache import BLOCK_SIZE, Cache
from aot_models.generation.sampler import Sampler
from aot_models.generation.scheduler import Running, Scheduler, Step
from aot_runtime import DeviceArray

Array = np.ndarray


@dataclass(frozen=True)
class Result:
    """The result of a step.

    Attributes:
        tokens: the new tokens of each span that samples, in the step's order.
        logits: the logits, float32 [vocabulary], of sequences that want log-probabilities.
    """

    tokens: Sequence[Sequence[int]]
    logits: Mapping[Running, Array] = field(default_factory=dict)


class Engine:
    """A model, its cache, and a captured step for each batch size.

    Args:
        slots: the largest number of running sequences.
        length: the longest sequence, in tokens.
        burst: as for `Scheduler`.

    Attributes:
        stream: the stream of all work.
    """

    def __init__(self, model: Decoder, cache: Cache, slots: int, length: int, burst: int):
        self.model, self.cache = model, cache
        self.sizes = batch_sizes(slots)
        self._length, self._burst = length, burst
        self.stream = model.device.stream()
        self._batches: dict[int, Batch] = {}

    def run(self, step: Step) -> Result:
        """Compute a step and wait for its tokens. Does not wait if no token is sampled."""
        return self.start(step)()

    def start(self, step: Step) -> Callable[[], Result]:
        """Enqueue a step. Returns a function that waits for its result; the following step may be started before."""
        if all(span.count == 1 and span.samples for span in step.spans):
            sequences = [span.sequence for span in step.spans]
            batch = self.batch(len(sequences))
            tokens = batch.start(sequences, [span.start + 1 for span in step.spans], step.repeats)
            return lambda: Result(tokens().tolist(), self._logits(sequences, batch.logits))
        return self._pass(step)

    def batch(self, sequences: int) -> Batch:
        """Return the smallest batch that holds this many sequences."""
        rows = next(size for size in self.sizes if size >= sequences)
        if rows not in self._batches:
            self._batches[rows] = Batch(self.model, self.cache, rows, self._length, self._burst, self.stream)
        return self._batches[rows]

    def _pass(self, step: Step) -> Callable[[], Result]:
        found, stream = pass_of(step, BLOCK_SIZE, blocks_for(self._length, BLOCK_SIZE)), self.stream
        ids, positions, slots = (self._put(array) for array in (found.ids, found.positions, found.slots))
        attend = beside([(part.rows, self._attend(part)) for part in found.parts])
        buffers = self.model.buffers(len(found.ids))
        buffers.rows.choose(self.model.adapter_numbers(found.adapters), stream)
        hidden = self.model.hidden(ids, positions, slots, self.cache, attend, buffers, stream)
        if not found.spans:
            return lambda: Result([])
        sequences = [span.sequence for span in found.spans]
        tokens, logits = self._choose(found, hidden, buffers, sequences)

        def result() -> Result:
            chosen = dict(zip(sequences, tokens.numpy(stream).tolist(), strict=True))
            return Result([[chosen[span.sequence]] for span in step.sampling], self._logits(sequences, logits))

        return result

    def _choose(
        self, found: Pass, hidden: DeviceArray, buffers: Buffers, sequences: Sequence[Running]
    ) -> tuple[DeviceArray, DeviceArray]:
        """(tokens, logits) of the spans that sample, from the hidden states of their last tokens."""
        model, stream, rows = self.model, self.stream, len(sequences)
        last = model.device.empty((rows, hidden.shape[1]), model.dtype)
        logits = model.device.empty((rows, model.config.vocabulary), model.dtype)
        model.bundle.embedding(hidden, self._put(found.last), out=last, stream=stream)
        model.head(last, logits, buffers.rows, stream)
        chosen, sampler = model.device.empty((rows,), np.int32), Sampler(model, rows)
        sampler.load(sequences, stream)
        sampler.choose(logits, self._put(found.positions[found.last]), chosen, stream)
        return chosen, logits

    def _attend(self, part: Part) -> Attend:
        starts = self._put(part.starts)
        if part.fresh:
            return self.model.attend_prompts(starts, part.longest, self.stream)
        tables, seqlens = self._put(part.tables), self._put(part.seqlens)
        return self.model.attend_cache(self.cache, tables, seqlens, starts, self.stream, part.longest)

    def _logits(self, sequences: Sequence[Running], logits: DeviceArray) -> dict[Running, Array]:
        wanted = [row for row, sequence in enumerate(sequences) if sequence.request.limits.logprobs is not None]
        return {sequences[row]: logits[row].numpy(self.stream).astype(np.float32) for row in wanted}

    def _put(self, array: Array) -> DeviceArray:
        return self.model.device.array(array, stream=self.stream)


def beside(parts: Sequence[tuple[slice, Attend]]) -> Attend:
    """Return an attention function that computes each part of the tokens by its own function."""

    def attend(q: DeviceArray, k: DeviceArray, v: DeviceArray, number: int, out: DeviceArray) -> None:
        for rows, part in parts:
            part(q[rows], k[rows], v[rows], number, out[rows])

    return attend


def batch_sizes(slots: int) -> tuple[int, ...]:
    """The captured batch sizes: powers of two, and `slots`."""
    return (*(2**power for power in range(slots.bit_length()) if 2**power < slots), slots)


@dataclass(frozen=True)
class Event:
    """New tokens of a sequence. logits: the logits of a single new token, float32 [vocabulary], if wanted."""

    sequence: Running
    tokens: list[int]
    logits: Array | None = None


def serve(scheduler: Scheduler, engine: Engine) -> Iterator[Event]:
    """Run all requests, including those that are submitted meanwhile. The consumer may finish sequences.

    If the next step does not depend on the tokens of the current one, it is enqueued before these are read, so that the
    device does not wait for the host.
    """
    step, result = scheduler.next(), None
    while step is not None:
        result = result or engine.start(step)
        following = scheduler.following(step)
        coming = engine.start(following) if following else None
        found = result()
        for sequence, tokens in scheduler.done(step, found.tokens):
            yield Event(sequence, tokens, found.logits.get(sequence))
        step, result = following or scheduler.next(), coming
