"""A model in numpy: its logits in float64, and with the results of ops rounded to a dtype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from aot_models.decoders.config import Attention, Config
from aot_models.decoders.experts import Experts
from aot_models.decoders.latent import Latent
from kernels.attention.mla_reference import mla_prefill, mla_prefill_same_dtype
from kernels.attention.reference import attention, attention_same_dtype
from kernels.gemm.reference import matmul, matmul_same_dtype
from kernels.moe.reference import moe, moe_route, moe_route_same_dtype, moe_same_dtype
from kernels.rows import reference as rows

Array = np.ndarray
Weights = Mapping[str, Array]


@dataclass(frozen=True)
class Ops:
    """The operations of the model, and the dtype of their results."""

    dtype: np.dtype
    embedding: Callable[..., Array]
    norm: Callable[..., Array]
    rotary: Callable[..., Array]
    qk_norm_rotary: Callable[..., tuple[Array, Array]]
    attention: Callable[..., Array]
    gated: Mapping[str, Callable[..., Array]]
    product: Callable[..., Array]
    route: Callable[..., tuple[Array, Array]]
    experts: Callable[..., Array]
    latent: Callable[..., Array]


EXACT = Ops(
    np.dtype(np.float64), rows.embedding, rows.rms_norm, rows.rotary, rows.qk_norm_rotary, attention,
    {"silu": rows.silu_mul, "gelu_tanh": lambda gate, up: rows.gelu_mul(gate, up, "tanh")}, matmul,
    moe_route, moe, mla_prefill,
)  # fmt: skip


def rounded_ops(dtype: np.dtype) -> Ops:
    gated = {"silu": rows.silu_mul_same_dtype, "gelu_tanh": lambda gate, up: rows.gelu_mul_same_dtype(gate, up, "tanh")}
    return Ops(
        dtype, rows.embedding_same_dtype, rows.rms_norm_same_dtype, rows.rotary_same_dtype,
        rows.qk_norm_rotary_same_dtype, attention_same_dtype, gated, matmul_same_dtype,
        moe_route_same_dtype, moe_same_dtype, mla_prefill_same_dtype,
    )  # fmt: skip


def logits(ops: Ops, config: Config, tensors: Weights, tokens: Array) -> Array:
    """[len(tokens), vocabulary] of one sequence. tensors: by published name, all dense, in the model's dtype."""
    model = Model(ops, config, tensors)
    x = ops.embedding(tensors[f"{config.root}.embed_tokens.weight"], np.asarray(tokens), config.embedding_scale)
    x = x.astype(ops.dtype)
    for number, kind in enumerate(config.attention):
        prefix = f"{config.root}.layers.{number}."
        layer = replace(model, weights={k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
        x = x + layer.attend(kind, x)
        experts, normed = config.experts_of(number), layer.norm(config.names.mlp_norm, x)
        x = x + (layer.experts(experts, normed) if experts else layer.gated(normed))
    head = tensors[f"{config.root}.embed_tokens.weight" if config.tied else f"{config.head}.weight"]
    result = ops.product(model.norm(f"{config.root}.norm", x), head.astype(ops.dtype).T)
    bound = config.logits_softcap
    return (bound * np.tanh(result.astype(np.float64) / bound)).astype(ops.dtype) if bound else result


@dataclass(frozen=True)
class Model:
    """weights: those of one layer without its prefix, or all."""

    ops: Ops
    config: Config
    weights: Weights

    def attend(self, kind: Attention, x: Array) -> Array:
        config, count = self.config, len(x)
        if config.latent:
            return self.attend_latent(config.latent, kind, self.norm(config.names.attention_norm, x))
        joined = self.joined(config.names.queries_keys_values, self.norm(config.names.attention_norm, x))
        heads, heads_kv = config.heads, config.heads_kv
        q, k, v = np.split(joined.reshape(count, -1, config.head_dim), [heads, heads + heads_kv], 1)
        q, k = self.rotate(kind, q, k)
        window = {} if kind.window is None else {"window_left": kind.window - 1}
        by_head = (array.swapaxes(0, 1)[None] for array in (q, k, v))
        scale = config.head_dim**-0.5 if config.attention_scale is None else config.attention_scale
        out = self.ops.attention(*by_head, scale=scale, causal=True, softcap=config.attention_softcap, **window)
        change = self.joined((config.names.attention_out,), out[0].swapaxes(0, 1).reshape(count, -1))
        return self.norm(config.names.attention_out_norm, change) if config.names.attention_out_norm else change

    def attend_latent(self, figures: Latent, kind: Attention, x: Array) -> Array:
        count, weight, table = len(x), self.weight(figures.up), rotary_table(kind, len(x))
        queries = self.joined((figures.queries,), x).reshape(count, self.config.heads, -1)
        latents, key = np.split(self.joined((figures.down,), x), [figures.rank], 1)
        plain, to_rotate = np.split(queries, [figures.plain], 2)
        rotated, rotated_key = (self.ops.rotary(part, **table, interleaved=True) for part in (to_rotate, key[:, None]))
        out = self.ops.latent(
            plain.swapaxes(0, 1)[None], rotated.swapaxes(0, 1)[None], self.norm(figures.norm, latents)[None],
            rotated_key[None, :, 0], weight.reshape(self.config.heads, -1, figures.rank), scale=self.config.score_scale,
            causal=True,
        )  # fmt: skip
        return self.joined((self.config.names.attention_out,), out[0].swapaxes(0, 1).reshape(count, -1))

    def rotate(self, kind: Attention, q: Array, k: Array) -> tuple[Array, Array]:
        ops, config, table = self.ops, self.config, rotary_table(kind, len(q))
        if not config.names.query_norm:
            return ops.rotary(q, **table), ops.rotary(k, **table)
        gains = (self.weight(name) for name in (config.names.query_norm, config.names.key_norm))
        return ops.qk_norm_rotary(q, k, *gains, **table, eps=config.eps, zero_centred=config.zero_centred)

    def gated(self, x: Array) -> Array:
        names = self.config.names
        change = self.gated_layer(names.gate_up, names.down, x)
        return self.norm(names.mlp_out_norm, change) if names.mlp_out_norm else change

    def experts(self, figures: Experts, x: Array) -> Array:
        """Compute the mixture as published: shared experts are one gated layer."""
        scores = self.joined((figures.router,), x)
        weights, chosen = self.ops.route(
            scores, figures.chosen, renormalise=figures.renormalise, groups=figures.groups,
            topk_groups=figures.topk_groups, scale=figures.scale,
        )  # fmt: skip
        each = [f"{figures.each}.{number}" for number in range(figures.count)]
        both = [np.concatenate([self.weight(f"{one}.{name}") for name in figures.gate_up]) for one in each]
        down = [self.weight(f"{one}.{figures.down}") for one in each]
        shared = self.shared(figures, x) if figures.shared else None
        return self.ops.experts(x, np.stack(both), np.stack(down), weights, chosen, shared)

    def shared(self, figures: Experts, x: Array) -> Array:
        names = [f"{figures.shared_one}.{name}" for name in (*figures.gate_up, figures.down)]
        result = self.gated_layer(tuple(names[:2]), names[2], x)
        if figures.shared_is_gated:
            gate = self.joined((figures.shared_gate,), x).astype(np.float64)
            result = result * (1 / (1 + np.exp(-gate))).astype(result.dtype)
        return result

    def gated_layer(self, gate_up: tuple[str, ...], down: str, x: Array) -> Array:
        gate, up = np.split(self.joined(gate_up, x), 2, 1)
        return self.joined((down,), self.ops.gated[self.config.activation](gate, up))

    def norm(self, name: str, x: Array) -> Array:
        return self.ops.norm(x, self.weight(name), eps=self.config.eps, zero_centred=self.config.zero_centred)

    def joined(self, names: tuple[str, ...], x: Array) -> Array:
        """Linear layers of one input, their results side by side."""
        return np.concatenate([self.ops.product(x, self.weight(name).T, self.bias(name)) for name in names], 1)

    def weight(self, name: str) -> Array:
        return self.weights[f"{name}.weight"].astype(self.ops.dtype)

    def bias(self, name: str) -> Array | None:
        found = self.weights.get(f"{name}.bias")
        return None if found is None else found.astype(self.ops.dtype)


def rotary_table(kind: Attention, count: int) -> dict[str, Array]:
    """Return the arguments of `rotary`. Its float32 table is a part of the model's input."""
    positions = np.arange(count)
    angles = positions[:, None] * np.array(kind.rope.frequencies)
    cos, sin = ((f(angles) * kind.rope.scale).astype(np.float32) for f in (np.cos, np.sin))
    return {"cos": cos, "sin": sin, "positions": positions}
