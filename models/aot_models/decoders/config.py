"""The figures of a model: what a family's file makes of a config.json, and all that a decoder knows of its family."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aot_models.checkpoints.linear import LinearShape
from aot_models.decoders.experts import Experts
from aot_models.decoders.latent import Latent

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Rope:
    """A rotary embedding of the first 2 * len(frequencies) elements of a head.

    Attributes:
        frequencies: radians for a position.
        scale: factor of the cosines and sines.
    """

    frequencies: tuple[float, ...]
    scale: float = 1.0


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
    """Of a decoder layer's tensors, without the layer's prefix; None: the family's layers have no such tensor.

    Attributes:
        queries_keys_values, gate_up: the linear layers of one input, one by one or stored as one.
        query_norm, key_norm: of each head, before the rotation.
        attention_out_norm, mlp_out_norm: of what is added to the residual sum.
    """

    attention_norm: str = "input_layernorm"
    queries_keys_values: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    query_norm: str | None = None
    key_norm: str | None = None
    attention_out: str = "self_attn.o_proj"
    attention_out_norm: str | None = None
    mlp_norm: str = "post_attention_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    mlp_out_norm: str | None = None


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
        activation: of the gate: silu or gelu_tanh.
        zero_centred: whether a norm's factor is 1 + its weight.
        embedding_scale: factor of the table's rows.
        attention_scale: factor of the products of queries and keys; None: head_dim ** -0.5.
        attention_softcap, logits_softcap: bounds c of scores and logits x, which become c * tanh(x / c); 0: none.
        latent: attention of all layers, in place of that to keys and values; heads_kv, head_dim: those of the cache.
        experts: in place of layers' gated ones; intermediate is then that of those that have one.
        root: what the names of all tensors but the last layer's begin with.
        head: the name of the last layer.
        unread: beginnings of the names of tensors that a checkpoint has for something else: images.
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
    activation: str = "silu"
    zero_centred: bool = False
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    attention_softcap: float = 0.0
    logits_softcap: float = 0.0
    biases: Biases = Biases()
    names: Names = Names()
    latent: Latent | None = None
    experts: Experts | None = None
    root: str = "model"
    head: str = "lm_head"
    unread: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        return len(self.attention)

    @property
    def score_scale(self) -> float:
        """Factor of the products of queries and keys."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def embeddings(self) -> str:
        """The name of the table's tensor."""
        return f"{self.root}.embed_tokens.weight"

    def prefix(self, layer: int) -> str:
        """What the names of a layer's tensors begin with."""
        return f"{self.root}.layers.{layer}"

    def linears(self) -> dict[str, LinearShape]:
        """The shape of every linear layer, by name."""
        inside = {
            f"{self.prefix(layer)}.{name}": shape
            for layer in range(self.layers)
            for name, shape in self._linears(self.experts_of(layer))
        }
        return inside if self.tied else {**inside, self.head: LinearShape(self.vocabulary, self.hidden)}

    def tensors(self) -> Shapes:
        """The shape of every other tensor, by name."""
        inside = {
            f"{self.prefix(layer)}.{name}": shape
            for layer in range(self.layers)
            for name, shape in self._tensors(self.experts_of(layer))
        }
        return {self.embeddings: (self.vocabulary, self.hidden), **inside, f"{self.root}.norm.weight": (self.hidden,)}

    def experts_of(self, layer: int) -> Experts | None:
        """None: the layer has one gated layer."""
        return None if self.experts is None or layer in self.experts.dense else self.experts

    def _linears(self, experts: Experts | None) -> Iterator[tuple[str, LinearShape]]:
        names, biases = self.names, self.biases
        queries, keys = self.heads * self.head_dim, self.heads_kv * self.head_dim
        if self.latent:
            yield from self.latent.linears(self.hidden, self.heads, biases.queries_keys_values)
            queries = self.heads * self.latent.values
        else:
            yield from _split(names.queries_keys_values, (queries, keys, keys), self.hidden, biases.queries_keys_values)
        yield names.attention_out, LinearShape(self.hidden, queries, biases.attention_out)
        if experts:
            yield from experts.linears(self.hidden)
            return
        yield from _split(names.gate_up, (self.intermediate,) * 2, self.hidden, biases.mlp)
        yield names.down, LinearShape(self.hidden, self.intermediate, biases.mlp)

    def _tensors(self, experts: Experts | None) -> Iterator[tuple[str, tuple[int, ...]]]:
        names = self.names
        whole = names.attention_norm, names.attention_out_norm, names.mlp_norm, names.mlp_out_norm
        yield from ((f"{name}.weight", (self.hidden,)) for name in whole if name)
        yield from ((f"{name}.weight", (self.head_dim,)) for name in (names.query_norm, names.key_norm) if name)
        if self.latent:
            yield f"{self.latent.norm}.weight", (self.latent.rank,)
        if experts:
            yield from experts.tensors(self.hidden)


def _split(
    names: tuple[str, ...], outputs: tuple[int, ...], inputs: int, biased: bool
) -> Iterator[tuple[str, LinearShape]]:
    parts = outputs if len(names) > 1 else (sum(outputs),)
    yield from ((name, LinearShape(part, inputs, biased)) for name, part in zip(names, parts, strict=True))
