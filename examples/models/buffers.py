"""The memory that a pass over tokens writes to."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from aot_runtime import Device, DeviceArray
from models.config import Config
from models.experts import Experts
from models.rows import EightBitRows, Rows


class ExpertsBuffers:
    """What mixtures of experts write to. The columns of the shared experts are not written to, but for gates."""

    def __init__(self, device: Device, figures: Experts, dtype: np.dtype, tokens: int):
        chosen, shared = figures.chosen, figures.shared
        numbers = np.zeros((tokens, chosen + shared), np.int32)
        numbers[:, chosen:] = figures.count + np.arange(shared)
        self.scores = device.empty((tokens, figures.count), dtype)
        self.shared_scores = device.empty((tokens, shared), dtype)
        self.shared_order = device.empty((tokens, shared), np.dtype(np.int32))
        self.weights = device.array(np.ones(numbers.shape, np.float32))
        self.chosen = device.array(numbers)


class Buffers:
    """What a pass over `tokens` tokens writes to, the same memory in each layer.

    needs: of the linear layers. adapted: whether these have adapters.
    """

    def __init__(
        self, device: Device, config: Config, dtype: np.dtype, tokens: int, needs: Iterable[EightBitRows],
        adapted: bool = False,
    ):  # fmt: skip
        def new(*shape: int) -> DeviceArray:
            return device.empty((tokens, *shape), dtype)

        heads, heads_kv, head_dim = config.heads, config.heads_kv, config.head_dim
        self.total, self.normed, self.change = (new(config.hidden) for _ in range(3))
        self.joined = new((heads + 2 * heads_kv) * head_dim)
        by_head = self.joined.reshape(tokens, heads + 2 * heads_kv, head_dim)
        self.to_rotate, self.values = by_head[:, : heads + heads_kv], by_head[:, heads + heads_kv :]
        self.new_queries, self.new_keys = self.to_rotate[:, :heads], self.to_rotate[:, heads:]
        rotated = new(heads + heads_kv, head_dim)
        self.rotated, self.queries, self.keys = rotated, rotated[:, :heads], rotated[:, heads:]
        self.attended = new(heads, head_dim)
        self.gate_up = new(2 * config.intermediate)
        self.gate, self.up = self.gate_up[:, : config.intermediate], self.gate_up[:, config.intermediate :]
        self.gated = new(config.intermediate)
        self.rows = Rows(device, tokens, needs, adapted)
        if config.experts:
            self.of_experts = ExpertsBuffers(device, config.experts, dtype, tokens)
