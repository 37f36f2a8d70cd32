"""A model on a device: its weights, and a pass over tokens. Every step is an op of the bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import ml_dtypes
import numpy as np

from aot_models.checkpoints.adapters import Adapter
from aot_models.checkpoints.folder import Checkpoint
from aot_models.checkpoints.linear import Linear
from aot_models.checkpoints.values import CheckpointError
from aot_models.decoders.buffers import Buffers
from aot_models.decoders.config import Config
from aot_models.decoders.expert_weights import OPS as EXPERT_OPS
from aot_models.decoders.latent import Latent
from aot_models.decoders.latent_attention import LatentAttention, attend_prompts, projections
from aot_models.decoders.layers import (
    ACTIVATIONS,
    Bounded,
    GatedMlp,
    Mlp,
    Norm,
    NormedRotation,
    Rotation,
    SelfAttention,
    Tables,
)
from aot_models.decoders.linears import Dense, Layer, hardware_float8, place_adapted
from aot_models.decoders.mixture import place_mixture
from aot_models.decoders.rows import EightBitRows
from aot_runtime import Bundle, DeviceArray, Stream

OPS = ("embedding", "rms_norm", "append_kv", "flash_attention_varlen", "paged_attention", "matmul", "sample", "advance")
LARGEST_HEAD = 256
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


class MissingOpError(LookupError):
    """A bundle lacks ops that a model needs."""


class KeysValues(Protocol):
    """A cache: k and v of each layer, [blocks, block_size, heads_kv, head_dim]."""

    @property
    def k(self) -> Sequence[DeviceArray]: ...

    @property
    def v(self) -> Sequence[DeviceArray]: ...


class Attend(Protocol):
    """Attention in layer `number`: q [tokens, heads, head_dim]; k, v [tokens, heads_kv, head_dim]; out like q."""

    def __call__(self, q: DeviceArray, k: DeviceArray, v: DeviceArray, number: int, out: DeviceArray) -> None: ...


@dataclass(frozen=True)
class DecoderLayer:
    """A layer; the norms before the residual sums are None in families without them."""

    attention_norm: Norm
    attention: SelfAttention | LatentAttention
    attention_out_norm: Norm | None
    mlp_norm: Norm
    mlp: Mlp
    mlp_out_norm: Norm | None


class Decoder:
    """A model with its weights on the device of a bundle.

    Attributes:
        dtype: the dtype of weights, activations and cache; by default the checkpoint's, bfloat16 for float32.
        adapters: adapters by name; each row of a pass may use one of them.

    Raises:
        MissingOpError: the bundle lacks ops.
        ValueError: the dtype is not float16 or bfloat16, or the heads are too large.
    """

    def __init__(
        self, bundle: Bundle, config: Config, checkpoint: Checkpoint, dtype: str | None = None,
        adapters: Mapping[str, Adapter] | None = None,
    ):  # fmt: skip
        self.bundle, self.config, self.device, self.adapters = bundle, config, bundle.device, adapters or {}
        check_ops(bundle, config, checkpoint, bool(adapters))
        if config.head_dim > LARGEST_HEAD and not config.latent:
            raise ValueError(
                f"heads of {config.head_dim} elements are not supported; the ops take up to {LARGEST_HEAD}"
            )
        self.dtype, self._shapes = dtype_of(config, dtype), config.linears()
        self._needs: dict[EightBitRows, None] = {}
        self._tables = {layer.rope: Tables(bundle.device, layer.rope, config.context) for layer in config.attention}
        self.table = self._upload(checkpoint, config.embeddings)
        self.layers = tuple(self._layer(checkpoint, i) for i in range(config.layers))
        self.norm = self._norm(checkpoint, f"{config.root}.norm")
        head = Dense(bundle, self.table) if config.tied else self._linear(checkpoint, config.head)
        self.head = Bounded(bundle, head, config.logits_softcap) if config.logits_softcap else head

    def buffers(self, tokens: int) -> Buffers:
        return Buffers(self.device, self.config, self.dtype, tokens, self._needs, bool(self.adapters))

    def adapter_numbers(self, names: Iterable[str]) -> list[int]:
        """The numbers of adapters, for `Rows.choose`; the name "" is no adapter."""
        numbers = {name: number for number, name in enumerate(self.adapters)}
        return [numbers[name] if name else -1 for name in names]

    def hidden(
        self, ids: DeviceArray, positions: DeviceArray, slots: DeviceArray, cache: KeysValues, attend: Attend,
        buffers: Buffers, stream: Stream | None,
    ) -> DeviceArray:  # fmt: skip
        """Run all layers: write keys and values to the cache, and return the normed hidden states [tokens, hidden].

        ids, positions, slots: int32 [tokens]. No memory is allocated.
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
        """Attention of whole prompts in one array: prompt i has the tokens starts[i] to starts[i + 1]."""
        if (latent := self.config.latent) is not None:
            return attend_prompts(self.bundle, latent, self.config.score_scale, starts, longest, stream)

        def attend(q: DeviceArray, k: DeviceArray, v: DeviceArray, number: int, out: DeviceArray) -> None:
            self.bundle.flash_attention_varlen(
                q, k, v, starts, starts, max_seqlen_q=longest, causal=True, window_left=self._window(number),
                scale=self.config.score_scale, softcap=self.config.attention_softcap, out=out, stream=stream,
            )  # fmt: skip

        return attend

    def attend_cache(
        self, cache: KeysValues, tables: DeviceArray, seqlens: DeviceArray, starts: DeviceArray, stream: Stream | None,
        longest: int = 1,
    ) -> Attend:  # fmt: skip
        """Attention of each sequence's last tokens, at most `longest`, to its keys and values in the cache."""

        def attend(q: DeviceArray, k: DeviceArray, v: DeviceArray, number: int, out: DeviceArray) -> None:
            if (latent := self.config.latent) is not None:
                rows = cache.k[number].reshape(-1, cache.k[number].shape[1], latent.row)
                self.bundle.mla_decode(
                    q, rows, tables, seqlens, starts, max_seqlen_q=longest, scale=self.config.score_scale,
                    rope=latent.rotated, out=out, stream=stream,
                )  # fmt: skip
                return
            self.bundle.paged_attention(
                q, cache.k[number], cache.v[number], tables, seqlens, starts, max_seqlen_q=longest,
                window_left=self._window(number), scale=self.config.score_scale, softcap=self.config.attention_softcap,
                out=out, stream=stream,
            )  # fmt: skip

        return attend

    def _window(self, number: int) -> int:
        """The ops' argument `window_left`: tokens before its own that a token attends to; -1: all."""
        window = self.config.attention[number].window
        return -1 if window is None else window - 1

    def _layer(self, checkpoint: Checkpoint, number: int) -> DecoderLayer:
        prefix, names = self.config.prefix(number), self.config.names

        def linear(*parts: str) -> Layer:
            return self._linear(checkpoint, *(f"{prefix}.{part}" for part in parts))

        def norm(name: str) -> Norm:
            return self._norm(checkpoint, f"{prefix}.{name}")

        return DecoderLayer(
            norm(names.attention_norm),
            self._latent_attention(checkpoint, number, latent, linear, norm) if (latent := self.config.latent)
            else self._attention(number, linear, norm),
            norm(names.attention_out_norm) if names.attention_out_norm else None,
            norm(names.mlp_norm),
            self._mlp(checkpoint, number, linear),
            norm(names.mlp_out_norm) if names.mlp_out_norm else None,
        )  # fmt: skip

    def _attention(self, number: int, linear: Callable[..., Layer], norm: Callable[[str], Norm]) -> SelfAttention:
        names, tables = self.config.names, self._tables[self.config.attention[number].rope]
        rotate: Rotation | NormedRotation = Rotation(self.bundle, tables)
        if names.query_norm and names.key_norm:
            rotate = NormedRotation(tables, norm(names.query_norm), norm(names.key_norm))
        return SelfAttention(self.bundle, linear(*names.queries_keys_values), rotate, linear(names.attention_out))

    def _latent_attention(
        self, checkpoint: Checkpoint, number: int, latent: Latent, linear: Callable[..., Layer],
        norm: Callable[[str], Norm],
    ) -> LatentAttention:  # fmt: skip
        name = f"{self.config.prefix(number)}.{latent.up}"
        up = checkpoint.linear(name, self._shapes[name]).weight
        if not isinstance(up, np.ndarray):
            raise CheckpointError(f"{checkpoint.folder}: {name} is quantised; latent attention needs it in 16 bits")
        tables, out = self._tables[self.config.attention[number].rope], linear(self.config.names.attention_out)
        up_keys, up_values = projections(self.bundle, latent, up.astype(self.dtype, copy=False))
        return LatentAttention(
            self.bundle, latent, tables, linear(latent.queries), linear(latent.down), norm(latent.norm), up_keys,
            up_values, out,
        )  # fmt: skip

    def _mlp(self, checkpoint: Checkpoint, number: int, linear: Callable[..., Layer]) -> Mlp:
        names, prefix, activation = self.config.names, self.config.prefix(number), self.config.activation
        experts = self.config.experts_of(number)
        if experts is None:
            return GatedMlp(self.bundle, linear(*names.gate_up), linear(names.down), activation)

        def named(name: str) -> Linear:
            return checkpoint.linear(f"{prefix}.{name}", self._shapes[f"{prefix}.{name}"])

        return place_mixture(self.bundle, checkpoint, experts, activation, prefix, named, self.dtype)

    def _linear(self, checkpoint: Checkpoint, *names: str) -> Layer:
        parts = [checkpoint.linear(name, self._shapes[name]) for name in names]
        added = [[adapter.of(name) for name in names] for adapter in self.adapters.values()]
        layer = place_adapted(self.bundle, parts, added, self.dtype)
        self._needs |= dict.fromkeys(layer.needs)
        return layer

    def _norm(self, checkpoint: Checkpoint, name: str) -> Norm:
        weight = self._upload(checkpoint, f"{name}.weight")
        return Norm(self.bundle, weight, self.config.eps, self.config.zero_centred)

    def _upload(self, checkpoint: Checkpoint, name: str) -> DeviceArray:
        return self.device.array(checkpoint.tensor(name).astype(self.dtype, copy=False))


def dtype_of(config: Config, name: str | None = None) -> np.dtype:
    """The dtype of weights, activations and cache; by default the checkpoint's, bfloat16 for float32."""
    name = name or ("bfloat16" if config.dtype == "float32" else config.dtype)
    if name not in DTYPES:
        raise ValueError(f"dtype {name} is not supported; supported: {', '.join(DTYPES)}")
    return DTYPES[name]


def check_ops(bundle: Bundle, config: Config, checkpoint: Checkpoint, adapted: bool = False) -> None:
    """Check that a bundle has the ops of a model. adapted: the model has adapters.

    Raises:
        MissingOpError: the bundle lacks ops.
        CheckpointError: the weights are float8, and the hardware does not multiply float8.
    """
    own = ["qk_norm_rotary" if config.names.query_norm else "rotary", ACTIVATIONS[config.activation][0]]
    own += ["process_logits"] if config.logits_softcap else []
    own += ["lora_add"] if adapted else []
    own += ["mla_decode", "batched_matmul"] if config.latent else []
    if experts := config.experts:
        of_experts = {
            op for name in config.linears() if f".{experts.each}." in name for op in checkpoint.format(name).ops
        }
        own += ["moe_route", *(EXPERT_OPS[op] for op in sorted(of_experts & EXPERT_OPS.keys()))]
    if missing := [op for op in dict.fromkeys((*OPS, *own, *sorted(checkpoint.ops))) if op not in bundle.ops]:
        manifest = "manifests/mixtures.yaml" if config.experts else "manifests/llama.yaml"
        raise MissingOpError(f"{bundle.path} has no {', '.join(missing)}, which the model needs; see {manifest}")
    if checkpoint.float8 and not hardware_float8(bundle):
        raise CheckpointError(f"{checkpoint.folder}: weights are float8, which {bundle.device.arch} does not multiply")
