"""The figures of multi-head latent attention, and the names of its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aot_models.checkpoints.linear import LinearShape


@dataclass(frozen=True)
class Latent:
    """Attention to latent vectors, of which the keys and values of all heads are products, and to a rotated part of the
    keys, which all heads share. The cache has both of a token, as one key of one head.

    Attributes:
        rank: of the latent vectors; plain, rotated: elements of a head's queries and keys; values: of its values.
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
        """Elements that the cache has of a token."""
        return self.rank + self.rotated

    def linears(self, hidden: int, heads: int, biased: bool) -> Iterator[tuple[str, LinearShape]]:
        """The shape of every linear layer but the last, by its name in a decoder layer."""
        yield self.queries, LinearShape(heads * (self.plain + self.rotated), hidden)
        yield self.down, LinearShape(self.row, hidden, biased)
        yield self.up, LinearShape(heads * (self.plain + self.values), self.rank)
