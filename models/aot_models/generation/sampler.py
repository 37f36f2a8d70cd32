"""Sample tokens on a device, each row of logits with the options of its own sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from aot_models.decoders.decoder import Decoder, MissingOpError
from aot_models.generation.options import GREEDY, Sampling
from aot_models.generation.scheduler import Running
from aot_runtime import Bundle, DeviceArray, Stream

ARRAYS = {
    "temperature": np.float32, "seeds": np.int64, "top_k": np.int32, "top_p": np.float32, "min_p": np.float32,
    "repetition_penalty": np.float32, "presence_penalty": np.float32, "frequency_penalty": np.float32,
}  # fmt: skip
"""Arguments of `sample` and `process_logits` that have one number for each row."""
LIMITS = ("top_k", "top_p", "min_p")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
PENALTY_OPS = ("process_logits", "count_tokens")


class Kind(NamedTuple):
    """The features that some row uses. The others are skipped."""

    is_limited: bool
    is_penalised: bool


class Sampler:
    """Samples a token for each of `rows` rows. All state is on the device, so that sampling can be captured.

    Attributes:
        kind: the features that the loaded sequences use.
    """

    def __init__(self, model: Decoder, rows: int):
        self._model, self._rows = model, rows
        self._arrays = {name: model.device.zeros((rows,), dtype) for name, dtype in ARRAYS.items()}
        self._counts: DeviceArray | None = None
        self._penalised: DeviceArray | None = None
        self.kind = Kind(False, False)

    def load(self, sequences: Sequence[Running], stream: Stream) -> None:
        """Assign sequences to the first rows. The other rows select the likeliest token."""
        samplings = [sequence.request.sampling for sequence in sequences]
        samplings += [GREEDY] * (self._rows - len(samplings))
        for name, dtype in ARRAYS.items():
            field = "seed" if name == "seeds" else name
            self._arrays[name].copy_from(np.array([getattr(one, field) for one in samplings], dtype), stream)
        self.kind = Kind(any(one.is_limited for one in samplings), any(one.is_penalised for one in samplings))
        if self.kind.is_penalised:
            self._count(sequences, stream)

    def choose(self, logits: DeviceArray, positions: DeviceArray, out: DeviceArray, stream: Stream) -> None:
        """Sample a token for each row. logits: [rows, vocabulary]; positions, out: int32 [rows]."""
        bundle = self._model.bundle
        if self.kind.is_penalised:
            given = {name: self._arrays[name] for name in PENALTIES}
            logits = bundle.process_logits(logits, counts=self._counts, **given, out=self._penalised, stream=stream)
        given = {name: self._arrays[name] for name in LIMITS} if self.kind.is_limited else {}
        temperature, seeds = self._arrays["temperature"], self._arrays["seeds"]
        bundle.sample(logits, temperature, seeds, positions, **given, out=out, stream=stream)
        if self.kind.is_penalised:
            bundle.count_tokens(out, self._counts, stream=stream)

    def _count(self, sequences: Sequence[Running], stream: Stream) -> None:
        model = self._model
        if self._counts is None:
            shape = (self._rows, model.config.vocabulary)
            self._counts, self._penalised = model.device.empty(shape, np.int32), model.device.empty(shape, model.dtype)
        self._counts.fill(0, stream)
        for texts, prompt in (
            ([sequence.request.prompt for sequence in sequences], True),
            ([sequence.new_tokens for sequence in sequences], False),
        ):
            rows = np.repeat(np.arange(len(texts), dtype=np.int32), [len(text) for text in texts])
            if len(rows):
                tokens = np.concatenate([np.asarray(text, np.int32) for text in texts])
                placed, owners = (model.device.array(array, stream=stream) for array in (tokens, rows))
                model.bundle.count_tokens(placed, self._counts, sequences=owners, prompt=prompt, stream=stream)


def check_penalty_ops(bundle: Bundle, samplings: Iterable[Sampling]) -> None:
    """Raise `MissingOpError` if there are penalties and the bundle lacks their ops."""
    missing = [op for op in PENALTY_OPS if op not in bundle.ops]
    if missing and any(sampling.is_penalised for sampling in samplings):
        raise MissingOpError(f"{bundle.path} has no {', '.join(missing)}, which penalties need")
