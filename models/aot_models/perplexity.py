"""Compute the perplexity of a text file with a checkpoint and a bundle. Lower is better.

    aotbuild --arch gfx942 manifests/llama.yaml
    python -m aot_models.perplexity CHECKPOINT dist/llama-gfx942 README.md --window 512 --stride 256

The text is read in overlapping windows. Each token is scored once, in the first window that has it, with at least
window - stride tokens before it where the text has so many. Smaller strides take longer and give lower figures.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aot_models.checkpoints.folder import Checkpoint
from aot_models.checkpoints.values import CheckpointError
from aot_models.decoders.buffers import Buffers
from aot_models.decoders.decoder import DTYPES, Decoder, MissingOpError, check_ops, dtype_of
from aot_models.decoders.families import config_from, config_of
from aot_models.generation.cache import Cache
from aot_models.generation.logprobs import log_softmax
from aot_models.generation.memory import Load, plan
from aot_models.generation.options import demand
from aot_models.generation.prompts import Tokens
from aot_runtime import AotError, DeviceArray, open_bundle
from aot_runtime.formats import printable

ROWS = 256
"""Rows of logits that are computed at once."""


@dataclass(frozen=True)
class Window:
    """Tokens begin to end are read, and those from `first` on are scored."""

    begin: int
    first: int
    end: int


def windows(count: int, size: int, stride: int) -> Iterator[Window]:
    """The windows of a text of `count` tokens, each `stride` tokens after the last.

    The first token of the text is not scored, since nothing precedes it.

    Raises:
        OptionError: the window or the text is too short, or the stride would skip tokens.
    """
    demand("window", size, "a whole number of at least 2", size >= 2)
    demand("stride", stride, f"a whole number from 1 to {size - 1}, less than the window", 1 <= stride < size)
    demand("the number of the text's tokens", count, "2 or more", count >= 2)
    scored = 1
    for begin in range(0, count, stride):
        end = min(begin + size, count)
        yield Window(begin, scored, end)
        scored = end
        if end == count:
            return


@dataclass(frozen=True)
class Score:
    """The sum of the natural logarithms of the probabilities of `count` tokens."""

    logprob: float = 0.0
    count: int = 0

    @property
    def perplexity(self) -> float:
        return math.exp(-self.logprob / self.count)

    def __add__(self, other: Score) -> Score:
        return Score(self.logprob + other.logprob, self.count + other.count)


class Scorer:
    """Scores windows of at most `size` tokens with a model, without a cache of keys and values."""

    def __init__(self, model: Decoder, size: int):
        self._model, self._stream = model, model.device.stream()
        self._cache = Cache(model, 1)
        self._logits = model.device.empty((min(ROWS, size), model.config.vocabulary), model.dtype)

    def score(self, tokens: Sequence[int], first: int) -> Score:
        """Score the tokens from `first` on. Raises `ValueError` for tokens outside of the vocabulary."""
        vocabulary = self._model.config.vocabulary
        if not 0 <= min(tokens) <= max(tokens) < vocabulary:
            raise ValueError(f"tokens are 0 to {vocabulary - 1}")
        buffers = self._model.buffers(len(tokens))
        hidden = self._hidden(tokens, buffers)
        total = Score()
        for begin in range(first - 1, len(tokens) - 1, len(self._logits)):
            end = min(begin + len(self._logits), len(tokens) - 1)
            logits = self._logits[: end - begin]
            self._model.head(hidden[begin:end], logits, buffers.rows, self._stream)
            found = log_softmax(logits.numpy(self._stream))
            chosen = found[np.arange(end - begin), np.asarray(tokens[begin + 1 : end + 1])]
            total += Score(float(chosen.sum()), end - begin)
        return total

    def _hidden(self, tokens: Sequence[int], buffers: Buffers) -> DeviceArray:
        model, stream, count = self._model, self._stream, len(tokens)
        columns = (tokens, np.arange(count), np.full(count, -1), (0, count))
        ids, positions, nowhere, starts = (model.device.array(np.asarray(x, np.int32), stream=stream) for x in columns)
        attend = model.attend_prompts(starts, count, stream)
        return model.hidden(ids, positions, nowhere, self._cache, attend, buffers, stream)


def scores(model: Decoder, tokens: Sequence[int], size: int, stride: int) -> Iterator[Score]:
    """The cumulative score after each window."""
    reader, total = Scorer(model, size), Score()
    for window in windows(len(tokens), size, stride):
        total += reader.score(tokens[window.begin : window.end], window.first - window.begin)
        yield total


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    parser.add_argument("bundle", type=Path, help="the bundle of manifests/llama.yaml for this device")
    parser.add_argument("text", type=Path, help="text file in UTF-8")
    parser.add_argument("--window", type=int, default=2048, help="tokens in a window (default: %(default)s)")
    parser.add_argument("--stride", type=int, help="distance between windows (default: half a window)")
    parser.add_argument(
        "--dtype", choices=DTYPES, help="dtype of activations (default: the checkpoint's; bfloat16 for float32)"
    )
    parser.add_argument("--device", help="hip, hip:1, cuda, emulator … (default: the first GPU of the bundle's kind)")
    options = parser.parse_args(arguments)
    try:
        run(options)
    except (AotError, CheckpointError, MissingOpError, OSError, ValueError) as error:
        sys.exit(printable(f"perplexity: {error}"))


def run(options: argparse.Namespace) -> None:
    checkpoint = Checkpoint(options.checkpoint)
    model_context = config_of(checkpoint).context
    if options.window > model_context:
        raise ValueError(f"window is {options.window}; at most the model's context, {model_context}, is allowed")
    tokens = Tokens(options.checkpoint).encode(options.text.read_text(encoding="utf-8"))
    stride = max(options.window // 2, 1) if options.stride is None else options.stride
    count = len(list(windows(len(tokens), options.window, stride)))
    size = min(options.window, len(tokens))
    config = config_from(checkpoint.values, size)
    bundle = open_bundle(options.bundle, options.device)
    check_ops(bundle, config, checkpoint)
    memory = plan(bundle.device, config, dtype_of(config, options.dtype), checkpoint.nbytes, Load(1, size, size), [1])
    print(memory, file=sys.stderr)
    model = Decoder(bundle, config, checkpoint, options.dtype)
    for number, score in enumerate(scores(model, tokens, options.window, stride), 1):
        print(f"window {number} of {count}: {score.perplexity:.4f}", file=sys.stderr, flush=True)
    print(f"perplexity {score.perplexity:.4f} of {score.count} tokens")


if __name__ == "__main__":
    main()
