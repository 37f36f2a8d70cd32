"""Text from a Llama-family checkpoint and a bundle, with numpy alone on the host.

    aotbuild --arch gfx942 manifests/llama.yaml
    python examples/llama.py CHECKPOINT dist/llama-gfx942 "Once upon a time"

CHECKPOINT is a folder as published: config.json, *.safetensors (float16, bfloat16, or of 4 bits: GPTQ, AWQ) and
tokenizer.json. Prompts are read by flash_attention_varlen; then each token of all sequences is one replay of a captured
graph, which leaves the tokens on the device: the host looks at them every few steps.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llama_checkpoint import Checkpoint, CheckpointError
from llama_model import BLOCK_SIZE, DTYPES, Cache, ContextError, Llama, MissingOpError, blocks_for

from aot_runtime import AotError, DeviceArray, open_bundle

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
        self, model: Llama, cache: Cache, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling | None = None
    ):
        self.lengths = [len(prompt) for prompt in prompts]
        _check_prompts(model, prompts, count)
        self.model, self.cache, self.count, self.steps = model, cache, count, 0
        self._prompts, self._stream, self._graph = prompts, model.device.stream(), None
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
        positions = np.concatenate([np.arange(length) for length in self.lengths])
        rows = np.repeat(self._table_rows, self.lengths, axis=0)
        blocks = np.take_along_axis(rows, positions[:, None] // BLOCK_SIZE, 1)[:, 0]
        slots = blocks * BLOCK_SIZE + positions % BLOCK_SIZE
        ids, positions, slots, last = (
            put(np.asarray(x, np.int32)) for x in (np.concatenate(self._prompts), positions, slots, ends - 1)
        )
        buffers = self.model.buffers(len(ids))
        attend = self.model.attend_prompts(starts, max(self.lengths), stream)
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
                with self.model.device.capture(self._stream) as self._graph:
                    self._step()
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

    def _step(self) -> None:
        model, stream = self.model, self._stream
        attend = model.attend_cache(self.cache, self._tables, self._seqlens, self._starts, stream)
        model.hidden(self._ids, self._positions, self._slots, self.cache, attend, self._buffers, stream)
        self._choose()

    def _choose(self) -> None:
        """From the last tokens' hidden states to the next tokens, and to where these go."""
        bundle, stream = self.model.bundle, self._stream
        self.model.head(self._buffers.normed, self.logits, stream)
        bundle.sample(self.logits, positions=self._positions, **self._sampling, out=self._ids, stream=stream)
        bundle.advance(
            self._ids, self._tables, self._tokens, self._positions, self._slots, self._seqlens, block_size=BLOCK_SIZE,
            stream=stream,
        )  # fmt: skip


def _check_prompts(model: Llama, prompts: Sequence[Sequence[int]], count: int) -> None:
    if count < 1:
        raise ContextError(f"{count} new tokens; at least one is needed")
    for number, prompt in enumerate(prompts):
        if not len(prompt):
            raise ContextError(f"prompt {number} has no tokens")
        if len(prompt) + count > model.context:
            raise ContextError(
                f"prompt {number} has {len(prompt)} tokens, with {count} new ones {len(prompt) + count}; the context "
                f"has {model.context}"
            )
        if not 0 <= min(prompt) <= max(prompt) < model.config.vocabulary:
            raise ValueError(f"prompt {number}: tokens are 0 to {model.config.vocabulary - 1}")


def _parameters(model: Llama, sampling: Sampling, batch: int) -> dict[str, DeviceArray]:
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


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/llama.yaml for this device")
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="texts that are continued together")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest (default: %(default)s)")
    parser.add_argument("--top-k", type=int, default=0, help="0: all (default: %(default)s)")
    parser.add_argument("--top-p", type=float, default=1.0, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, help="(default: the checkpoint's, bfloat16 for float32)")
    parser.add_argument("--cache", type=int, metavar="TOKENS", help="size of the cache (default: what is needed)")
    parser.add_argument("--burst", type=int, default=8, help="steps between looks at tokens (default: %(default)s)")
    parser.add_argument("--device", help="hip, hip:1, cuda, emulator … (default: the first GPU of the bundle's kind)")
    options = parser.parse_args(arguments)
    try:
        for text in run(options):
            print(text, flush=True)
    except (AotError, CheckpointError, ContextError, MissingOpError, ValueError) as error:
        sys.exit(f"llama.py: {error}")


def run(options: argparse.Namespace) -> Iterator[str]:
    """The texts, and how long they took."""
    tokenizer = _tokenizer(options.checkpoint)
    checkpoint = Checkpoint(options.checkpoint)
    model = Llama(open_bundle(options.bundle, options.device), checkpoint, options.dtype)
    prompts = [tokenizer.encode(text).ids for text in options.prompts]
    lengths = [len(prompt) + options.tokens for prompt in prompts]
    cache = model.cache(blocks_for(options.cache) if options.cache else sum(map(blocks_for, lengths)))
    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    generation = Generation(model, cache, prompts, options.tokens, sampling)
    start = time.perf_counter()
    times = []
    for tokens in generation.bursts(options.burst):
        times.append((time.perf_counter() - start, tokens.shape[1]))
        texts = [until_end(row, checkpoint.config.end) for row in tokens]
        if all(len(text) < tokens.shape[1] for text in texts):
            break
    for prompt, text in zip(prompts, texts, strict=True):
        yield tokenizer.decode([*prompt, *text])
    yield _report(sum(map(len, prompts)), len(prompts), times)


def _report(prompt_tokens: int, batch: int, times: list[tuple[float, int]]) -> str:
    first, last = times[0], times[-1]
    text = f"{prompt_tokens} tokens read in {first[0]:.3f} s"
    if last[1] > first[1]:
        text += f", then {batch * (last[1] - first[1]) / (last[0] - first[0]):.1f} tokens/s"
    return text


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    return Tokenizer.from_file(str(path))


if __name__ == "__main__":
    main()
