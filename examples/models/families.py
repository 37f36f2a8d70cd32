"""The families that there are, by the architecture that config.json names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from checkpoints.adapters import Adapter
from checkpoints.folder import Checkpoint
from checkpoints.values import Values
from models.config import Config
from models.deepseek_v2 import deepseek_v2
from models.gemma2 import gemma2
from models.gemma3 import gemma3, gemma3_with_images
from models.llama import llama
from models.mistral import mistral
from models.mixtral import mixtral
from models.phi3 import phi3
from models.qwen2 import qwen2
from models.qwen3 import qwen3
from models.qwen_moe import qwen2_moe, qwen3_moe

FAMILIES: dict[str, Callable[[Values, int | None], Config]] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
    "MixtralForCausalLM": mixtral,
    "Qwen2MoeForCausalLM": qwen2_moe,
    "Qwen3MoeForCausalLM": qwen3_moe,
    "DeepseekV2ForCausalLM": deepseek_v2,
    "Phi3ForCausalLM": phi3,
    "Gemma2ForCausalLM": gemma2,
    "Gemma3ForCausalLM": gemma3,
    "Gemma3ForConditionalGeneration": gemma3_with_images,
}


def config_from(values: Values, context: int | None = None) -> Config:
    """The figures of a model, for sequences of so many tokens at most; None: of as many as the model takes.

    Raises `CheckpointError`: a family that is not supported, a key that is missing, a value that the family has not.
    """
    (architecture, *_) = values.get("architectures") or [values["model_type"]]
    values.demand(architecture in FAMILIES, f"architecture {architecture}", FAMILIES)
    return FAMILIES[architecture](values, context)


def adapters_of(folders: Mapping[str, Path], config: Config) -> dict[str, Adapter]:
    """Adapters of a model by name. The last layer, experts, and what latent attention absorbs may have none.

    Raises `CheckpointError`: files that are missing or broken, an adapter of a kind that is not supported, or for other
    layers than the model's.
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
    """The same of a checkpoint, which has to have all tensors of its model.

    Raises `CheckpointError`, too: tensors that are missing or of another shape.
    """
    config = config_from(checkpoint.values, context)
    checkpoint.check(config.tensors(), config.linears())
    return config
