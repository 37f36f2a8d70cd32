"""Device memory for the intermediate results of a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from aot_models.decoders.config import Config
from aot_models.decoders.experts import Experts
from aot_models.decoders.latent import Latent
from aot_models.decoders.rows import EightBitRows, Rows
from aot_runtime import Device, DeviceArray


class ExpertsBuffers:
    """Memory for mixtures of experts. Columns of shared experts are constant, except their gates' weights."""

    def __init__(self, device: Device, figures: Experts, dtype: np.dtype, tokens: int):
        chosen, shared = figures.chosen, figures.shared
        numbers = np.zeros((tokens, chosen + shared), np.int32)
        numbers[:, chosen:] = figures.count + np.arange(shared)
        self.scores = device.empty((tokens, figures.count), dtype)
        self.shared_scores = device.empty((tokens, shared), dtype)
        self.shared_order = device.empty((tokens, shared), np.dtype(np.int32))
        self.weights = device.array(np.ones(numbers.shape, np.float32))
        self.chosen = device.array(numbers)


class LatentBuffers:
    """Memory for latent attention. Operands of batched products are views [heads, tokens, ..]."""

    def __init__(self, device: Device, figures: Latent, heads: int, dtype: np.dtype, tokens: int):
        def new(*shape: int) -> DeviceArray:
            return device.empty((tokens, *shape), dtype)

        rank, plain = figures.rank, figures.plain
        self.queries, self.down = new(heads * (plain + figures.rotated)), new(figures.row)
        by_head = self.queries.reshape(tokens, heads, plain + figures.rotated)
        self.plain, self.to_rotate = by_head[:, :, :plain].transpose(1, 0, 2), by_head[:, :, plain:]
        self.by_row, self.rows = new(heads, figures.row), new(1, figures.row)
        self.absorbed, self.rotated = self.by_row[:, :, :rank].transpose(1, 0, 2), self.by_row[:, :, rank:]
        self.down_latents, self.latents = self.down[:, :rank], self.rows.reshape(tokens, figures.row)[:, :rank]
        self.key_to_rotate = self.down.reshape(tokens, 1, figures.row)[:, :, rank:]
        self.rotated_key = self.rows[:, :, rank:]
        self.sums, attended = new(heads, rank), new(heads, figures.values)
        self.sums_by_head, self.attended_by_head = self.sums.transpose(1, 0, 2), attended.transpose(1, 0, 2)
        self.attended = attended.reshape(tokens, heads * figures.values)


class Buffers:
    """Memory for a pass over `tokens` tokens, shared by all layers.

    needs: the 8-bit rows that linear layers need. adapted: the layers have adapters.
    """

    def __init__(
        self, device: Device, config: Config, dtype: np.dtype, tokens: int, needs: Iterable[EightBitRows],
        adapted: bool = False,
    ):  # fmt: skip
        def new(*shape: int) -> DeviceArray:
            return device.empty((tokens, *shape), dtype)

        self.total, self.normed, self.change = (new(config.hidden) for _ in range(3))
        if config.latent:
            self.latent = LatentBuffers(device, config.latent, config.heads, dtype, tokens)
        else:
            self._of_attention(config, new)
        self.gate_up = new(2 * config.intermediate)
        self.gate, self.up = self.gate_up[:, : config.intermediate], self.gate_up[:, config.intermediate :]
        self.gated = new(config.intermediate)
        self.rows = Rows(device, tokens, needs, adapted)
        if config.experts:
            self.of_experts = ExpertsBuffers(device, config.experts, dtype, tokens)

    def _of_attention(self, config: Config, new: Callable[..., DeviceArray]) -> None:
        heads, heads_kv, head_dim = config.heads, config.heads_kv, config.head_dim
        self.joined = new((heads + 2 * heads_kv) * head_dim)
        by_head = self.joined.reshape(-1, heads + 2 * heads_kv, head_dim)
        self.to_rotate, self.values = by_head[:, : heads + heads_kv], by_head[:, heads + heads_kv :]
        self.new_queries, self.new_keys = self.to_rotate[:, :heads], self.to_rotate[:, heads:]
        rotated = new(heads + heads_kv, head_dim)
        self.rotated, self.queries, self.keys = rotated, rotated[:, :heads], rotated[:, heads:]
        self.attended = new(heads, head_dim)
