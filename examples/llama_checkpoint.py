"""Checkpoints of Llama's family as they are published: config.json and safetensors, dense or of 4 bits (GPTQ, AWQ)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from aot_runtime.weights import PER_WORD, Packed, from_awq, from_gptq

Array = np.ndarray
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
FLOATS = ("float16", "bfloat16", "float32")


class CheckpointError(ValueError):
    """A checkpoint lacks something, or is of another kind."""


@dataclass(frozen=True)
class Quantisation:
    """How linear layers are stored. method: gptq or awq; group_size: inputs that share a scale, -1: all of them.

    zeros_are_less_one, symmetric: of GPTQ, as `from_gptq` takes them.
    """

    method: str
    group_size: int
    zeros_are_less_one: bool
    symmetric: bool

    def groups(self, inputs: int) -> int:
        return 1 if self.group_size == -1 else inputs // self.group_size

    def shapes(self, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        """Of a linear layer's tensors, by the ends of their names."""
        groups = self.groups(inputs)
        packed = (inputs, outputs // PER_WORD) if self.method == "awq" else (inputs // PER_WORD, outputs)
        return {"qweight": packed, "qzeros": (groups, outputs // PER_WORD), "scales": (groups, outputs)}


@dataclass(frozen=True)
class Config:
    """The figures of a model, from its config.json.

    Attributes:
        context: most tokens of a sequence.
        window: how many tokens a token sees, itself among them; None: all before it.
        frequencies: of the rotary embedding, radians for a position, [head_dim / 2].
        dtype: of the checkpoint: float16, bfloat16 or float32.
        end: tokens that end a text.
    """

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    heads_kv: int
    head_dim: int
    eps: float
    context: int
    window: int | None
    frequencies: tuple[float, ...]
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    dtype: str
    end: frozenset[int]
    quantisation: Quantisation | None

    @classmethod
    def read(cls, path: Path) -> Config:
        """Raises `CheckpointError`: no such file, a key that is missing, a model of another kind."""
        return cls.parse(_json(path), path)

    @classmethod
    def parse(cls, found: Mapping[str, Any], path: Path) -> Config:
        values = _Values(found, path)
        (architecture, *_) = found.get("architectures") or [values["model_type"]]
        values.demand(architecture in ARCHITECTURES, f"architecture {architecture}", ARCHITECTURES)
        values.demand(found.get("hidden_act", "silu") == "silu", f"hidden_act {found.get('hidden_act')}", ["silu"])
        dtype = str(found.get("dtype") or found.get("torch_dtype") or "float32")
        values.demand(dtype in FLOATS, f"dtype {dtype}", FLOATS)
        heads = values["num_attention_heads"]
        heads_kv = found.get("num_key_value_heads") or heads
        if heads % heads_kv:
            raise CheckpointError(f"{path}: {heads} heads cannot share {heads_kv} key heads evenly")
        head_dim = found.get("head_dim") or values["hidden_size"] // heads
        end = found.get("eos_token_id")
        config = cls(
            vocabulary=values["vocab_size"],
            hidden=values["hidden_size"],
            intermediate=values["intermediate_size"],
            layers=values["num_hidden_layers"],
            heads=heads,
            heads_kv=heads_kv,
            head_dim=head_dim,
            eps=values["rms_norm_eps"],
            context=values["max_position_embeddings"],
            window=found.get("sliding_window") if architecture == "MistralForCausalLM" else None,
            frequencies=_frequencies(values, head_dim),
            tied=bool(found.get("tie_word_embeddings", False)),
            attention_bias=bool(found.get("attention_bias", False)),
            mlp_bias=bool(found.get("mlp_bias", False)),
            dtype=dtype,
            end=frozenset(() if end is None else end if isinstance(end, list) else [end]),
            quantisation=_quantisation(values),
        )
        config._check_groups(path)
        return config

    def _check_groups(self, path: Path) -> None:
        size = self.quantisation.group_size if self.quantisation else -1
        for name, (_, inputs, _) in self.linears().items():
            if size != -1 and (size < 1 or inputs % size):
                raise CheckpointError(f"{path}: groups of {size} do not divide the {inputs} inputs of {name}")

    def linears(self) -> dict[str, tuple[int, int, bool]]:
        """(outputs, inputs, whether it has a bias) of each linear layer of a decoder layer."""
        queries, keys = self.heads * self.head_dim, self.heads_kv * self.head_dim
        attention, mlp = self.attention_bias, self.mlp_bias
        return {
            "self_attn.q_proj": (queries, self.hidden, attention),
            "self_attn.k_proj": (keys, self.hidden, attention),
            "self_attn.v_proj": (keys, self.hidden, attention),
            "self_attn.o_proj": (self.hidden, queries, attention),
            "mlp.gate_proj": (self.intermediate, self.hidden, mlp),
            "mlp.up_proj": (self.intermediate, self.hidden, mlp),
            "mlp.down_proj": (self.hidden, self.intermediate, mlp),
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor that the model needs, by name."""
        return dict(self._shapes())

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            for norm in ("input_layernorm", "post_attention_layernorm"):
                yield f"{prefix}.{norm}.weight", (self.hidden,)
            for name, (outputs, inputs, biased) in self.linears().items():
                packed = self.quantisation and self.quantisation.shapes(outputs, inputs)
                for end, shape in (packed or {"weight": (outputs, inputs)}).items():
                    yield f"{prefix}.{name}.{end}", shape
                if biased:
                    yield f"{prefix}.{name}.bias", (outputs,)
        yield "model.norm.weight", (self.hidden,)
        if not self.tied:
            yield "lm_head.weight", (self.vocabulary, self.hidden)


@dataclass(frozen=True)
class Linear:
    """A linear layer's weights: an array [outputs, inputs], or those of 4 bits; bias: [outputs]."""

    weight: Array | Packed
    bias: Array | None


class Checkpoint:
    """A folder of a published checkpoint. Tensors are read when they are asked for.

    Raises `CheckpointError`: a file or tensor that is not there, or of another shape than config.json asks for; all
    tensors that are at fault are named.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.config = Config.read(folder / "config.json")
        self._files = {name: path for path in _weight_files(folder) for name in _names(path)}
        self._shapes = self.config.shapes()
        faults = [fault for name, shape in self._shapes.items() if (fault := self._fault(name, shape))]
        if faults:
            raise CheckpointError(f"{folder}: " + "; ".join(faults))

    def tensor(self, name: str) -> Array:
        with safe_open(self._files[name], "np") as file:
            return file.get_tensor(name)

    def linear(self, name: str) -> Linear:
        """The linear layer whose tensors are called `name`.weight and so on."""
        bias = self.tensor(f"{name}.bias") if f"{name}.bias" in self._shapes else None
        return Linear(self._weight(name), bias)

    def _weight(self, name: str) -> Array | Packed:
        quantisation = self.config.quantisation
        if quantisation is None or f"{name}.qweight" not in self._files:
            return self.tensor(f"{name}.weight")
        codes, zeros, scales = (self.tensor(f"{name}.{end}") for end in ("qweight", "qzeros", "scales"))
        try:
            if quantisation.method == "awq":
                return from_awq(codes, zeros, scales)
            order = self.tensor(f"{name}.g_idx") if f"{name}.g_idx" in self._files else None
            return from_gptq(codes, zeros, scales, order, quantisation.zeros_are_less_one, quantisation.symmetric)
        except ValueError as error:
            raise CheckpointError(f"{self.folder}: {name}: {error}") from None

    def _fault(self, name: str, shape: tuple[int, ...]) -> str:
        if name not in self._files:
            return f"there is no tensor '{name}'"
        with safe_open(self._files[name], "np") as file:
            found = tuple(file.get_slice(name).get_shape())
        return "" if found == shape else f"tensor '{name}' is {list(found)}, and should be {list(shape)}"


class _Values:
    """The keys of a config.json, which have to be there."""

    def __init__(self, found: Mapping[str, Any], path: Path):
        self.found, self.path = found, path

    def __getitem__(self, key: str) -> Any:
        if self.found.get(key) is None:
            raise CheckpointError(f"{self.path}: there is no '{key}'")
        return self.found[key]

    def demand(self, holds: bool, given: str, known: Any) -> None:
        if not holds:
            raise CheckpointError(f"{self.path}: {given} is not supported; supported: {', '.join(known)}")


def _frequencies(values: _Values, head_dim: int) -> tuple[float, ...]:
    """Of the rotary embedding: plain, or stretched for longer contexts (`linear`, `llama3`)."""
    found = values.found
    rope = _Values(found.get("rope_parameters") or found.get("rope_scaling") or {}, values.path)
    kind = rope.found.get("rope_type") or rope.found.get("type") or "default"
    values.demand(kind in ("default", "linear", "llama3"), f"rope_type {kind}", ("default", "linear", "llama3"))
    theta = rope.found.get("rope_theta") or found.get("rope_theta") or 10000.0
    plain = float(theta) ** (-np.arange(0, head_dim, 2) / head_dim)
    if kind == "default":
        return tuple(plain.tolist())
    slow = plain / rope["factor"]
    if kind == "linear":
        return tuple(slow.tolist())
    # Fast ones stay, slow ones are stretched, and those between are mixed, by their turns in the original context.
    turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    share = np.clip((turns - low) / (high - low), 0, 1)
    return tuple((share * plain + (1 - share) * slow).tolist())


def _quantisation(values: _Values) -> Quantisation | None:
    found = values.found.get("quantization_config")
    if not found:
        return None
    stored = _Values(found, values.path)
    method, bits = stored["quant_method"], stored["bits"]
    values.demand(method in ("gptq", "awq"), f"quantisation {method}", ("gptq", "awq"))
    values.demand(bits == 4, f"a weight of {bits} bits", ["4 bits"])
    layout = found.get("version", "gemm").lower() if method == "awq" else "gemm"
    values.demand(layout == "gemm", f"AWQ's layout {layout}", ["gemm"])
    version = found.get("checkpoint_format", "gptq")
    values.demand(version in ("gptq", "gptq_v2", "gemm"), f"checkpoint_format {version}", ("gptq", "gptq_v2"))
    return Quantisation(method, stored["group_size"], version != "gptq_v2", bool(found.get("sym", False)))


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path}: no JSON: {error}") from None


def _weight_files(folder: Path) -> list[Path]:
    """Those that the index names, or without an index all there are."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [folder / name for name in sorted(set(_json(index)["weight_map"].values()))]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: there is no .safetensors file")
    return files


def _names(path: Path) -> list[str]:
    try:
        with safe_open(path, "np") as file:
            return list(file.keys())
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: {error}") from None
