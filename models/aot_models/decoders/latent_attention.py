"""Multi-head latent attention on a device, with absorbed projections.

Queries are multiplied by the projection of the keys, and the attended latent vectors by that of the values. So keys and
values are never computed from the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from aot_models.decoders.buffers import Buffers
from aot_models.decoders.latent import Latent
from aot_models.decoders.layers import Norm, Tables
from aot_models.decoders.linears import Layer
from aot_runtime import Bundle, DeviceArray, Stream

WIDEST = 256
"""The largest head dim of `append_kv`."""


@dataclass(frozen=True)
class LatentAttention:
    """Latent attention, from `normed` to `change`.

    Attributes:
        up_keys: [heads, plain, rank]; up_values: [heads, rank, values].
    """

    bundle: Bundle
    figures: Latent
    tables: Tables
    queries: Layer
    down: Layer
    norm: Norm
    up_keys: DeviceArray
    up_values: DeviceArray
    out: Layer

    def __call__(
        self, b: Buffers, positions: DeviceArray, slots: DeviceArray, keys: DeviceArray, values: DeviceArray,
        attend: Callable[..., None], stream: Stream | None,
    ) -> None:  # fmt: skip
        """Attend. keys: this layer's cache; values: the same memory."""
        bundle, own, tables = self.bundle, b.latent, (self.tables.cos, self.tables.sin, positions)
        self.queries(b.normed, own.queries, b.rows, stream)
        self.down(b.normed, own.down, b.rows, stream)
        self.norm(own.down_latents, own.latents, stream)
        bundle.rotary(own.key_to_rotate, *tables, interleaved=True, out=own.rotated_key, stream=stream)
        bundle.rotary(own.to_rotate, *tables, interleaved=True, out=own.rotated, stream=stream)
        bundle.batched_matmul(own.plain, self.up_keys, out=own.absorbed, stream=stream)
        rows, cache = (halves(array, self.figures.row) for array in (own.rows, keys))
        bundle.append_kv(*rows, *cache, slots, stream=stream)
        attend(own.by_row, own.rows, own.rows, out=own.sums)
        bundle.batched_matmul(own.sums_by_head, self.up_values, out=own.attended_by_head, stream=stream)
        self.out(own.attended, b.change, b.rows, stream)


def projections(bundle: Bundle, figures: Latent, weight: np.ndarray) -> tuple[DeviceArray, DeviceArray]:
    """Upload a weight [heads * (plain + values), rank] as the projections of (keys, values)."""
    placed = bundle.device.array(weight).reshape(-1, figures.plain + figures.values, figures.rank)
    return placed[:, : figures.plain], placed[:, figures.plain :].transpose(0, 2, 1)


def halves(rows: DeviceArray, width: int) -> tuple[DeviceArray, DeviceArray]:
    """View rows [.., 1, width] as two halves [.., heads, elements], the keys and values of `append_kv`."""
    heads = next(count for count in range(1, width) if width % (2 * count) == 0 and width // (2 * count) <= WIDEST)
    by_head = rows.reshape(*rows.shape[:-2], 2 * heads, width // (2 * heads))
    return by_head[..., :heads, :], by_head[..., heads:, :]


def attend_prompts(
    bundle: Bundle, figures: Latent, scale: float, starts: DeviceArray, longest: int, stream: Stream | None
) -> Callable[..., None]:
    """Attention of whole prompts, whose rows are passed as a cache with one token per block."""
    firsts = starts.numpy(stream)
    lengths = np.diff(firsts)
    tables = np.minimum(firsts[:-1, None] + np.arange(longest), firsts[-1] - 1).astype(np.int32)
    placed, seqlens = bundle.device.array(tables), bundle.device.array(lengths.astype(np.int32))

    def attend(q: DeviceArray, k: DeviceArray, v: DeviceArray, number: int, out: DeviceArray) -> None:
        bundle.mla_decode(
            q, k, placed, seqlens, starts, scale=scale, rope=figures.rotated, max_seqlen_q=longest, out=out,
            stream=stream,
        )  # fmt: skip

    return attend
