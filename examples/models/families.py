"""The families that there are, by the architecture that config.json names."""

from __future__ import annotations

from collections.abc import Callable

from checkpoints.folder import Checkpoint
from checkpoints.values import Values
from models.config import Config
from models.llama import llama
from models.mistral import mistral

FAMILIES: dict[str, Callable[[Values, int | None], Config]] = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
}


def config_from(values: Values, context: int | None = None) -> Config:
    """The figures of a model, for sequences of so many tokens at most; None: of as many as the model takes.

    Raises `CheckpointError`: a family that is not supported, a key that is missing, a value that the family has not.
    """
    (architecture, *_) = values.get("architectures") or [values["model_type"]]
    values.demand(architecture in FAMILIES, f"architecture {architecture}", FAMILIES)
    return FAMILIES[architecture](values, context)


def config_of(checkpoint: Checkpoint, context: int | None = None) -> Config:
    """The same of a checkpoint, which has to have all tensors of its model.

    Raises `CheckpointError`, too: tensors that are missing or of another shape.
    """
    config = config_from(checkpoint.values, context)
    checkpoint.check(config.tensors(), config.linears())
    return config
