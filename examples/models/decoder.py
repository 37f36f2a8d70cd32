"""A model on a device: its weights, and one pass over tokens. Every step is a bundle's op."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import ml_dtypes
import numpy as np

from aot_runtime import Bundle, Device, DeviceArray, Stream
from checkpoints.folder import Checkpoint
from checkpoints.values import CheckpointError
from models.config import Config, Rope
from models.linears import Dense, Layer, hardware_float8, place
from models.rows import EightBitRows, Rows

OPS = ("embedding", "rms_norm", "rotary", "append_kv", "flash_attention_varlen", "paged_attention", "matmul",
       "silu_mul", "sample", "advance")  # fmt: skip
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


class MissingOpError(LookupError):
    """A bundle lacks ops that a model needs."""


class KeysValues(Protocol):
    """A cache: k, v: of each layer [blocks, block_size, heads_kv, head_dim]."""

    k: Sequence[DeviceArray]
    v: Sequence[DeviceArray]


Attend = Callable[[DeviceArray, DeviceArray, DeviceArray, int, DeviceArray], None]
"""Attention in a layer: q [tokens, heads, head_dim]; k, v [tokens, heads_kv, head_dim]; layer's number; out as q."""


class Tables:
    """cos, sin: of a rotary embedding, float32 [context, pairs]."""

    def __init__(self, device: Device, rope: Rope, context: int):
        angles = np.arange(context)[:, None] * np.array(rope.frequencies)
        self.cos, self.sin = (device.array(f(angles).astype(np.float32)) for f in (np.cos, np.sin))


@dataclass(frozen=True)
class DecoderLayer:
    """Layers of one input are one: queries, keys and values; gate and up."""

    rope: Tables
    attention_norm: DeviceArray
    queries_keys_values: Layer
    attention_out: Layer
    mlp_norm: DeviceArray
    gate_up: Layer
    down: Layer

    @property
    def linears(self) -> tuple[Layer, ...]:
        return self.queries_keys_values, self.attention_out, self.gate_up, self.down


class Buffers:
    """What a pass over `tokens` tokens writes to, the same memory in each layer.

    needs: of the linear layers.
    """

    def __init__(self, device: Device, config: Config, dtype: np.dtype, tokens: int, needs: Iterable[EightBitRows]):
        def new(*shape: int) -> DeviceArray:
            return device.empty((tokens, *shape), dtype)

        heads, heads_kv, head_dim = config.heads, config.heads_kv, config.head_dim
        self.total, self.normed, self.change = (new(config.hidden) for _ in range(3))
        self.joined = new((heads + 2 * heads_kv) * head_dim)
        by_head = self.joined.reshape(tokens, heads + 2 * heads_kv, head_dim)
        self.to_rotate, self.values = by_head[:, : heads + heads_kv], by_head[:, heads + heads_kv :]
        rotated = new(heads + heads_kv, head_dim)
        self.rotated, self.queries, self.keys = rotated, rotated[:, :heads], rotated[:, heads:]
        self.attended = new(heads, head_dim)
        self.gate_up = new(2 * config.intermediate)
        self.gate, self.up = self.gate_up[:, : config.intermediate], self.gate_up[:, config.intermediate :]
        self.gated = new(config.intermediate)
        self.rows = Rows(device, tokens, needs)


class Decoder:
    """A model's weights on the device of a bundle, and what is computed with them.

    Raises `MissingOpError`: the bundle lacks ops; `ValueError`: of another dtype than float16 and bfloat16.

    Attributes:
        dtype: of weights, activations and cache; by default the checkpoint's, bfloat16 for float32.
    """

    def __init__(self, bundle: Bundle, config: Config, checkpoint: Checkpoint, dtype: str | None = None):
        self.bundle, self.config, self.device = bundle, config, bundle.device
        check_ops(bundle, checkpoint)
        name = dtype or ("bfloat16" if config.dtype == "float32" else config.dtype)
        if name not in DTYPES:
            raise ValueError(f"dtype {name} is not supported; supported: {', '.join(DTYPES)}")
        self.dtype, self._shapes = DTYPES[name], config.linears()
        self.rope = {layer.rope: Tables(bundle.device, layer.rope, config.context) for layer in config.attention}
        self.table = self._upload(checkpoint, "model.embed_tokens")
        self.layers = tuple(self._layer(checkpoint, i) for i in range(config.layers))
        self.norm = self._upload(checkpoint, "model.norm")
        self.head = Dense(bundle, self.table) if config.tied else self._linear(checkpoint, "lm_head")

    def buffers(self, tokens: int) -> Buffers:
        linears = [self.head, *(linear for layer in self.layers for linear in layer.linears)]
        return Buffers(self.device, self.config, self.dtype, tokens, [need for x in linears for need in x.needs])

    def hidden(
        self, ids: DeviceArray, positions: DeviceArray, slots: DeviceArray, cache: KeysValues, attend: Attend,
        buffers: Buffers, stream: Stream | None,
    ) -> DeviceArray:  # fmt: skip
        """The final norm's result for each token, [tokens, hidden]; their keys and values are in the cache then.

        ids, positions, slots: int32 [tokens]. Nothing is allocated.
        """
        bundle, b, eps = self.bundle, buffers, self.config.eps
        following = [*(layer.attention_norm for layer in self.layers[1:]), self.norm]
        bundle.embedding(self.table, ids, out=b.total, stream=stream)
        bundle.rms_norm(b.total, self.layers[0].attention_norm, eps=eps, out=b.normed, stream=stream)
        for number, (layer, next_norm) in enumerate(zip(self.layers, following, strict=True)):
            layer.queries_keys_values(b.normed, b.joined, b.rows, stream)
            bundle.rotary(b.to_rotate, layer.rope.cos, layer.rope.sin, positions, out=b.rotated, stream=stream)
            bundle.append_kv(b.keys, b.values, cache.k[number], cache.v[number], slots, stream=stream)
            attend(b.queries, b.keys, b.values, number, b.attended)
            layer.attention_out(b.attended.reshape(len(b.attended), -1), b.change, b.rows, stream)
            bundle.rms_norm(b.change, layer.mlp_norm, residual=b.total, eps=eps, out=b.normed, stream=stream)
            layer.gate_up(b.normed, b.gate_up, b.rows, stream)
            bundle.silu_mul(b.gate, b.up, out=b.gated, stream=stream)
            layer.down(b.gated, b.change, b.rows, stream)
            bundle.rms_norm(b.change, next_norm, residual=b.total, eps=eps, out=b.normed, stream=stream)
        return b.normed

    def attend_prompts(self, starts: DeviceArray, longest: int, stream: Stream | None) -> Attend:
        """Attention of whole prompts, one behind the other: prompt i is tokens starts[i] to starts[i + 1]."""

        def attend(q: DeviceArray, k: DeviceArray, v: DeviceArray, number: int, out: DeviceArray) -> None:
            self.bundle.flash_attention_varlen(
                q,
                k,
                v,
                starts,
                starts,
                max_seqlen_q=longest,
                causal=True,
                window_left=self._window(number),
                out=out,
                stream=stream,
            )

        return attend

    def attend_cache(
        self, cache: KeysValues, tables: DeviceArray, seqlens: DeviceArray, starts: DeviceArray, stream: Stream | None
    ) -> Attend:
        """Attention of each sequence's last token to what the cache has of it."""

        def attend(q: DeviceArray, k: DeviceArray, v: DeviceArray, number: int, out: DeviceArray) -> None:
            self.bundle.paged_attention(
                q,
                cache.k[number],
                cache.v[number],
                tables,
                seqlens,
                starts,
                window=self._window(number),
                out=out,
                stream=stream,
            )

        return attend

    def _window(self, number: int) -> int:
        """How many tokens before its own a token of a layer sees, as the ops take it."""
        window = self.config.attention[number].window
        return -1 if window is None else window - 1

    def _layer(self, checkpoint: Checkpoint, number: int) -> DecoderLayer:
        prefix, names = self.config.prefix(number), self.config.names

        def linear(*parts: str) -> Layer:
            return self._linear(checkpoint, *(f"{prefix}.{part}" for part in parts))

        return DecoderLayer(
            self.rope[self.config.attention[number].rope],
            self._upload(checkpoint, f"{prefix}.{names.attention_norm}"),
            linear(*names.queries_keys_values),
            linear(names.attention_out),
            self._upload(checkpoint, f"{prefix}.{names.mlp_norm}"),
            linear(*names.gate_up),
            linear(names.down),
        )

    def _linear(self, checkpoint: Checkpoint, *names: str) -> Layer:
        return place(self.bundle, [checkpoint.linear(name, self._shapes[name]) for name in names], self.dtype)

    def _upload(self, checkpoint: Checkpoint, name: str) -> DeviceArray:
        return self.device.array(checkpoint.tensor(f"{name}.weight").astype(self.dtype, copy=False))


def check_ops(bundle: Bundle, checkpoint: Checkpoint) -> None:
    """Raises `MissingOpError` where a bundle lacks ops that a model needs; `CheckpointError` where its hardware does
    not multiply the model's numbers."""
    if missing := [op for op in dict.fromkeys((*OPS, *sorted(checkpoint.ops))) if op not in bundle.ops]:
        raise MissingOpError(
            f"{bundle.path} has no {', '.join(missing)}, which the model needs; see manifests/llama.yaml"
        )
    if checkpoint.float8 and not hardware_float8(bundle):
        raise CheckpointError(f"{checkpoint.folder}: weights are float8, which {bundle.device.arch} does not multiply")
