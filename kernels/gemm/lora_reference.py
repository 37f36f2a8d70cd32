"""Low-rank adapters in numpy: `lora_linear` and `lora_add`.

Each `f` computes in float64, each `f_same_dtype` as hardware does it: summed in fp32, what is between an adapter's
matrices of x's dtype.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def lora_linear(x: Array, w: Array, down: Array, up: Array, **options: Array | float | None) -> Array:
    """x w' + scale * (x down') up', [m, n]. x: [m, k]; w: [n, k]; the rest is as for `_adapters`."""
    return x.astype(np.float64) @ w.T.astype(np.float64) + _adapters(np.float64, x, down, up, **options)


def lora_linear_same_dtype(x: Array, w: Array, down: Array, up: Array, **options: Array | float | None) -> Array:
    product = x.astype(np.float32) @ w.T.astype(np.float32)
    return (product + _adapters(np.float32, x, down, up, **options)).astype(x.dtype)


def lora_add(x: Array, down: Array, up: Array, e: Array, **options: Array | float | None) -> Array:
    """e + scale * (x down') up'. e: [m, n]."""
    return e.astype(np.float64) + _adapters(np.float64, x, down, up, **options)


def lora_add_same_dtype(x: Array, down: Array, up: Array, e: Array, **options: Array | float | None) -> Array:
    return (e.astype(np.float32) + _adapters(np.float32, x, down, up, **options)).astype(e.dtype)


def _adapters(
    compute: type, x: Array, down: Array, up: Array, adapter_of: Array | None = None,
    adapter_scales: Array | None = None, ranks: Array | None = None, scale: float = 1,
) -> Array:  # fmt: skip
    """Return the sum that the adapters add, [m, n].

    down: [adapters, rank, k]; up: [adapters, n, rank]; adapter_of: int [m], by default 0; a row whose index is none of
    the adapters' has none. adapter_scales: [adapters], factors beside scale, by default 1. ranks: int [adapters], how
    many of the rank are an adapter's own, by default all.
    """
    index = np.zeros(len(x), np.int64) if adapter_of is None else adapter_of
    added = np.zeros((len(x), up.shape[1]), compute)
    for adapter in range(len(down)):
        rows = index == adapter
        rank = down.shape[1] if ranks is None else min(max(int(ranks[adapter]), 0), down.shape[1])
        factor = compute(scale) * compute(1 if adapter_scales is None else adapter_scales[adapter])
        inner = factor * (x[rows].astype(compute) @ down[adapter, :rank].T.astype(compute))
        inner = inner if compute is np.float64 else inner.astype(x.dtype).astype(compute)
        added[rows] = inner @ up[adapter, :, :rank].T.astype(compute)
    return added
