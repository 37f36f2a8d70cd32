"""A Llama-family model on a device: weights, a cache in blocks, one pass over tokens. Every step is a bundle's op."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import ml_dtypes
import numpy as np
from llama_checkpoint import Checkpoint, Config, Linear

from aot_runtime import Bundle, Device, DeviceArray, Stream
from aot_runtime.weights import Packed

Array = np.ndarray
BLOCK_SIZE = 64
"""Tokens of a cache's block."""

OPS = ("embedding", "rms_norm", "rotary", "append_kv", "flash_attention_varlen", "paged_attention", "matmul",
       "silu_mul", "sample", "advance")  # fmt: skip
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


class MissingOpError(LookupError):
    """A bundle lacks ops that a model needs."""


class ContextError(ValueError):
    """Sequences are longer than the model's context, or need more of the cache than is free."""


class Layer(Protocol):
    """A linear layer: x [rows, inputs] to out [rows, outputs]."""

    def __call__(self, x: DeviceArray, out: DeviceArray, stream: Stream | None) -> None: ...


Attend = Callable[[DeviceArray, DeviceArray, DeviceArray, int, DeviceArray], None]
"""Attention in a layer: q [tokens, heads, head_dim]; k, v [tokens, heads_kv, head_dim]; layer's number; out as q."""


@dataclass(frozen=True)
class Dense:
    """weight: [outputs, inputs]; bias: [outputs] or None."""

    bundle: Bundle
    weight: DeviceArray
    bias: DeviceArray | None = None

    def __call__(self, x: DeviceArray, out: DeviceArray, stream: Stream | None) -> None:
        self.bundle.matmul(x, self.weight.T, self.bias, out=out, stream=stream)


@dataclass(frozen=True)
class Quantised:
    """arguments: those of `linear_int4` but for x."""

    bundle: Bundle
    arguments: dict[str, DeviceArray | int | None]

    def __call__(self, x: DeviceArray, out: DeviceArray, stream: Stream | None) -> None:
        self.bundle.linear_int4(x, **self.arguments, out=out, stream=stream)


@dataclass(frozen=True)
class Beside:
    """Layers of the same input; the columns of the result that each writes."""

    layers: tuple[tuple[slice, Layer], ...]

    def __call__(self, x: DeviceArray, out: DeviceArray, stream: Stream | None) -> None:
        for columns, layer in self.layers:
            layer(x, out[:, columns], stream)


@dataclass(frozen=True)
class DecoderLayer:
    """Layers of one input are one: queries, keys and values; gate and up."""

    attention_norm: DeviceArray
    queries_keys_values: Layer
    attention_out: Layer
    mlp_norm: DeviceArray
    gate_up: Layer
    down: Layer


class Cache:
    """Keys and values of all layers, in blocks of `BLOCK_SIZE` tokens that sequences take and give back.

    Attributes:
        k, v: of each layer [blocks, BLOCK_SIZE, heads_kv, head_dim].
    """

    def __init__(self, device: Device, config: Config, dtype: np.dtype, blocks: int):
        shape = (blocks, BLOCK_SIZE, config.heads_kv, config.head_dim)
        self.k, self.v = ([device.empty(shape, dtype) for _ in range(config.layers)] for _ in range(2))
        for array in (*self.k, *self.v):
            array.fill(0)
        self._free = list(range(blocks))

    def take(self, lengths: Sequence[int]) -> Array:
        """Block tables for sequences of these lengths: int32 [batch, blocks_per_sequence], -1 where there is none.

        Raises `ContextError` where too few blocks are free.
        """
        counts = [blocks_for(length) for length in lengths]
        if sum(counts) > len(self._free):
            raise ContextError(
                f"sequences of {', '.join(map(str, lengths))} tokens need {sum(counts)} blocks of {BLOCK_SIZE} tokens; "
                f"the cache has {len(self._free)} free"
            )
        tables = np.full((len(lengths), max(counts)), -1, np.int32)
        for row, count in zip(tables, counts, strict=True):
            row[:count] = [self._free.pop() for _ in range(count)]
        return tables

    def give_back(self, tables: Array) -> None:
        self._free += tables[tables >= 0].tolist()


def blocks_for(length: int) -> int:
    """Blocks of the cache that a sequence of `length` tokens needs."""
    return -(-length // BLOCK_SIZE)


class Buffers:
    """What a pass over `tokens` tokens writes to, the same memory in each layer."""

    def __init__(self, device: Device, config: Config, dtype: np.dtype, tokens: int):
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


class Llama:
    """A model's weights on the device of a bundle, and what is computed with them.

    Raises `MissingOpError`: the bundle lacks ops; `ValueError`: of another dtype than float16 and bfloat16.

    Attributes:
        dtype: of weights, activations and cache; by default the checkpoint's, bfloat16 for float32.
        context: most tokens of a sequence, by default the model's.
    """

    def __init__(self, bundle: Bundle, checkpoint: Checkpoint, dtype: str | None = None, context: int | None = None):
        self.bundle, self.config, self.device = bundle, checkpoint.config, bundle.device
        check_ops(bundle, self.config)
        name = dtype or ("bfloat16" if self.config.dtype == "float32" else self.config.dtype)
        if name not in DTYPES:
            raise ValueError(f"dtype {name} is not supported; supported: {', '.join(DTYPES)}")
        self.dtype = DTYPES[name]
        self.context = min(context or self.config.context, self.config.context)
        angles = np.arange(self.context)[:, None] * np.array(self.config.frequencies)
        self.cos, self.sin = (self.device.array(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
        self.table = self._upload(checkpoint.tensor("model.embed_tokens.weight"))
        self.layers = tuple(self._layer(checkpoint, i) for i in range(self.config.layers))
        self.norm = self._upload(checkpoint.tensor("model.norm.weight"))
        head = self.table if self.config.tied else self._upload(checkpoint.tensor("lm_head.weight"))
        self.head = Dense(bundle, head)

    def cache(self, blocks: int) -> Cache:
        return Cache(self.device, self.config, self.dtype, blocks)

    def buffers(self, tokens: int) -> Buffers:
        return Buffers(self.device, self.config, self.dtype, tokens)

    def hidden(
        self, ids: DeviceArray, positions: DeviceArray, slots: DeviceArray, cache: Cache, attend: Attend,
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
            layer.queries_keys_values(b.normed, b.joined, stream)
            bundle.rotary(b.to_rotate, self.cos, self.sin, positions, out=b.rotated, stream=stream)
            bundle.append_kv(b.keys, b.values, cache.k[number], cache.v[number], slots, stream=stream)
            attend(b.queries, b.keys, b.values, number, b.attended)
            layer.attention_out(b.attended.reshape(len(b.attended), -1), b.change, stream)
            bundle.rms_norm(b.change, layer.mlp_norm, residual=b.total, eps=eps, out=b.normed, stream=stream)
            layer.gate_up(b.normed, b.gate_up, stream)
            bundle.silu_mul(b.gate, b.up, out=b.gated, stream=stream)
            layer.down(b.gated, b.change, stream)
            bundle.rms_norm(b.change, next_norm, residual=b.total, eps=eps, out=b.normed, stream=stream)
        return b.normed

    def attend_prompts(self, starts: DeviceArray, longest: int, stream: Stream | None) -> Attend:
        """Attention of whole prompts, one behind the other: prompt i is tokens starts[i] to starts[i + 1]."""
        window = -1 if self.config.window is None else self.config.window - 1

        def attend(q: DeviceArray, k: DeviceArray, v: DeviceArray, number: int, out: DeviceArray) -> None:
            self.bundle.flash_attention_varlen(
                q, k, v, starts, starts, max_seqlen_q=longest, causal=True, window_left=window, out=out, stream=stream
            )

        return attend

    def attend_cache(
        self, cache: Cache, tables: DeviceArray, seqlens: DeviceArray, starts: DeviceArray, stream: Stream | None
    ) -> Attend:
        """Attention of each sequence's last token to what the cache has of it."""
        window = -1 if self.config.window is None else self.config.window - 1

        def attend(q: DeviceArray, k: DeviceArray, v: DeviceArray, number: int, out: DeviceArray) -> None:
            self.bundle.paged_attention(
                q, cache.k[number], cache.v[number], tables, seqlens, starts, window=window, out=out, stream=stream
            )

        return attend

    def _layer(self, checkpoint: Checkpoint, number: int) -> DecoderLayer:
        prefix = f"model.layers.{number}"
        linear = partial(self._linear, checkpoint, prefix)
        norm = partial("{}.{}_layernorm.weight".format, prefix)
        return DecoderLayer(
            self._upload(checkpoint.tensor(norm("input"))),
            linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            linear("self_attn.o_proj"),
            self._upload(checkpoint.tensor(norm("post_attention"))),
            linear("mlp.gate_proj", "mlp.up_proj"),
            linear("mlp.down_proj"),
        )

    def _linear(self, checkpoint: Checkpoint, prefix: str, *names: str) -> Layer:
        """One layer of several, whose results lie side by side."""
        parts = list(_joined([checkpoint.linear(f"{prefix}.{name}") for name in names]))
        stops = np.cumsum([_outputs(part) for part in parts])
        layers = [self._place(part) for part in parts]
        if len(layers) == 1:
            return layers[0]
        starts = [0, *stops[:-1]]
        return Beside(tuple((slice(a, z), layer) for a, z, layer in zip(starts, stops, layers, strict=True)))

    def _place(self, part: Linear) -> Layer:
        bias = None if part.bias is None else self._upload(part.bias)
        if not isinstance(part.weight, Packed):
            return Dense(self.bundle, self._upload(part.weight), bias)
        arguments = part.weight.arguments()
        arguments["scales"] = part.weight.scales.astype(self.dtype)
        placed = {k: self.device.array(x) if isinstance(x, np.ndarray) else x for k, x in arguments.items()}
        return Quantised(self.bundle, {**placed, "bias": bias})

    def _upload(self, array: Array) -> DeviceArray:
        return self.device.array(array.astype(self.dtype, copy=False))


def check_ops(bundle: Bundle, config: Config) -> None:
    """Raises `MissingOpError` where a bundle lacks ops that a model needs."""
    needed = (*OPS, "linear_int4") if config.quantisation else OPS
    if missing := [op for op in needed if op not in bundle.ops]:
        raise MissingOpError(
            f"{bundle.path} has no {', '.join(missing)}, which the model needs; see manifests/llama.yaml"
        )


def _outputs(part: Linear) -> int:
    return (part.weight.w if isinstance(part.weight, Packed) else part.weight).shape[0]


def _joined(parts: Sequence[Linear]) -> Iterator[Linear]:
    """Linear layers of one input as one, where they can be: those of 4 bits need the same order of their inputs."""
    bias = None if parts[0].bias is None else np.concatenate([part.bias for part in parts])
    packed = [part.weight for part in parts if isinstance(part.weight, Packed)]
    if not packed:
        yield Linear(np.concatenate([part.weight for part in parts]), bias)
    elif all(_same_order(packed[0], other) for other in packed[1:]):
        codes = np.concatenate([weight.w for weight in packed])
        scales, zeros = (np.concatenate(x, 1) for x in zip(*((w.scales, w.zeros) for w in packed), strict=True))
        yield Linear(Packed(codes, scales, zeros, packed[0].group_size, packed[0].order), bias)
    else:
        yield from parts


def _same_order(one: Packed, other: Packed) -> bool:
    if one.order is None or other.order is None:
        return one.order is other.order
    return np.array_equal(one.order, other.order)
