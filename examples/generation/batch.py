"""Sequences that a model continues together: prompts at once, then a captured graph for each token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aot_runtime import DeviceArray, Graph
from generation.cache import BLOCK_SIZE, Cache, ContextError
from models.decoder import Decoder

Array = np.ndarray


@dataclass(frozen=True)
class Sampling:
    """temperature: 0 takes the likeliest token; top_k: among so many, 0: all; top_p: among as few as have that part of
    the probability; seed: sequence i of a batch has seed + i."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


class Generation:
    """Sequences that grow together.

    Raises `ContextError`: a prompt without tokens, one that gets too long for the model, or too many for the cache;
    `ValueError`: a token that the vocabulary has not.

    Attributes:
        logits: [batch, vocabulary], those of the last step.
        lengths: of the prompts.
        steps: tokens that each sequence has got.
    """

    def __init__(
        self,
        model: Decoder,
        cache: Cache,
        prompts: Sequence[Sequence[int]],
        count: int,
        sampling: Sampling | None = None,
    ):
        self.lengths = [len(prompt) for prompt in prompts]
        _check_prompts(model, prompts, count)
        self.model, self.cache, self.count, self.steps = model, cache, count, 0
        self._prompts, self._stream = prompts, model.device.stream()
        self._graph: Graph | None = None
        self._table_rows = cache.take([length + count for length in self.lengths])

        batch, put = len(prompts), model.device.array
        self._buffers = model.buffers(batch)
        self.logits = model.device.empty((batch, model.config.vocabulary), model.dtype)
        self._tables = put(self._table_rows)
        self._starts = put(np.arange(batch + 1, dtype=np.int32))
        self._ids, self._slots = (put(np.zeros(batch, np.int32)) for _ in range(2))
        self._tokens = put(np.zeros((batch, max(self.lengths) + count), np.int32))
        self._positions = put(np.array(self.lengths, np.int32) - 1)
        self._seqlens = put(np.array(self.lengths, np.int32))
        self._sampling = _parameters(model, sampling or Sampling(), batch)

    def close(self) -> None:
        """Give the cache's blocks back."""
        self.cache.give_back(self._table_rows)
        self._table_rows = self._table_rows[:0]

    def prefill(self) -> None:
        """Read the prompts, and sample the first token of each."""
        put, stream = self.model.device.array, self._stream
        ends = np.cumsum(self.lengths)
        starts = put(np.array([0, *ends], np.int32))
        at = np.concatenate([np.arange(length) for length in self.lengths])
        tables = np.repeat(self._table_rows, self.lengths, axis=0)
        blocks = np.take_along_axis(tables, at[:, None] // BLOCK_SIZE, 1)[:, 0]
        written = (np.concatenate(self._prompts), at, blocks * BLOCK_SIZE + at % BLOCK_SIZE, ends - 1)
        ids, positions, slots, last = (put(np.asarray(array, np.int32)) for array in written)
        attend = self.model.attend_prompts(starts, max(self.lengths), stream)
        buffers = self.model.buffers(len(ids))
        hidden = self.model.hidden(ids, positions, slots, self.cache, attend, buffers, stream)
        self.model.bundle.embedding(hidden, last, out=self._buffers.normed, stream=stream)
        self._choose()
        self.steps = 1

    def step(self) -> None:
        """One more token for each sequence. The second is enqueued op by op, then the step is captured and replayed."""
        if self.steps >= self.count:
            raise ContextError(f"the sequences have got their {self.count} tokens")
        if self.steps == 1:
            self._step()
        else:
            if self._graph is None:
                self._graph = self._captured()
            self._graph.launch(self._stream)
        self.steps += 1

    def tokens(self) -> Array:
        """The tokens that each sequence has got, int32 [batch, steps]; waits for them."""
        found = self._tokens.numpy(self._stream)
        return np.stack([row[length : length + self.steps] for row, length in zip(found, self.lengths, strict=True)])

    def bursts(self, burst: int) -> Iterator[Array]:
        """All tokens so far, after each `burst` of steps: so long the device is ahead of the host."""
        self.prefill()
        yield self.tokens()
        while self.steps < self.count:
            for _ in range(min(burst, self.count - self.steps)):
                self.step()
            yield self.tokens()

    def _captured(self) -> Graph:
        with self.model.device.capture(self._stream) as graph:
            self._step()
        return graph

    def _step(self) -> None:
        model, stream = self.model, self._stream
        attend = model.attend_cache(self.cache, self._tables, self._seqlens, self._starts, stream)
        model.hidden(self._ids, self._positions, self._slots, self.cache, attend, self._buffers, stream)
        self._choose()

    def _choose(self) -> None:
        """From the last tokens' hidden states to the next tokens, and to where these go."""
        bundle, stream = self.model.bundle, self._stream
        self.model.head(self._buffers.normed, self.logits, self._buffers.rows, stream)
        bundle.sample(self.logits, positions=self._positions, **self._sampling, out=self._ids, stream=stream)
        bundle.advance(
            self._ids, self._tables, self._tokens, self._positions, self._slots, self._seqlens, block_size=BLOCK_SIZE,
            stream=stream,
        )  # fmt: skip


def _check_prompts(model: Decoder, prompts: Sequence[Sequence[int]], count: int) -> None:
    if count < 1:
        raise ContextError(f"{count} new tokens; at least one is needed")
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise ContextError(f"prompt {number} has no tokens")
        if len(prompt) + count > model.config.context:
            raise ContextError(
                f"prompt {number} has {len(prompt)} tokens, with {count} new ones {len(prompt) + count}; the context "
                f"has {model.config.context}"
            )
        if not 0 <= min(prompt) <= max(prompt) < model.config.vocabulary:
            raise ValueError(f"prompt {number}: tokens are 0 to {model.config.vocabulary - 1}")


def _parameters(model: Decoder, sampling: Sampling, batch: int) -> dict[str, DeviceArray]:
    put = model.device.array
    found = {
        "temperature": put(np.array([sampling.temperature], np.float32)),
        "seeds": put(sampling.seed + np.arange(batch, dtype=np.int64)),
    }
    if sampling.top_k or sampling.top_p < 1:
        found["top_k"] = put(np.array([sampling.top_k], np.int32))
        found["top_p"] = put(np.array([sampling.top_p], np.float32))
    return found


def until_end(tokens: Sequence[int], end: frozenset[int]) -> list[int]:
    """Tokens up to the first that ends a text."""
    found = [int(token) for token in tokens]
    return found[: next((i for i, token in enumerate(found) if token in end), len(found))]
