"""Sequences that get a token each at a step, again and again.

All that a step needs is on the device, so it is captured in a graph and replayed: the host has nothing to do meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot_runtime import Device, DeviceArray, Graph, Stream
from generation.arrays import slots_of, tables_of
from generation.blocks import blocks_for
from generation.cache import BLOCK_SIZE, Cache
from generation.sampling import Sampling
from generation.scheduler import Running
from models.decoder import Decoder

Array = np.ndarray


class SamplingArrays:
    """How each row of logits is drawn from, as `sample` takes it.

    Attributes:
        is_limited: whether any row leaves tokens out. Where none does, a kernel serves that does not look for them.
    """

    def __init__(self, device: Device, rows: int):
        self._temperature, self._top_p = (device.zeros((rows,), np.float32) for _ in range(2))
        self._seeds, self._top_k = device.zeros((rows,), np.int64), device.zeros((rows,), np.int32)
        self.is_limited = False

    def load(self, samplings: Sequence[Sampling], stream: Stream) -> None:
        """Of the first rows; others take the likeliest token."""
        rows = [*samplings, *[Sampling()] * (len(self._seeds) - len(samplings))]
        self._temperature.copy_from(np.array([row.temperature for row in rows], np.float32), stream)
        self._seeds.copy_from(np.array([row.seed for row in rows], np.int64), stream)
        self._top_k.copy_from(np.array([row.top_k for row in rows], np.int32), stream)
        self._top_p.copy_from(np.array([row.top_p for row in rows], np.float32), stream)
        self.is_limited = any(row.is_limited for row in rows)

    def arguments(self) -> dict[str, DeviceArray]:
        limits = {"top_k": self._top_k, "top_p": self._top_p} if self.is_limited else {}
        return {"temperature": self._temperature, "seeds": self._seeds, **limits}


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
        self._sampling = SamplingArrays(device, rows)
        self._loaded: tuple[tuple[int, int], ...] = ()
        self._is_warm: set[bool] = set()
        self._graphs: dict[bool, Graph] = {}

    def run(self, sequences: Sequence[Running], steps: int) -> Array:
        """The next tokens of each sequence, int32 [sequences, steps]; waits for them.

        All tokens of the sequences but the last have their keys and values in the cache.
        """
        self.load(sequences)
        self._record.begin(self._stream)
        for _ in range(steps):
            self.step()
        self._loaded = tuple((sequence.number, len(sequence.tokens) + steps) for sequence in sequences)
        return self._record.tokens(self._stream)[: len(sequences), :steps]

    def load(self, sequences: Sequence[Running]) -> None:
        """Have the next step be for these sequences. It is for the same ones, a token further, after a step."""
        state = tuple((sequence.number, len(sequence.tokens)) for sequence in sequences)
        if state == self._loaded:
            return
        idle, stream = self.rows - len(sequences), self._stream
        lasts = [len(sequence.tokens) - 1 for sequence in sequences]
        slots = [slots_of(sequence, last, 1, BLOCK_SIZE)[0] for sequence, last in zip(sequences, lasts, strict=True)]
        self._put(self._ids, [*(sequence.tokens[-1] for sequence in sequences), *[0] * idle])
        # `advance` leaves a row as it is that stands at the last of the tokens that a sequence may have.
        self._put(self._positions, [*lasts, *[self._length - 1] * idle])
        self._put(self._slots, [*slots, *[-1] * idle])
        self._put(self._seqlens, [*(last + 1 for last in lasts), *[0] * idle])
        self._put(self._tables, tables_of(sequences, self.rows, self._width))
        self._sampling.load([sequence.request.sampling for sequence in sequences], stream)
        self._loaded = state

    def step(self) -> None:
        """One more token for each row. The first step of a kind is enqueued op by op, which loads its code; the second
        one is captured."""
        kind = self._sampling.is_limited
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
        model, bundle, stream = self.model, self.model.bundle, self._stream
        attend = model.attend_cache(self.cache, self._tables, self._seqlens, self._starts, stream)
        hidden = model.hidden(self._ids, self._positions, self._slots, self.cache, attend, self._buffers, stream)
        model.head(hidden, self.logits, self._buffers.rows, stream)
        arguments = self._sampling.arguments()
        bundle.sample(self.logits, positions=self._positions, **arguments, out=self._ids, stream=stream)
        bundle.advance(
            self._ids, self._tables, self._tokens, self._positions, self._slots, self._seqlens, block_size=BLOCK_SIZE,
            stream=stream,
        )  # fmt: skip
        self._record.note(model, self._ids, stream)

    def _put(self, array: DeviceArray, values: object) -> None:
        array.copy_from(np.asarray(values, np.int32), self._stream)


class _Record:
    """The tokens of a burst, side by side: `advance` writes them, as it would a text's that begins with the burst."""

    def __init__(self, device: Device, rows: int, burst: int):
        self._tokens = device.zeros((rows, burst), np.int32)
        self._positions, self._slots, self._seqlens = (device.zeros((rows,), np.int32) for _ in range(3))
        self._tables = device.array(np.full((rows, 1), -1, np.int32))

    def begin(self, stream: Stream) -> None:
        self._positions.fill(0xFF, stream)  # -1: before the first

    def note(self, model: Decoder, ids: DeviceArray, stream: Stream) -> None:
        model.bundle.advance(
            ids, self._tables, self._tokens, self._positions, self._slots, self._seqlens, block_size=BLOCK_SIZE,
            stream=stream,
        )  # fmt: skip

    def tokens(self, stream: Stream) -> Array:
        return self._tokens.numpy(stream)
