"""A mixture of experts on a device. Shared experts are experts that every token has, of the size of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from aot_runtime import Bundle, DeviceArray, Stream
from aot_runtime.weights import Packed
from checkpoints.folder import Checkpoint
from checkpoints.linear import Linear, Scaled
from checkpoints.values import CheckpointError
from models.buffers import Buffers
from models.experts import Experts

Array = np.ndarray
Named = Callable[[str], Linear]
"""A linear layer by its name in a decoder layer."""


@dataclass(frozen=True)
class Mixture:
    """The sum of a token's experts, from `normed` to `change`.

    Attributes:
        router: [experts, hidden].
        shared_gate: [shared experts, hidden], the same row for each; None: they have no gate.
        op, weights: that of all experts, and its arguments.
    """

    bundle: Bundle
    figures: Experts
    activation: str
    router: DeviceArray
    shared_gate: DeviceArray | None
    op: str
    weights: dict[str, DeviceArray]

    def __call__(self, b: Buffers, stream: Stream | None) -> None:
        figures, chosen, own = self.figures, self.figures.chosen, b.of_experts
        self.bundle.matmul(b.normed, self.router.T, out=own.scores, stream=stream)
        self.bundle.moe_route(
            own.scores, topk=chosen, renormalise=figures.renormalise, groups=figures.groups,
            topk_groups=figures.topk_groups, scale=figures.scale, weights=own.weights[:, :chosen],
            chosen=own.chosen[:, :chosen], stream=stream,
        )  # fmt: skip
        if self.shared_gate is not None:
            self.bundle.matmul(b.normed, self.shared_gate.T, out=own.shared_scores, stream=stream)
            self.bundle.moe_route(
                own.shared_scores, topk=figures.shared, scoring="sigmoid", renormalise=False,
                weights=own.weights[:, chosen:], chosen=own.shared_order, stream=stream,
            )  # fmt: skip
        getattr(self.bundle, self.op)(
            b.normed, **self.weights, weights=own.weights, chosen=own.chosen, activation=self.activation,
            out=b.change, stream=stream,
        )  # fmt: skip


def place_mixture(
    bundle: Bundle, checkpoint: Checkpoint, figures: Experts, activation: str, prefix: str, named: Named,
    dtype: np.dtype,
) -> Mixture:  # fmt: skip
    """The mixture of a layer, whose tensors' names begin with `prefix`.

    Raises `CheckpointError`: weights that the ops for experts do not take.
    """

    def rows(name: str, count: int) -> DeviceArray:
        weight = checkpoint.tensor(f"{prefix}.{name}.weight").astype(dtype, copy=False)
        return bundle.device.array(np.repeat(weight, count, 0))

    try:
        gates, ups, downs = (_all_of(figures, named, name) for name in (*figures.gate_up, figures.down))
        op, arrays = _together(gates, ups, downs, dtype)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.folder}: experts of {prefix}: {error}") from None
    return Mixture(
        bundle, figures, activation, rows(figures.router, 1),
        rows(figures.shared_gate, figures.shared) if figures.shared and figures.shared_is_gated else None,
        op, {name: bundle.device.array(array) for name, array in arrays.items()},
    )  # fmt: skip


def _all_of(figures: Experts, named: Named, name: str) -> list[Linear]:
    """A linear layer of each expert, those of the shared ones last."""
    own = [named(f"{figures.each}.{number}.{name}") for number in range(figures.count)]
    if not figures.shared:
        return own
    whole, size = named(f"{figures.shared_one}.{name}"), figures.intermediate
    parts = [slice(number * size, number * size + size) for number in range(figures.shared)]
    return own + [_inputs(whole, part) if name == figures.down else _outputs(whole, part) for part in parts]


def _outputs(layer: Linear, part: slice) -> Linear:
    if not isinstance(layer.weight, Packed):
        return Linear(layer.weight[part], None)
    w = layer.weight
    zeros = None if w.zeros is None else w.zeros[:, part]
    return Linear(Packed(w.w[part], w.scales[:, part], zeros, w.group_size, w.order), None)


def _inputs(layer: Linear, part: slice) -> Linear:
    if not isinstance(layer.weight, Packed):
        return Linear(layer.weight[:, part], None)
    w, size = layer.weight, layer.weight.group_size
    if part.start % size or part.stop % size or w.order is not None:
        raise ValueError(
            f"shared ones in act-order, or in groups of {size} inputs that no expert of the others' size has"
        )
    groups, codes = slice(part.start // size, part.stop // size), slice(part.start // 2, part.stop // 2)
    zeros = None if w.zeros is None else w.zeros[groups]
    return Linear(Packed(w.w[:, codes], w.scales[groups], zeros, size), None)


def _together(
    gates: Sequence[Linear], ups: Sequence[Linear], downs: Sequence[Linear], dtype: np.dtype
) -> tuple[str, dict[str, Array]]:
    """The op for all experts, and their weights as it takes them."""
    both = [(gate.weight, up.weight) for gate, up in zip(gates, ups, strict=True)]
    seconds = [down.weight for down in downs]
    every = [*seconds, *(part for pair in both for part in pair)]
    if any(isinstance(weight, Scaled) for weight in every):
        raise ValueError("weights of 8 bits with scales are not supported; supported: 16 bits, 4 bits")
    if not any(isinstance(weight, Packed) for weight in every):
        return "moe", {
            "gate_up": np.stack([np.concatenate(pair) for pair in both]).astype(dtype, copy=False),
            "down": np.stack(seconds).astype(dtype, copy=False),
        }
    return "moe_int4", {
        **_codes("gate_up", list(both), dtype),
        **_codes("down", [(down,) for down in seconds], dtype),
    }  # fmt: skip


def _codes(name: str, experts: Sequence[tuple[Packed | Array, ...]], dtype: np.dtype) -> dict[str, Array]:
    """The arguments of `moe_int4` for a matrix, of which each expert has one or several parts."""
    for part in (part for parts in experts for part in parts):
        if not isinstance(part, Packed) or part.w.dtype != np.uint8 or part.zeros is None or part.order is not None:
            raise ValueError("weights of 4 bits with zeros, not in act-order, are needed of all, or of none")
    made = {
        name: np.stack([np.concatenate([part.w for part in parts]) for parts in experts]),
        f"scales_{name}": np.stack([np.concatenate([part.scales for part in parts], 1) for parts in experts]),
        f"zeros_{name}": np.stack([np.concatenate([part.zeros for part in parts], 1) for parts in experts]),
    }
    return {**made, f"scales_{name}": made[f"scales_{name}"].astype(dtype)}
