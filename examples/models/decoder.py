"""A model on a device: its weights, and one pass over tokens. Every step is a bundle's op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import ml_dtypes
import numpy as np

from aot_runtime import Bundle, DeviceArray, Stream
from checkpoints.folder import Checkpoint
from checkpoints.linear import Linear
from checkpoints.values import CheckpointError
from models.buffers import Buffers
from models.config import Config
from models.latent_attention import LatentAttention, attend_prompts, projections
from models.layers import ACTIVATIONS, GatedMlp, Norm, NormedRotation, Rotation, SelfAttention, Tables
from models.linears import Dense, Layer, place
from models.mixture import Mixture, place_mixture

OPS = ("embedding", "rms_norm", "append_kv", "flash_attention_varlen", "paged_attention", "matmul", "sample", "advance")
LARGEST_HEAD = 256
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


class MissingOpError(LookupError):
    """A bundle lacks ops that a model needs."""


class KeysValues(Protocol):
    """A cache: k, v: of each layer [blocks, block_size, heads_kv, head_dim]."""

    k: Sequence[DeviceArray]
    v: Sequence[DeviceArray]


Attend = Callable[[DeviceArray, DeviceArray, DeviceArray, int, DeviceArray], None]
"""Attention in a layer: q [tokens, heads, head_dim]; k, v [tokens, heads_kv, head_dim]; layer's number; out as q."""


@dataclass(frozen=True)
class DecoderLayer:
    """Norms of what is added to the residual sum are None where the family has none."""

    attention_norm: Norm
    attention: SelfAttention | LatentAttention
    attention_out_norm: Norm | None
    mlp_norm: Norm
    mlp: GatedMlp | Mixture
    mlp_out_norm: Norm | None


class Decoder:
    """A model's weights on the device of a bundle, and what is computed with them.

    Raises `MissingOpError`: the bundle lacks ops; `ValueError`: another dtype than float16 and bfloat16, heads
    that are too large.

    Attributes:
        dtype: of weights, activations and cache; by default the checkpoint's, bfloat16 for float32.
    """

    def __init__(self, bundle: Bundle, config: Config, checkpoint: Checkpoint, dtype: str | None = None):
        self.bundle, self.config, self.device = bundle, config, bundle.device
        check_ops(bundle, config, checkpoint)
        if config.head_dim > LARGEST_HEAD:
            raise ValueError(
                f"heads of {config.head_dim} elements are not supported; the ops take up to {LARGEST_HEAD}"
            )
        name = dtype or ("bfloat16" if config.dtype == "float32" else config.dtype)
        if name not in DTYPES:
            raise ValueError(f"dtype {name} is not supported; supported: {', '.join(DTYPES)}")
        self.dtype, self._shapes = DTYPES[name], config.linears()
        self._tables = {layer.rope: Tables(bundle.device, layer.rope, config.context) for layer in config.attention}
        self.table = self._upload(checkpoint, config.embeddings)
        self.layers = tuple(self._layer(checkpoint, i) for i in range(config.layers))
        self.norm = self._norm(checkpoint, f"{config.root}.norm")
        self.head = Dense(bundle, self.table) if config.tied else self._linear(checkpoint, config.head)

    def buffers(self, tokens: int) -> Buffers:
        return Buffers(self.device, self.config, self.dtype, tokens)

    def hidden(
        self, ids: DeviceArray, positions: DeviceArray, slots: DeviceArray, cache: KeysValues, attend: Attend,
        buffers: Buffers, stream: Stream | None,
    ) -> DeviceArray:  # fmt: skip
        """The final norm's result for each token, [tokens, hidden]; their keys and values are in the cache then.

        ids, positions, slots: int32 [tokens]. Nothing is allocated.
        """
        bundle, b = self.bundle, buffers
        following = [*(layer.attention_norm for layer in self.layers[1:]), self.norm]
        bundle.embedding(self.table, ids, scale=self.config.embedding_scale, out=b.total, stream=stream)
        self.layers[0].attention_norm(b.total, b.normed, stream)
        for number, (layer, next_norm) in enumerate(zip(self.layers, following, strict=True)):
            of_layer = partial(attend, number=number)
            layer.attention(b, positions, slots, cache.k[number], cache.v[number], of_layer, stream)
            if layer.attention_out_norm:
                layer.attention_out_norm(b.change, b.change, stream)
            layer.mlp_norm(b.change, b.normed, stream, residual=b.total)
            layer.mlp(b, stream)
            if layer.mlp_out_norm:
                layer.mlp_out_norm(b.change, b.change, stream)
            next_norm(b.change, b.normed, stream, residual=b.total)
        return b.normed

    def attend_prompts(self, starts: DeviceArray, longest: int, stream: Stream | None) -> Attend:
        """Attention of whole prompts, one behind the other: prompt i is tokens starts[i] to starts[i + 1]."""
        if (latent := self.config.latent) is not None:
            return attend_prompts(self.bundle, latent, self.config.score_scale, starts, longest, stream)

        def attend(q: DeviceArray, k: DeviceArray, v: DeviceArray, number: int, out: DeviceArray) -> None:
            self.bundle.flash_attention_varlen(
                q, k, v, starts, starts, max_seqlen_q=longest, causal=True, window_left=self._window(number),
                scale=self.config.score_scale, softcap=self.config.attention_softcap, out=out, stream=stream,
            )  # fmt: skip

        return attend

    def attend_cache(
        self, cache: KeysValues, tables: DeviceArray, seqlens: DeviceArray, starts: DeviceArray, stream: Stream | None
    ) -> Attend:
        """Attention of each sequence's last token to what the cache has of it."""

        def attend(q: DeviceArray, k: DeviceArray, v: DeviceArray, number: int, out: DeviceArray) -> None:
            if (latent := self.config.latent) is not None:
                rows = cache.k[number].reshape(-1, cache.k[number].shape[1], latent.row)
                self.bundle.mla_decode(
                    q, rows, tables, seqlens, starts, scale=self.config.score_scale, rope=latent.rotated, out=out,
                    stream=stream,
                )  # fmt: skip
                return
            self.bundle.paged_attention(
                q, cache.k[number], cache.v[number], tables, seqlens, starts, window=self._window(number),
                scale=self.config.score_scale, softcap=self.config.attention_softcap, out=out, stream=stream,
            )  # fmt: skip

        return attend

    def _window(self, number: int) -> int:
        """How many tokens before its own a token of a layer sees, as the ops take it."""
        window = self.config.attention[number].window
        return -1 if window is None else window - 1

    def _layer(self, checkpoint: Checkpoint, number: int) -> DecoderLayer:
        prefix, names = self.config.prefix(number), self.config.names

        def linear(*parts: str) -> Layer:
            return self._linear(checkpoint, *(f"{prefix}.{part}" for part in parts))

        def norm(name: str) -> Norm:
            return self._norm(checkpoint, f"{prefix}.{name}")

        tables = self._tables[self.config.attention[number].rope]
        attention: SelfAttention | LatentAttention
        if (latent := self.config.latent) is not None:
            up = checkpoint.linear(f"{prefix}.{latent.up}", self._shapes[f"{prefix}.{latent.up}"]).weight
            if not isinstance(up, np.ndarray):
                raise CheckpointError(
                    f"{checkpoint.folder}: {prefix}.{latent.up} has to be stored as it is, to be absorbed"
                )
            keys_values = projections(self.bundle, latent, up.astype(self.dtype, copy=False))
            attention = LatentAttention(
                self.bundle, latent, tables, linear(latent.queries), linear(latent.down), norm(latent.norm),
                *keys_values, linear(names.attention_out),
            )  # fmt: skip
        else:
            rotate: Rotation | NormedRotation = Rotation(self.bundle, tables)
            if names.query_norm and names.key_norm:
                rotate = NormedRotation(tables, norm(names.query_norm), norm(names.key_norm))
            out = linear(names.attention_out)
            attention = SelfAttention(self.bundle, linear(*names.queries_keys_values), rotate, out)
        return DecoderLayer(
            norm(names.attention_norm),
            attention,
            norm(names.attention_out_norm) if names.attention_out_norm else None,
            norm(names.mlp_norm),
            self._mlp(checkpoint, number, linear),
            norm(names.mlp_out_norm) if names.mlp_out_norm else None,
        )  # fmt: skip

    def _mlp(self, checkpoint: Checkpoint, number: int, linear: Callable[..., Layer]) -> GatedMlp | Mixture:
        names, prefix, activation = self.config.names, self.config.prefix(number), self.config.activation
        experts = self.config.experts_of(number)
        if experts is None:
            return GatedMlp(self.bundle, linear(*names.gate_up), linear(names.down), activation)

        def named(name: str) -> Linear:
            return checkpoint.linear(f"{prefix}.{name}", self._shapes[f"{prefix}.{name}"])

        return place_mixture(self.bundle, checkpoint, experts, activation, prefix, named, self.dtype)

    def _linear(self, checkpoint: Checkpoint, *names: str) -> Layer:
        return place(self.bundle, [checkpoint.linear(name, self._shapes[name]) for name in names], self.dtype)

    def _norm(self, checkpoint: Checkpoint, name: str) -> Norm:
        weight = self._upload(checkpoint, f"{name}.weight")
        return Norm(self.bundle, weight, self.config.eps, self.config.zero_centred)

    def _upload(self, checkpoint: Checkpoint, name: str) -> DeviceArray:
        return self.device.array(checkpoint.tensor(name).astype(self.dtype, copy=False))


def check_ops(bundle: Bundle, config: Config, checkpoint: Checkpoint) -> None:
    """Raises `MissingOpError` where a bundle lacks ops that a model needs."""
    own = ("qk_norm_rotary" if config.names.query_norm else "rotary", ACTIVATIONS[config.activation][0])
    if config.latent:
        own += ("mla_decode", "batched_matmul")
    if config.experts:
        own += ("moe_route", "moe_int4" if checkpoint.format.ops else "moe")
    if missing := [op for op in (*OPS, *own, *checkpoint.format.ops) if op not in bundle.ops]:
        manifest = "manifests/mixtures.yaml" if config.experts else "manifests/llama.yaml"
        raise MissingOpError(f"{bundle.path} has no {', '.join(missing)}, which the model needs; see {manifest}")
