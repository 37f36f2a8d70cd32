"""The interface of a weight format: a scheme for each linear layer, `Plain` for the layers that are not quantised."""

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
"""Group sizes are multiples of this."""
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
"""Keys about how weights were quantised. They change nothing: the stored tensors say all that matters."""


class Scheme(Protocol):
    """Storage of the weights of a linear layer. Tensors are named by what follows the layer's name.

    Attributes:
        ops: the bundle's ops that the layer needs.
        float8: the weights are float8.
    """

    @property
    def ops(self) -> tuple[str, ...]: ...

    @property
    def float8(self) -> bool: ...

    def wanted(self, shape: LinearShape, ends: Collection[str]) -> dict[str, Wanted]:
        """The tensors that the layer requires, without its bias. ends: the optional ones that the checkpoint has.

        Raises:
            ValueError: a layer of this shape cannot be stored in this scheme.
        """

    def weight(self, tensors: Tensors) -> Weight:
        """Convert stored tensors. Raises `ValueError` if their content does not fit the scheme."""


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
    """Return the number of groups of inputs; a size of -1 is one group. Raises `ValueError` for unsupported sizes."""
    if size == -1 or size == inputs:
        return 1
    if size < 1 or size % GROUP:
        raise ValueError(f"groups of {size} are not supported; multiples of {GROUP} and -1 are")
    if inputs % size:
        raise ValueError(f"groups of {size} do not divide the {inputs} inputs")
    return inputs // size


def check_words(extent: int, per_word: int, what: str) -> int:
    """The number of int32 words for packed codes. Raises `ValueError` if the last word would not be full."""
    if extent % per_word:
        raise ValueError(f"{extent} {what}; a multiple of {per_word} is packed in words")
    return extent // per_word
