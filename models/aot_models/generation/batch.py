"""Decode batches of sequences, one token each per step.

The state of a step is on the device, so it is captured in a graph and replayed without work for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from aot_models.decoders.decoder import Decoder
from aot_models.generation.arrays import slots_of, tables_of
from aot_models.generation.blocks import blocks_for
from aot_models.generation.cache import BLOCK_SIZE, Cache
from aot_models.generation.sampler import Kind, Sampler
from aot_models.generation.scheduler import Running
from aot_runtime import Device, DeviceArray, Graph, Stream

Array = np.ndarray


class Batch:
    """A batch of at most `rows` sequences; the remaining rows are idle.

    Args:
        length: the longest sequence, in tokens.
        burst: the largest number of steps before the host reads the tokens.

    Attributes:
        logits: the logits of the last step, [rows, vocabulary].
    """

    def __init__(self, model: Decoder, cache: Cache, rows: int, length: int, burst: int, stream: Stream):
        device = model.device
        self.model, self.cache, self.rows, self._stream = model, cache, rows, stream
        self._length, self._width = length, blocks_for(length, BLOCK_SIZE)
        self._buffers = model.buffers(rows)
        self.logits = device.empty((rows, model.config.vocabulary), model.dtype)
        self._tables = device.empty((rows, self._width), np.int32)
        self._starts = device.array(np.arange(rows + 1, dtype=np.int32))
        self._ids, self._positions, self._slots, self._seqlens = (device.zeros((rows,), np.int32) for _ in range(4))
        self._tokens = device.zeros((rows, length), np.int32)
        self._record = _Record(device, rows, burst)
        self._sampler = Sampler(model, rows)
        self._loaded: tuple[tuple[int, int], ...] = ()
        self._is_warm: set[Kind] = set()
        self._graphs: dict[Kind, Graph] = {}

    def start(self, sequences: Sequence[Running], lengths: Sequence[int], steps: int) -> Callable[[], Array]:
        """Enqueue steps. Returns a function that waits for the new tokens, int32 [sequences, steps].

        The cache has the keys and values of all tokens but the last of each sequence. lengths: the number of tokens
        of each sequence. It may exceed the tokens that the host knows, if the previous burst of this batch makes them.
        Two bursts may be in flight.
        """
        self.load(sequences, lengths)
        self._record.begin(self._stream)
        for _ in range(steps):
            self.step()
        self._loaded = _state(sequences, [length + steps for length in lengths])
        tokens = self._record.end(self._stream)
        return lambda: tokens()[: len(sequences), :steps]

    def load(self, sequences: Sequence[Running], lengths: Sequence[int]) -> None:
        """Prepare the next step for these sequences. Nothing is copied if they follow from the last step."""
        state = _state(sequences, lengths)
        if state == self._loaded:
            return
        assert all(len(s.tokens) == length for s, length in zip(sequences, lengths, strict=True)), "tokens are unknown"
        idle = self.rows - len(sequences)
        lasts = [len(sequence.tokens) - 1 for sequence in sequences]
        slots = [slots_of(sequence, last, 1, BLOCK_SIZE)[0] for sequence, last in zip(sequences, lasts, strict=True)]
        self._put(self._ids, [*(sequence.tokens[-1] for sequence in sequences), *[0] * idle])
        # `advance` leaves a row unchanged that is at the last position.
        self._put(self._positions, [*lasts, *[self._length - 1] * idle])
        self._put(self._slots, [*slots, *[-1] * idle])
        self._put(self._seqlens, [*(last + 1 for last in lasts), *[0] * idle])
        self._put(self._tables, tables_of(sequences, self.rows, self._width))
        self._sampler.load(sequences, self._stream)
        adapters = self.model.adapter_numbers(sequence.request.adapter for sequence in sequences)
        self._buffers.rows.choose(adapters, self._stream)
        self._loaded = state

    def step(self) -> None:
        """Enqueue one step. The first step of a kind runs op by op, which loads the code; the second is captured."""
        kind = self._sampler.kind
        if kind not in self._is_warm:
            self._is_warm.add(kind)
            self._step()
            return
        if kind not in self._graphs:
            with self.model.device.capture(self._stream) as graph:
                self._step()
            self._graphs[kind] = graph
        self._graphs[kind].launch(self._stream)

    def _step(self) -> None:
        model, stream = self.model, self._stream
        attend = model.attend_cache(self.cache, self._tables, self._seqlens, self._starts, stream)
        hidden = model.hidden(self._ids, self._positions, self._slots, self.cache, attend, self._buffers, stream)
        model.head(hidden, self.logits, self._buffers.rows, stream)
        self._sampler.choose(self.logits, self._positions, self._ids, stream)
        model.bundle.advance(
            self._ids, self._tables, self._tokens, self._positions, self._slots, self._seqlens, block_size=BLOCK_SIZE,
            stream=stream,
        )  # fmt: skip
        self._record.note(model, self._ids, stream)

    def _put(self, array: DeviceArray, values: object) -> None:
        array.copy_from(np.asarray(values, np.int32), self._stream)


def _state(sequences: Sequence[Running], lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((sequence.number, length) for sequence, length in zip(sequences, lengths, strict=True))


class _Record:
    """The tokens of two bursts, written by `advance`. The host reads one on another stream while the other runs."""

    def __init__(self, device: Device, rows: int, burst: int):
        self._burst, self._is_second = burst, True
        self._tokens = device.zeros((rows, 2 * burst), np.int32)
        self._positions, self._slots, self._seqlens = (device.zeros((rows,), np.int32) for _ in range(3))
        self._tables = device.array(np.full((rows, 1), -1, np.int32))
        self._reader = device.stream()

    def begin(self, stream: Stream) -> None:
        self._is_second = not self._is_second
        before_first = self._burst * self._is_second - 1
        self._positions.copy_from(np.full(self._positions.shape, before_first, np.int32), stream)

    def note(self, model: Decoder, ids: DeviceArray, stream: Stream) -> None:
        model.bundle.advance(
            ids, self._tables, self._tokens, self._positions, self._slots, self._seqlens, block_size=BLOCK_SIZE,
            stream=stream,
        )  # fmt: skip

    def end(self, stream: Stream) -> Callable[[], Array]:
        """Return a function that waits for the tokens. Call it before the burst after the next one begins."""
        written, first = stream.record(), self._burst * self._is_second

        def tokens() -> Array:
            self._reader.wait(written)
            return self._tokens.numpy(self._reader)[:, first : first + self._burst]

        return tokens
