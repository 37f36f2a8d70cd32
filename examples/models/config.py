"""The figures of a model: what a family's file makes of a config.json, and all that a decoder knows of its family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from checkpoints.linear import LinearShape

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Rope:
    """A rotary embedding of the first 2 * len(frequencies) elements of a head.

    Attributes:
        frequencies: radians for a position.
    """

    frequencies: tuple[float, ...]


@dataclass(frozen=True)
class Attention:
    """How a layer attends.

    Attributes:
        window: how many tokens a token sees, itself among them; None: all before it.
    """

    rope: Rope
    window: int | None = None


@dataclass(frozen=True)
class Names:
    """Of a decoder layer's tensors, without the layer's prefix. Linear layers of one input are a tuple."""

    attention_norm: str = "input_layernorm"
    queries_keys_values: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    attention_out: str = "self_attn.o_proj"
    mlp_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"


@dataclass(frozen=True)
class Biases:
    """Which linear layers have a bias."""

    queries_keys_values: bool = False
    attention_out: bool = False
    mlp: bool = False


@dataclass(frozen=True)
class Config:
    """The figures of a model.

    Attributes:
        context: most tokens of a sequence; rotary embeddings are those for it.
        attention: of each layer.
        tied: whether the last layer's weights are the table of embeddings.
        dtype: of the checkpoint: float16, bfloat16 or float32.
        end: tokens that end a text.
    """

    vocabulary: int
    hidden: int
    intermediate: int
    heads: int
    heads_kv: int
    head_dim: int
    eps: float
    context: int
    attention: tuple[Attention, ...]
    tied: bool
    dtype: str
    end: frozenset[int]
    biases: Biases = Biases()
    names: Names = Names()

    @property
    def layers(self) -> int:
        return len(self.attention)

    def prefix(self, layer: int) -> str:
        return f"model.layers.{layer}"

    def linears(self) -> dict[str, LinearShape]:
        """The shape of every linear layer, by name."""
        inside = {
            f"{self.prefix(layer)}.{name}": shape for layer in range(self.layers) for name, shape in self._linears()
        }
        return inside if self.tied else {**inside, "lm_head": LinearShape(self.vocabulary, self.hidden)}

    def tensors(self) -> Shapes:
        """The shape of every other tensor, by name."""
        norms = (
            f"{self.prefix(layer)}.{name}.weight"
            for layer in range(self.layers)
            for name in (self.names.attention_norm, self.names.mlp_norm)
        )
        return {
            "model.embed_tokens.weight": (self.vocabulary, self.hidden),
            **dict.fromkeys(norms, (self.hidden,)),
            "model.norm.weight": (self.hidden,),
        }

    def _linears(self) -> Iterator[tuple[str, LinearShape]]:
        names, biases = self.names, self.biases
        queries, keys = self.heads * self.head_dim, self.heads_kv * self.head_dim
        yield from _split(names.queries_keys_values, (queries, keys, keys), self.hidden, biases.queries_keys_values)
        yield names.attention_out, LinearShape(self.hidden, queries, biases.attention_out)
        yield from _split(names.gate_up, (self.intermediate,) * 2, self.hidden, biases.mlp)
        yield names.down, LinearShape(self.hidden, self.intermediate, biases.mlp)


def _split(
    names: tuple[str, ...], outputs: tuple[int, ...], inputs: int, biased: bool
) -> Iterator[tuple[str, LinearShape]]:
    """One layer for each part of the outputs, or one for all of them."""
    parts = outputs if len(names) > 1 else (sum(outputs),)
    yield from ((name, LinearShape(part, inputs, biased)) for name, part in zip(names, parts, strict=True))
