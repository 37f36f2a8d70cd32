"""Stack the weights of experts on the host for the ops: all of one kind, one expert after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from aot_models.checkpoints.linear import BLOCK, Linear, Scaled, Weight, all_of
from aot_models.decoders.experts import Experts
from aot_models.float8 import cast
from aot_models.quantise import Packed

Array = np.ndarray
Named = Callable[[str], Linear]
"""Reads a linear layer by its name in a decoder layer."""
Kind = TypeVar("Kind", Array, Packed, Scaled)
Matrices = dict[str, list[list[Kind]]]
"""A matrix of each expert by its argument's name, in parts that are concatenated along the outputs."""

OPS = {"matmul": "moe", "linear_int4": "moe_int4", "linear_int8": "moe_int8", "scaled_matmul": "moe_scaled",
       "block_scaled_matmul": "moe_block_scaled"}  # fmt: skip
"""Op of linear layers → op of experts that takes the same format of weights."""


def together(figures: Experts, named: Named, dtype: np.dtype, float8: str) -> tuple[str, dict[str, Array]]:
    """Return the op for the experts of a layer, and its weights by argument.

    dtype: the dtype of activations; float8: the float8 dtype of the hardware.

    Raises:
        ValueError: no op takes these weights.
    """
    gates, ups, downs = (_of_all(figures, named, name) for name in (*figures.gate_up, figures.down))
    matrices = {
        "gate_up": [[gate, up] for gate, up in zip(gates, ups, strict=True)],
        "down": [[down] for down in downs],
    }
    if packed := _all_of(Packed, matrices):
        return _packed(packed, dtype)
    if scaled := _all_of(Scaled, matrices):
        return _scaled(scaled, float8)
    if dense := _all_of(np.ndarray, matrices):
        return "moe", {name: _stack(parts).astype(dtype, copy=False) for name, parts in dense.items()}
    raise ValueError("some experts are quantised, others not; all or none must be")


def _all_of(kind: type[Kind], matrices: dict[str, list[list[Weight]]]) -> Matrices[Kind] | None:
    found = {name: [all_of(kind, expert) for expert in experts] for name, experts in matrices.items()}
    kept = {name: [expert for expert in experts if expert] for name, experts in found.items()}
    return kept if all(all(experts) for experts in found.values()) else None


def _packed(matrices: Matrices[Packed], dtype: np.dtype) -> tuple[str, dict[str, Array]]:
    every = [part for parts in matrices.values() for expert in parts for part in expert]
    if len({(part.w.dtype, part.zeros is None) for part in every}) > 1 or any(part.order is not None for part in every):
        raise ValueError("all experts need weights of the same bits, with or without zeros, and without act-order")
    with_zeros, of_4_bits = every[0].zeros is not None, every[0].w.dtype == np.uint8
    if not of_4_bits and any(part.zeros is not None and part.zeros.any() for part in every):
        raise ValueError("8-bit weights with zeros are not supported; symmetric ones are")
    made: dict[str, Array] = {}
    for name, parts in matrices.items():
        made[name] = _stack([[part.w for part in expert] for expert in parts])
        made[f"scales_{name}"] = _stack([[part.scales for part in expert] for expert in parts], 1).astype(dtype)
        if with_zeros and of_4_bits:
            made[f"zeros_{name}"] = _stack(
                [[x for part in expert if (x := part.zeros) is not None] for expert in parts], 1
            )
    return ("moe_int4" if of_4_bits else "moe_int8"), made


def _scaled(matrices: Matrices[Scaled], float8: str) -> tuple[str, dict[str, Array]]:
    """Stack 8-bit weights. Static scales of activations are dropped: the ops scale each row, or 128 columns of it."""
    every = [part for parts in matrices.values() for expert in parts for part in expert]
    if len({(part.weight.dtype, part.of_blocks) for part in every}) > 1:
        raise ValueError("all experts need weights of the same dtype, with scales of the same kind")
    of_blocks = every[0].of_blocks
    made: dict[str, Array] = {}
    for name, parts in matrices.items():
        codes, factor = _stack([[part.weight for part in expert] for expert in parts]), 1.0
        if codes.dtype != np.int8:
            codes, factor = cast(codes, float8)
        scales = [[part.scales if of_blocks else _by_row(part) for part in expert] for expert in parts]
        made |= {name: codes, f"scale_{name}": (_stack(scales) * factor).astype(np.float32)}
    return ("moe_block_scaled" if of_blocks else "moe_scaled"), made


def _by_row(part: Scaled) -> Array:
    return np.broadcast_to(part.scales, len(part.weight))


def _stack(experts: Sequence[Sequence[Array]], axis: int = 0) -> Array:
    return np.stack([np.concatenate(parts, axis) for parts in experts])


def _of_all(figures: Experts, named: Named, name: str) -> list[Weight]:
    own = [named(f"{figures.each}.{number}.{name}").weight for number in range(figures.count)]
    if not figures.shared:
        return own
    whole, size = named(f"{figures.shared_one}.{name}").weight, figures.intermediate
    parts = [slice(number * size, number * size + size) for number in range(figures.shared)]
    return own + [_inputs(whole, part) if name == figures.down else _outputs(whole, part) for part in parts]


def _outputs(weight: Weight, part: slice) -> Weight:
    if isinstance(weight, Packed):
        zeros = None if weight.zeros is None else weight.zeros[:, part]
        return Packed(weight.w[part], weight.scales[:, part], zeros, weight.group_size, weight.order)
    if isinstance(weight, Scaled):
        own = weight.scales[_shared(part, BLOCK)] if weight.of_blocks else _by_row(weight)[part]
        return Scaled(weight.weight[part], own)
    return weight[part]


def _inputs(weight: Weight, part: slice) -> Weight:
    if isinstance(weight, Packed):
        if weight.order is not None:
            raise ValueError("shared experts in act-order are not supported")
        size, per_byte = weight.group_size, 2 if weight.w.dtype == np.uint8 else 1
        by_channel = len(weight.scales) == 1
        groups = slice(0, 1) if by_channel else _shared(part, size)
        zeros = None if weight.zeros is None else weight.zeros[groups]
        codes = weight.w[:, _shared(part, per_byte)]
        return Packed(codes, weight.scales[groups], zeros, part.stop - part.start if by_channel else size)
    if isinstance(weight, Scaled):
        own = weight.scales[:, _shared(part, BLOCK)] if weight.of_blocks else weight.scales
        return Scaled(weight.weight[:, part], own)
    return weight[:, part]


def _shared(part: slice, size: int) -> slice:
    """The groups of `size` in a part. Raises `ValueError` unless they fill it."""
    if part.start % size or part.stop % size:
        raise ValueError(
            f"shared experts have groups of {size}, which do not divide the {part.stop - part.start} of each expert"
        )
    return slice(part.start // size, part.stop // size)
