"""Sequences that get a token each at a step, again and again.

All that a step needs is on the device, so it is captured in a graph and replayed: the host has nothing to do meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from aot_models.decoders.decoder import Decoder
from aot_models.generation.arrays import slots_of, tables_of
from aot_models.generation.blocks import blocks_for
from aot_models.generation.cache import BLOCK_SIZE, Cache
from aot_models.generation.sampler import Sampler, Kind
from aot_models.generation.scheduler import Running
from aot_runtime import Device, DeviceArray, Graph, Stream

Array = np.ndarray


class Batch:
    """At most `rows` sequences; rows without one idle.

    Args:
        length: tokens that a sequence may have.
        burst: steps between two looks at the tokens, at most.

    Attributes:
        logits: [rows, vocabulary], those of the last step.
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
        """Enqueue so many steps; what waits for the new tokens of each sequence, int32 [sequences, steps].

        All tokens of the sequences but the last have their keys and values in the cache. lengths: how many tokens that
        are. Where these are more than the host knows, the batch has just made the others. Two bursts of steps may be
        under way.
        """
        self.load(sequences, lengths)
        self._record.begin(self._stream)
        for _ in range(steps):
            self.step()
        self._loaded = _state(sequences, [length + steps for length in lengths])
        tokens = self._record.end(self._stream)
        return lambda: tokens()[: len(sequences), :steps]

    def load(self, sequences: Sequence[Running], lengths: Sequence[int]) -> None:
        """Have the next step be for these sequences. It is for the same ones, a token further, after a step."""
        state = _state(sequences, lengths)
        if state == self._loaded:
            return
        assert all(len(s.tokens) == length for s, length in zip(sequences, lengths, strict=True)), "tokens are unknown"
        idle = self.rows - len(sequences)
        lasts = [len(sequence.tokens) - 1 for sequence in sequences]
        slots = [slots_of(sequence, last, 1, BLOCK_SIZE)[0] for sequence, last in zip(sequences, lasts, strict=True)]
        self._put(self._ids, [*(sequence.tokens[-1] for sequence in sequences), *[0] * idle])
        # `advance` leaves a row as it is that stands at the last of the tokens that a sequence may have.
        self._put(self._positions, [*lasts, *[self._length - 1] * idle])
        self._put(self._slots, [*slots, *[-1] * idle])
        self._put(self._seqlens, [*(last + 1 for last in lasts), *[0] * idle])
        self._put(self._tables, tables_of(sequences, self.rows, self._width))
        self._sampler.load(sequences, self._stream)
        adapters = self.model.adapter_numbers(sequence.request.adapter for sequence in sequences)
        self._buffers.rows.choose(adapters, self._stream)
        self._loaded = state

    def step(self) -> None:
        """One more token for each row. The first step of a kind is enqueued op by op, which loads its code; the second
        one is captured."""
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
    """The tokens of two bursts, side by side: `advance` writes them, as it would a text's that begins with the burst.

    The host reads those of one, on a stream of its own, while the other one runs.
    """

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
        """What waits for the burst's tokens. The next one may be begun before, and not the one after that."""
        written, first = stream.record(), self._burst * self._is_second

        def tokens() -> Array:
            self._reader.wait(written)
            return self._tokens.numpy(self._reader)[:, first : first + self._burst]

        return tokens
