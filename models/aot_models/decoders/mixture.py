"""A mixture of experts on a device. Shared experts are added to those that each token is routed to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from aot_models.checkpoints.folder import Checkpoint
from aot_models.checkpoints.values import CheckpointError
from aot_models.decoders.buffers import Buffers
from aot_models.decoders.expert_weights import Named, together
from aot_models.decoders.experts import Experts
from aot_models.decoders.linears import hardware_float8
from aot_runtime import Bundle, DeviceArray, Stream


@dataclass(frozen=True)
class Mixture:
    """The sum of a token's experts, from `normed` to `change`.

    Attributes:
        router: [experts, hidden].
        shared_gate: [shared experts, hidden], the same row for each; None: shared experts have no gate.
        op, weights: the op for all experts, and its arguments.
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
    """Upload the mixture of the layer with this prefix.

    Raises:
        CheckpointError: no op takes these weights.
    """

    def rows(name: str, count: int) -> DeviceArray:
        weight = checkpoint.tensor(f"{prefix}.{name}.weight").astype(dtype, copy=False)
        return bundle.device.array(np.repeat(weight, count, 0))

    try:
        op, arrays = together(figures, named, dtype, hardware_float8(bundle))
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.folder}: experts of {prefix}: {error}") from None
    return Mixture(
        bundle, figures, activation, rows(figures.router, 1),
        rows(figures.shared_gate, figures.shared) if figures.shared and figures.shared_is_gated else None,
        op, {name: bundle.device.array(array) for name, array in arrays.items()},
    )  # fmt: skip
