"""The supported families, by the architecture in config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aot_models.checkpoints.adapters import Adapter
from aot_models.checkpoints.folder import Checkpoint
from aot_models.checkpoints.keys import Table, known, refuse_others
from aot_models.checkpoints.values import Values, said
from aot_models.decoders import deepseek_v2, gemma2, gemma3, llama, mistral, mixtral, phi3, qwen2, qwen3, qwen_moe
from aot_models.decoders.config import Config


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        keys: the known keys of config.json; others are refused.
        config: makes the configuration from these keys, for a length of context.
    """

    keys: Table
    config: Callable[[Values, int | None], Config]


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(llama.KEYS, llama.llama),
    "MistralForCausalLM": Family(mistral.KEYS, mistral.mistral),
    "Qwen2ForCausalLM": Family(qwen2.KEYS, qwen2.qwen2),
    "Qwen3ForCausalLM": Family(qwen3.KEYS, qwen3.qwen3),
    "MixtralForCausalLM": Family(mixtral.KEYS, mixtral.mixtral),
    "Qwen2MoeForCausalLM": Family(qwen_moe.QWEN2_KEYS, qwen_moe.qwen2_moe),
    "Qwen3MoeForCausalLM": Family(qwen_moe.QWEN3_KEYS, qwen_moe.qwen3_moe),
    "DeepseekV2ForCausalLM": Family(deepseek_v2.KEYS, deepseek_v2.deepseek_v2),
    "Phi3ForCausalLM": Family(phi3.KEYS, phi3.phi3),
    "Gemma2ForCausalLM": Family(gemma2.KEYS, gemma2.gemma2),
    "Gemma3ForCausalLM": Family(gemma3.KEYS, gemma3.gemma3),
    "Gemma3ForConditionalGeneration": Family(gemma3.WITH_IMAGES, gemma3.gemma3_with_images),
}


def config_from(values: Values, context: int | None = None) -> Config:
    """The configuration of a model, for sequences of at most `context` tokens; None: the model's limit.

    Raises:
        CheckpointError: the family is not supported, or keys are missing, unknown or have unsupported values.
    """
    named = values.get("architectures") or values["model_type"]
    architecture = named[0] if isinstance(named, list) else named
    is_known = isinstance(architecture, str) and architecture in FAMILIES
    values.demand(is_known, f"architecture {said(architecture)}", FAMILIES)
    family = FAMILIES[architecture]
    config = family.config(known(values, family.keys), context)
    refuse_others(values, family.keys)
    return config


def adapters_of(folders: Mapping[str, Path], config: Config) -> dict[str, Adapter]:
    """Read adapters, by name. The last layer, experts and absorbed projections of latent attention cannot have any.

    Raises:
        CheckpointError: files are missing or damaged, or an adapter is not supported or does not fit the model.
    """
    adapters = {name: Adapter(folder) for name, folder in folders.items()}
    without = {config.head} | {
        f"{config.prefix(layer)}.{name}"
        for layer in range(config.layers)
        if (experts := config.experts_of(layer))
        for name, _ in experts.linears(config.hidden)
    }
    without |= {f"{config.prefix(layer)}.{latent.up}" for layer in range(config.layers) if (latent := config.latent)}
    linears = {name: shape for name, shape in config.linears().items() if name not in without}
    for adapter in adapters.values():
        adapter.check(linears)
    return adapters


def config_of(checkpoint: Checkpoint, context: int | None = None) -> Config:
    """The configuration of a checkpoint, whose tensors are compared with it.

    Raises:
        CheckpointError: as `config_from`, or tensors are missing, unread, or of another shape.
    """
    config = config_from(checkpoint.values, context)
    checkpoint.check(config.tensors(), config.linears(), config.unread, {config.head: config.embeddings})
    return config
