"""A model in numpy: its logits in float64, and as ops that round their results to a dtype give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from kernels.attention.reference import attention, attention_same_dtype
from kernels.gemm.reference import matmul, matmul_same_dtype
from kernels.rows import reference as rows
from models.config import Attention, Config

Array = np.ndarray


@dataclass(frozen=True)
class Ops:
    """What the model is made of, and the dtype of what they return."""

    dtype: np.dtype
    norm: Callable[..., Array]
    rotary: Callable[..., Array]
    attention: Callable[..., Array]
    gated: Callable[..., Array]
    product: Callable[..., Array]


EXACT = Ops(np.dtype(np.float64), rows.rms_norm, rows.rotary, attention, rows.silu_mul, matmul)


def rounded_ops(dtype: np.dtype) -> Ops:
    return Ops(
        dtype, rows.rms_norm_same_dtype, rows.rotary_same_dtype, attention_same_dtype, rows.silu_mul_same_dtype,
        matmul_same_dtype,
    )  # fmt: skip


def logits(ops: Ops, config: Config, tensors: Mapping[str, Array], tokens: Array) -> Array:
    """[len(tokens), vocabulary] of one sequence. tensors: by published name, all dense, in the model's dtype."""
    weights = {name: array.astype(ops.dtype) for name, array in tensors.items()}
    positions = np.arange(len(tokens))
    x = weights["model.embed_tokens.weight"][np.asarray(tokens)]
    for layer, kind in enumerate(config.attention):
        prefix = f"model.layers.{layer}."
        mine = {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}
        normed = ops.norm(x, mine["input_layernorm.weight"], eps=config.eps)
        x = x + _attend(ops, config, kind, mine, normed, positions)
        x = x + _mlp(ops, mine, ops.norm(x, mine["post_attention_layernorm.weight"], eps=config.eps))
    head = weights["model.embed_tokens.weight" if config.tied else "lm_head.weight"]
    return ops.product(ops.norm(x, weights["model.norm.weight"], eps=config.eps), head.T)


def _attend(
    ops: Ops, config: Config, layer: Attention, weights: Mapping[str, Array], x: Array, positions: Array
) -> Array:
    angles = positions[:, None] * np.array(layer.rope.frequencies)
    # The table is a part of the model's input: its float32 numbers.
    rotate = partial(
        ops.rotary, cos=np.cos(angles).astype(np.float32), sin=np.sin(angles).astype(np.float32), positions=positions
    )
    q, k, v = (
        _linear(ops, weights, f"self_attn.{name}_proj", x).reshape(len(x), -1, config.head_dim) for name in "qkv"
    )
    by_head = [array.swapaxes(0, 1)[None] for array in (rotate(q), rotate(k), v)]
    window = {} if layer.window is None else {"window_left": layer.window - 1}
    out = ops.attention(*by_head, scale=config.head_dim**-0.5, causal=True, **window)
    return _linear(ops, weights, "self_attn.o_proj", out[0].swapaxes(0, 1).reshape(len(x), -1))


def _mlp(ops: Ops, weights: Mapping[str, Array], x: Array) -> Array:
    gate, up = (_linear(ops, weights, f"mlp.{name}_proj", x) for name in ("gate", "up"))
    return _linear(ops, weights, "mlp.down_proj", ops.gated(gate, up))


def _linear(ops: Ops, weights: Mapping[str, Array], name: str, x: Array) -> Array:
    return ops.product(x, weights[f"{name}.weight"].T, weights.get(f"{name}.bias"))
