"""The configuration of a model, which the module of its family makes from config.json."""

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
        frequencies: radians per position.
        scale: factor of the cosines and sines.
    """

    frequencies: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True)
class Attention:
    """The attention of a layer.

    Attributes:
        window: number of tokens that a token attends to, itself included; None: all tokens before it.
    """

    rope: Rope
    window: int | None = None


@dataclass(frozen=True)
class Names:
    """Names of a decoder layer's tensors, without the layer's prefix; None if the family has no such tensor.

    Attributes:
        queries_keys_values, gate_up: linear layers of the same input, stored separately or as one.
        query_norm, key_norm: norms of each head, before the rotation.
        attention_out_norm, mlp_out_norm: norms before the residual sum.
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
    """Presence of biases in linear layers."""

    queries_keys_values: bool = False
    attention_out: bool = False
    mlp: bool = False


@dataclass(frozen=True)
class Config:
    """The configuration of a model.

    Attributes:
        context: the longest sequence, in tokens; rotary embeddings are computed for it.
        attention: the attention of each layer.
        tied: the last layer shares its weights with the table of embeddings.
        dtype: the checkpoint's dtype: float16, bfloat16 or float32.
        end: tokens that end a text.
        activation: the activation of the gate: silu or gelu_tanh.
        zero_centred: norms multiply by 1 + weight.
        embedding_scale: factor of embeddings.
        attention_scale: factor of the scores; None: head_dim ** -0.5.
        attention_softcap, logits_softcap: the bound c of scores and logits x, which become c * tanh(x / c); 0: none.
        latent: latent attention in all layers, in place of grouped-query attention. heads_kv and head_dim then
            describe the cache.
        experts: the mixture of experts in place of the MLP; intermediate is then the size of the dense layers.
        root: prefix of all tensors except those of the last layer.
        head: the name of the last layer.
        unread: prefixes of tensors that belong to something else, such as images.
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
        """The factor of the scores."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def embeddings(self) -> str:
        """The name of the table of embeddings."""
        return f"{self.root}.embed_tokens.weight"

    def prefix(self, layer: int) -> str:
        """The prefix of a layer's tensors."""
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
        """The experts of a layer; None if it has a dense MLP."""
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
