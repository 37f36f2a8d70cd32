"""The configuration of multi-head latent attention, and the names of its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aot_models.checkpoints.linear import LinearShape


@dataclass(frozen=True)
class Latent:
    """Attention in which the keys and values of all heads are products of one latent vector per token.

    A rotated part of the keys is shared by all heads. The cache stores both for a token, as one key of one head.

    Attributes:
        rank: elements of a latent vector.
        plain, rotated: elements of a head's queries and keys without and with rotation.
        values: elements of a head's values.
    """

    rank: int
    plain: int
    rotated: int
    values: int
    queries: str = "self_attn.q_proj"
    down: str = "self_attn.kv_a_proj_with_mqa"
    norm: str = "self_attn.kv_a_layernorm"
    up: str = "self_attn.kv_b_proj"

    @property
    def row(self) -> int:
        """Elements of a token in the cache."""
        return self.rank + self.rotated

    def linears(self, hidden: int, heads: int, biased: bool) -> Iterator[tuple[str, LinearShape]]:
        """The shape of every linear layer but the last, by its name in a decoder layer."""
        yield self.queries, LinearShape(heads * (self.plain + self.rotated), hidden)
        yield self.down, LinearShape(self.row, hidden, biased)
        yield self.up, LinearShape(heads * (self.plain + self.values), self.rank)
