"""The configuration of a mixture of experts, and the names of its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aot_models.checkpoints.linear import LinearShape


@dataclass(frozen=True)
class Experts:
    """A mixture of experts.

    Attributes:
        count: number of routed experts; chosen: number of them for each token.
        intermediate: hidden size of each expert.
        shared: number of experts of that size that all tokens use; checkpoints store them as one.
        shared_is_gated: shared experts are weighted by a sigmoid gate instead of 1.
        renormalise, groups, topk_groups, scale: arguments of the op `moe_route`.
        dense: layers with a dense MLP instead of experts.
        router, each, shared_one, shared_gate: names in a layer; an expert's number is appended to `each`.
        gate_up, down: names in an expert.
    """

    count: int
    chosen: int
    intermediate: int
    shared: int = 0
    shared_is_gated: bool = False
    renormalise: bool = True
    groups: int = 1
    topk_groups: int = 1
    scale: float = 1.0
    dense: frozenset[int] = frozenset()
    router: str = "mlp.gate"
    each: str = "mlp.experts"
    shared_one: str = "mlp.shared_experts"
    shared_gate: str = "mlp.shared_expert_gate"
    gate_up: tuple[str, str] = ("gate_proj", "up_proj")
    down: str = "down_proj"

    def linears(self, hidden: int) -> Iterator[tuple[str, LinearShape]]:
        """The shape of every linear layer of the experts, by its name in a decoder layer."""
        for number in range(self.count):
            yield from self._linears(f"{self.each}.{number}", hidden, self.intermediate)
        if self.shared:
            yield from self._linears(self.shared_one, hidden, self.shared * self.intermediate)

    def tensors(self, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The shape of every other tensor."""
        yield f"{self.router}.weight", (self.count, hidden)
        if self.shared and self.shared_is_gated:
            yield f"{self.shared_gate}.weight", (1, hidden)

    def _linears(self, prefix: str, hidden: int, intermediate: int) -> Iterator[tuple[str, LinearShape]]:
        yield from ((f"{prefix}.{name}", LinearShape(intermediate, hidden)) for name in self.gate_up)
        yield f"{prefix}.{self.down}", LinearShape(hidden, intermediate)
