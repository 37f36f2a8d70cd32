"""Mixtures of experts with weights of 8 and 4 bits in numpy: the exact result, and the result in the kernels' dtypes.

Shapes are those of manifests/moe.yaml. With weights of 8 bits that have scales of rows or blocks, tokens and the rows
between the products are quantised to 8 bits, in both references, since the op says so. The references in the kernels'
dtypes round, in this order, as vLLM's fused experts do:

1. x to 8 bits: scale = amax / LARGEST in fp32, or a static one, values = x / scale, half to even, at most LARGEST;
2. gate x and up x, each summed in fp32 and multiplied by its scales, to the dtype of x;
3. activation(gate x), computed in fp32, to the dtype of x; its product with up x + shift likewise;
4. that product to 8 bits, as in 1;
5. weight * (down act), summed in fp32, to the dtype of x; the sum over the slots of a token, in fp32, likewise.

With codes of 4 or 8 bits and scales of groups, the weights are rounded to the dtype of x, and only step 5 and the
product in step 3 are done.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from kernels.gemm.reference import SCALED, dequantised, largest, nibbles, quantised, to_8_bits
from kernels.moe.reference import Experts, exact_sum, same_dtype_sum

Array = np.ndarray


def moe_scaled(
    x: Array, gate_up: Array, scale_gate_up: Array, down: Array, scale_down: Array, weights: Array, chosen: Array,
    shared: Array | None = None, scale_x: Array | None = None, scale_act: Array | None = None, **gating: Any,
) -> Array:  # fmt: skip
    """`moe` in float64, with weights of 8 bits times the scales of their rows."""
    matrices = _by_rows(np.dtype(np.float64), gate_up, scale_gate_up, down, scale_down, scale_x, scale_act)
    return exact_sum(x, matrices, weights, chosen, shared, **gating)


def moe_scaled_same_dtype(
    x: Array, gate_up: Array, scale_gate_up: Array, down: Array, scale_down: Array, weights: Array, chosen: Array,
    shared: Array | None = None, scale_x: Array | None = None, scale_act: Array | None = None, **gating: Any,
) -> Array:  # fmt: skip
    """`moe_scaled` as hardware does it."""
    matrices = _by_rows(np.dtype(np.float32), gate_up, scale_gate_up, down, scale_down, scale_x, scale_act)
    return same_dtype_sum(x, matrices, weights, chosen, shared, **gating)


def _by_rows(
    dtype: np.dtype, gate_up: Array, scale_gate_up: Array, down: Array, scale_down: Array, scale_x: Array | None,
    scale_act: Array | None,
) -> Experts:  # fmt: skip
    of_gate_up, of_down = (
        w.astype(dtype) * scale.astype(dtype)[:, :, None] for w, scale in ((gate_up, scale_gate_up), (down, scale_down))
    )
    seen, between = (
        partial(in_8_bits, storage=gate_up.dtype, block=None, static=static) for static in (scale_x, scale_act)
    )
    return Experts(of_gate_up, of_down, seen, rounds_factors=True, seen_between=between)


def moe_block_scaled(
    x: Array, gate_up: Array, scale_gate_up: Array, down: Array, scale_down: Array, weights: Array, chosen: Array,
    shared: Array | None = None, **gating: Any,
) -> Array:  # fmt: skip
    """`moe` in float64, with weights of float8 times the scales of their blocks of 128 by 128."""
    matrices = _by_blocks(np.dtype(np.float64), gate_up, scale_gate_up, down, scale_down)
    return exact_sum(x, matrices, weights, chosen, shared, **gating)


def moe_block_scaled_same_dtype(
    x: Array, gate_up: Array, scale_gate_up: Array, down: Array, scale_down: Array, weights: Array, chosen: Array,
    shared: Array | None = None, **gating: Any,
) -> Array:  # fmt: skip
    """`moe_block_scaled` as hardware does it."""
    matrices = _by_blocks(np.dtype(np.float32), gate_up, scale_gate_up, down, scale_down)
    return same_dtype_sum(x, matrices, weights, chosen, shared, **gating)


def _by_blocks(dtype: np.dtype, gate_up: Array, scale_gate_up: Array, down: Array, scale_down: Array) -> Experts:
    gate_and_up = zip(np.split(gate_up, 2, 1), np.split(scale_gate_up, 2, 1), strict=True)
    of_gate_up = np.concatenate([_scaled_by_blocks(dtype, w, scale) for w, scale in gate_and_up], 1)
    seen = partial(in_8_bits, storage=gate_up.dtype, block=SCALED)
    return Experts(of_gate_up, _scaled_by_blocks(dtype, down, scale_down), seen, rounds_factors=True)


def _scaled_by_blocks(dtype: np.dtype, w: Array, scale: Array) -> Array:
    factors = np.repeat(np.repeat(scale, SCALED, 1), SCALED, 2)[:, : w.shape[1], : w.shape[2]]
    return w.astype(dtype) * factors.astype(dtype)


def moe_int4(
    x: Array, gate_up: Array, scales_gate_up: Array, down: Array, scales_down: Array, weights: Array, chosen: Array,
    zeros_gate_up: Array | None = None, zeros_down: Array | None = None, order_gate_up: Array | None = None,
    order_down: Array | None = None, shared: Array | None = None, **gating: Any,
) -> Array:  # fmt: skip
    """`moe` in float64, with weights of (codes - zeros) * scales, exactly; codes of 4 or 8 bits."""
    of = partial(_experts_of_codes, np.dtype(np.float64), x.shape[1])
    matrices = of(gate_up, scales_gate_up, down, scales_down, zeros_gate_up, zeros_down, order_gate_up, order_down)
    return exact_sum(x, matrices, weights, chosen, shared, **gating)


def moe_int4_same_dtype(
    x: Array, gate_up: Array, scales_gate_up: Array, down: Array, scales_down: Array, weights: Array, chosen: Array,
    zeros_gate_up: Array | None = None, zeros_down: Array | None = None, order_gate_up: Array | None = None,
    order_down: Array | None = None, shared: Array | None = None, **gating: Any,
) -> Array:  # fmt: skip
    """`moe_int4` as hardware does it: weights of x's dtype."""
    of = partial(_experts_of_codes, x.dtype, x.shape[1])
    matrices = of(gate_up, scales_gate_up, down, scales_down, zeros_gate_up, zeros_down, order_gate_up, order_down)
    return same_dtype_sum(x, matrices, weights, chosen, shared, **gating)


moe_int8, moe_int8_same_dtype = moe_int4, moe_int4_same_dtype


def moe_fp8(
    x: Array, gate_up: Array, scales_gate_up: Array, down: Array, scales_down: Array, weights: Array, chosen: Array,
    shared: Array | None = None, **gating: Any,
) -> Array:  # fmt: skip
    """`moe` in float64, with weights of codes * scales, exactly."""
    matrices = _experts_of_codes(np.dtype(np.float64), x.shape[1], gate_up, scales_gate_up, down, scales_down)
    return exact_sum(x, matrices, weights, chosen, shared, **gating)


def moe_fp8_same_dtype(
    x: Array, gate_up: Array, scales_gate_up: Array, down: Array, scales_down: Array, weights: Array, chosen: Array,
    shared: Array | None = None, **gating: Any,
) -> Array:  # fmt: skip
    """`moe_fp8` as hardware does it: weights of x's dtype."""
    matrices = _experts_of_codes(x.dtype, x.shape[1], gate_up, scales_gate_up, down, scales_down)
    return same_dtype_sum(x, matrices, weights, chosen, shared, **gating)


def _experts_of_codes(
    storage: np.dtype, hidden: int, gate_up: Array, scales_gate_up: Array, down: Array, scales_down: Array,
    zeros_gate_up: Array | None = None, zeros_down: Array | None = None, order_gate_up: Array | None = None,
    order_down: Array | None = None,
) -> Experts:  # fmt: skip
    both = _of_codes(storage, gate_up, hidden, scales_gate_up, zeros_gate_up)
    second = _of_codes(storage, down, both.shape[1] // 2, scales_down, zeros_down)
    return Experts(_in_order(both, order_gate_up), _in_order(second, order_down))


def _in_order(matrices: Array, order: Array | None) -> Array:
    """Add the columns of each expert's matrix where `order`, [experts, columns], says that they belong."""
    if order is None:
        return matrices
    placed = np.zeros_like(matrices)
    for matrix, own, columns in zip(placed, matrices, order, strict=True):
        np.add.at(matrix.T, columns, own.T)
    return placed


def _of_codes(storage: np.dtype, w: Array, k: int, scales: Array, zeros: Array | None) -> Array:
    """Decode experts' codes of 4 (uint8) or 8 bits to float64, or rounded to a narrower dtype in float32."""
    dtype, is_int4 = storage if storage == np.float64 else np.dtype(np.float32), w.dtype == np.uint8
    of_experts = [
        dequantised(
            dtype, nibbles(own, k) if is_int4 else own, scales[expert], k // scales.shape[1],
            None if zeros is None else zeros[expert], 8 if is_int4 else 0,
        )
        for expert, own in enumerate(w)
    ]  # fmt: skip
    return np.stack(of_experts).astype(storage).astype(dtype)


def in_8_bits(rows: Array, storage: np.dtype, block: int | None, static: Array | None = None) -> Array:
    """Quantise and dequantise values in their dtype, with a scale for `block` columns of each row, or a static one."""
    columns = rows.shape[1]
    if static is not None:
        limit, scale = largest(storage), static.astype(rows.dtype)
        return to_8_bits(np.clip(rows / scale, -limit, limit), storage).astype(rows.dtype) * scale
    value, scale = quantised(rows.dtype, rows, storage, block or columns, 1)
    return to_8_bits(value, storage).astype(rows.dtype) * np.repeat(scale, block or columns, 1)[:, :columns]
