"""Sorting, moving and summing of experts' rows in numpy. Shapes are those of manifests/moe.yaml."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def moe_align(chosen: Array, experts: int, block_size: int = 1) -> tuple[Array, Array, Array, Array, Array]:
    """Return (order, expert_of_block, offsets, places, counts), all int32."""
    count = chosen.size
    blocks = count if block_size == 1 else count // block_size + min(count, experts)
    order, expert_of_block = np.full(blocks * block_size, count, np.int32), np.full(blocks, -1, np.int32)
    offsets, places = np.zeros(experts + 1, np.int32), np.full(count, -1, np.int32)
    counts = np.zeros(experts, np.int32)
    end = 0
    for expert in range(experts):
        own = np.flatnonzero(chosen.reshape(-1) == expert)
        order[end : end + len(own)] = own
        places[own] = end + np.arange(len(own))
        counts[expert] = len(own)
        used = -(-len(own) // block_size)
        expert_of_block[end // block_size : end // block_size + used] = expert
        end += used * block_size
        offsets[expert + 1] = end
    return order, expert_of_block, offsets, places.reshape(chosen.shape), counts


moe_align_same_dtype = moe_align


def moe_permute(x: Array, order: Array, topk: int) -> Array:
    known = (order >= 0) & (order < len(x) * topk)
    return np.where(known[:, None], x[np.where(known, order // topk, 0)], x.dtype.type(0))


moe_permute_same_dtype = moe_permute


def moe_unpermute(x: Array, places: Array, weights: Array | None = None) -> Array:
    return _summed(np.float64, x, places, weights)


def moe_unpermute_same_dtype(x: Array, places: Array, weights: Array | None = None) -> Array:
    return _summed(np.float32, x, places, weights).astype(x.dtype)


def _summed(compute: type, x: Array, places: Array, weights: Array | None) -> Array:
    known = (places >= 0) & (places < len(x))
    factors = known.astype(compute) if weights is None else np.where(known, weights, 0).astype(compute)
    return (np.where(known[..., None], x[np.where(known, places, 0)], 0).astype(compute) * factors[..., None]).sum(1)


def moe_sum(x: Array) -> Array:
    return x.astype(np.float64).sum(1)


def moe_sum_same_dtype(x: Array) -> Array:
    return x.astype(np.float32).sum(1).astype(x.dtype)
