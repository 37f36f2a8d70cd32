"""What a format of weights is made of: a scheme for each linear layer, and the rule that leaves layers out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from aot_models.checkpoints.keys import MOST, Table, harmless, whole
from aot_models.checkpoints.linear import LinearShape, Wanted, Weight

Array = np.ndarray
Tensors = Mapping[str, Array]
GROUP = 32
"""Divides the inputs that share a scale, where not all do."""
GROUP_SIZE = whole(-1, MOST)
TRAINING: Table = harmless(
    """
    quant_method desc_act zero_point true_sequential static_groups damp_percent damp_auto_increment mse act_group_aware
    model_name_or_path model_file_base_name meta quantizer dataset batch_size tokenizer pad_token_id model_seqlen
    block_name_to_quantize module_name_preceding_first_block cache_block_outputs use_cuda_fp16 max_input_length
    use_exllama disable_exllama exllama_config backend is_marlin_format do_fuse fuse_max_seq_len modules_to_fuse
    autoround_version amp data_type act_bits act_data_type act_dynamic act_group_size act_sym enable_minmax_tuning
    enable_norm_bias_tuning enable_quanted_input gradient_accumulate_steps iters low_gpu_mem_usage lr minmax_lr
    nsamples quant_block_list scale_dtype seqlen super_bits super_group_size to_quant_block_names
    """
)
"""Keys of how weights were quantised, which their tensors tell all of that matters."""


class Scheme(Protocol):
    """How the weights of a linear layer are stored. Tensors go by the ends of their names, behind the layer's.

    Attributes:
        ops: those of a bundle that the layer needs.
        float8: whether weights are float8.
    """

    @property
    def ops(self) -> tuple[str, ...]: ...

    @property
    def float8(self) -> bool: ...

    def wanted(self, shape: LinearShape, ends: Collection[str]) -> dict[str, Wanted]:
        """The tensors that the layer has to have, but for its bias. ends: those that it has.

        Raises `ValueError`: a layer of this shape cannot be stored so.
        """

    def weight(self, tensors: Tensors) -> Weight:
        """Raises `ValueError`: the tensors' content is not what the scheme says."""


Format = Callable[[str], Scheme]
"""From a linear layer's name to its scheme."""


@dataclass(frozen=True)
class Plain:
    """Weights in the checkpoint's dtype."""

    ops: tuple[str, ...] = ("matmul",)
    float8: bool = False

    def wanted(self, shape: LinearShape, ends: Collection[str]) -> dict[str, Wanted]:
        return {"weight": Wanted(((shape.outputs, shape.inputs),))}

    def weight(self, tensors: Tensors) -> Weight:
        return tensors["weight"]


def check_groups(size: int, inputs: int) -> int:
    """How many groups of inputs share a scale; size -1: one. Raises `ValueError`: groups that cannot be."""
    if size == -1 or size == inputs:
        return 1
    if size < 1 or size % GROUP:
        raise ValueError(f"groups of {size} are not supported; multiples of {GROUP} and -1 are")
    if inputs % size:
        raise ValueError(f"groups of {size} do not divide the {inputs} inputs")
    return inputs // size


def check_words(extent: int, per_word: int, what: str) -> int:
    """The words of int32 that codes are packed in. Raises `ValueError`: a last word that would not be full."""
    if extent % per_word:
        raise ValueError(f"{extent} {what}; a multiple of {per_word} is packed in words")
    return extent // per_word
