"""The parts of a model on a device: norms, rotary embeddings, attention, MLPs, soft-capped logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from aot_models.decoders.buffers import Buffers
from aot_models.decoders.config import Rope
from aot_models.decoders.linears import Layer
from aot_models.decoders.rows import EightBitRows, Rows
from aot_runtime import Bundle, Device, DeviceArray, Stream

ACTIVATIONS = {"silu": ("silu_mul", {}), "gelu_tanh": ("gelu_mul", {"approximate": "tanh"})}
"""The op of each activation, and its options."""


class Tables:
    """Tables of a rotary embedding: cos and sin, float32 [context, pairs]."""

    def __init__(self, device: Device, rope: Rope, context: int):
        angles = np.arange(context)[:, None] * np.array(rope.frequencies)
        self.cos, self.sin = (device.array((f(angles) * rope.scale).astype(np.float32)) for f in (np.cos, np.sin))


@dataclass(frozen=True)
class Norm:
    """RMS norm. zero_centred: the factor is 1 + weight."""

    bundle: Bundle
    weight: DeviceArray
    eps: float
    zero_centred: bool

    def __call__(
        self, x: DeviceArray, out: DeviceArray, stream: Stream | None, residual: DeviceArray | None = None
    ) -> None:
        """Normalise x. With a residual, x is added to it in place, and the sum is normalised."""
        self.bundle.rms_norm(
            x, self.weight, residual=residual, eps=self.eps, zero_centred=self.zero_centred, out=out, stream=stream
        )


@dataclass(frozen=True)
class Rotation:
    """Rotates queries and keys, from `to_rotate` to `rotated`."""

    bundle: Bundle
    tables: Tables

    def __call__(self, b: Buffers, positions: DeviceArray, stream: Stream | None) -> None:
        self.bundle.rotary(b.to_rotate, self.tables.cos, self.tables.sin, positions, out=b.rotated, stream=stream)


@dataclass(frozen=True)
class NormedRotation:
    """Normalises the heads of queries and keys, and rotates them."""

    tables: Tables
    queries: Norm
    keys: Norm

    def __call__(self, b: Buffers, positions: DeviceArray, stream: Stream | None) -> None:
        norm = self.queries
        norm.bundle.qk_norm_rotary(
            b.new_queries, b.new_keys, norm.weight, self.keys.weight, self.tables.cos,
            self.tables.sin, positions, eps=norm.eps, zero_centred=norm.zero_centred, q_out=b.queries, k_out=b.keys,
            stream=stream,
        )  # fmt: skip


class Mlp(Protocol):
    """The part of a layer after attention, from `normed` to `change`."""

    def __call__(self, b: Buffers, stream: Stream | None) -> None: ...


@dataclass(frozen=True)
class SelfAttention:
    """Attention to keys and values, from `normed` to `change`. Queries, keys and values are one linear layer."""

    bundle: Bundle
    queries_keys_values: Layer
    rotate: Rotation | NormedRotation
    out: Layer

    def __call__(
        self, b: Buffers, positions: DeviceArray, slots: DeviceArray, keys: DeviceArray, values: DeviceArray,
        attend: Callable[..., None], stream: Stream | None,
    ) -> None:  # fmt: skip
        """Attend. keys, values: this layer's cache."""
        self.queries_keys_values(b.normed, b.joined, b.rows, stream)
        self.rotate(b, positions, stream)
        self.bundle.append_kv(b.keys, b.values, keys, values, slots, stream=stream)
        attend(b.queries, b.keys, b.values, out=b.attended)
        self.out(b.attended.reshape(len(b.attended), -1), b.change, b.rows, stream)


@dataclass(frozen=True)
class GatedMlp:
    """The MLP down(activation(gate(x)) * up(x)); gate and up are one linear layer."""

    bundle: Bundle
    gate_up: Layer
    down: Layer
    activation: str

    def __call__(self, b: Buffers, stream: Stream | None) -> None:
        op, options = ACTIVATIONS[self.activation]
        self.gate_up(b.normed, b.gate_up, b.rows, stream)
        getattr(self.bundle, op)(b.gate, b.up, **options, out=b.gated, stream=stream)
        self.down(b.gated, b.change, b.rows, stream)


@dataclass(frozen=True)
class Bounded:
    """A last layer with soft-capped logits: bound * tanh(x / bound)."""

    bundle: Bundle
    layer: Layer
    bound: float

    @property
    def needs(self) -> tuple[EightBitRows, ...]:
        return self.layer.needs

    def __call__(self, x: DeviceArray, out: DeviceArray, rows: Rows, stream: Stream | None) -> None:
        self.layer(x, out, rows, stream)
        self.bundle.process_logits(out, softcap=self.bound, out=out, stream=stream)
