"""Write a checkpoint of random weights: python -m aot_models.random_checkpoint FOLDER

It has everything that `aot_models.generate` needs, in any size; its texts are meaningless.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from aot_models.checkpoints.folder import wanted_tensors
from aot_models.checkpoints.formats import format_of
from aot_models.checkpoints.linear import FLOATS, LinearShape, Wanted
from aot_models.checkpoints.scheme import Scheme
from aot_models.checkpoints.shards import DTYPES as STORED_DTYPES
from aot_models.checkpoints.values import Values
from aot_models.decoders.config import Config
from aot_models.decoders.families import config_from

Array = np.ndarray
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
SHARED = {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": None, "bos_token_id": 0, "eos_token_id": 1,
          "pad_token_id": 1, "torch_dtype": "bfloat16"}  # fmt: skip
SILU = {"hidden_act": "silu", "attention_bias": False}
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "query_pre_attn_scalar": 256,
         "sliding_window": 4096, "rms_norm_eps": 1e-6}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SILU, "mlp_bias": False},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **SILU, "sliding_window": 4096},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
              "use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 21, "rope_theta": 1e6},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **SILU, "use_sliding_window": False,
              "sliding_window": None, "max_window_layers": 28, "rope_theta": 1e6},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **SILU, "sliding_window": None,
                "num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 1e6},
    "qwen2_moe": {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "hidden_act": "silu",
                  "num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "norm_topk_prob": False,
                  "shared_expert_intermediate_size": 256, "decoder_sparse_step": 1, "mlp_only_layers": [],
                  "use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "rope_theta": 1e6},
    "qwen3_moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **SILU, "num_experts": 16,
                  "num_experts_per_tok": 8, "moe_intermediate_size": 64, "norm_topk_prob": True,
                  "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False,
                  "sliding_window": None, "max_window_layers": 48, "rope_theta": 1e6},
    "deepseek_v2": {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", **SILU,
                    "q_lora_rank": None, "kv_lora_rank": 48, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
                    "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64,
                    "n_shared_experts": 2, "first_k_dense_replace": 1, "moe_layer_freq": 1, "topk_method": "greedy",
                    "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": False,
                    "scoring_func": "softmax", "rms_norm_eps": 1e-6, "rope_theta": 1e4},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", **SILU, "sliding_window": 2047,
             "original_max_position_embeddings": 512, "rope_theta": 1e4},
    "gemma2": {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", **GEMMA, "rope_theta": 1e4,
               "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", **GEMMA, "rope_theta": 1e6,
               "rope_local_base_freq": 1e4, "sliding_window_pattern": 6},
}  # fmt: skip
"""The keys of config.json of each family, without the sizes."""
SIZES = {
    "tiny": {"vocab_size": 320, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512,
             "tie_word_embeddings": False},
    "1b": {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
           "tie_word_embeddings": True},
    "8b": {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
           "tie_word_embeddings": False},
}  # fmt: skip
_SYMMETRIC: dict[str, Any] = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
_TOKEN = {**_SYMMETRIC, "strategy": "token", "dynamic": True}


def _compressed(kind: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group},
            "ignore": ["lm_head"]}  # fmt: skip


QUANTISATIONS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
    "gptq8": {"quant_method": "gptq", "bits": 8, "group_size": 128, "desc_act": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8-static": {"quant_method": "fp8", "activation_scheme": "static"},
    "fp8-blocks": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "int8": _compressed("int-quantized", _SYMMETRIC, _TOKEN),
    "int4": _compressed("pack-quantized", {**_SYMMETRIC, "num_bits": 4, "strategy": "group", "group_size": 128}, None),
}
"""Values of quantization_config, by name."""
GPTQ = {"quantization_config": QUANTISATIONS["gptq"]}
CHAT = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
POOL = 1 << 24
"""The most random numbers to draw; larger tensors repeat them."""


def settings(size: str, family: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config.json of a family and size, with some keys changed."""
    return {**SHARED, **SIZES[size], **FAMILIES[family], **changes}


def random_tensors(found: Mapping[str, Any], seed: int = 0, alike: bool = False) -> dict[str, Array]:
    """The tensors of a config's model, scaled so that layers keep the magnitude of their inputs.

    alike: all layers share the tensors of one layer, and all experts those of one expert.
    """
    values = Values(found)
    config, rng = config_from(values), np.random.default_rng(seed)
    linears = config.linears()
    format_ = format_of(values)
    wanted = dict(wanted_tensors(format_, config.tensors(), linears, values.path))
    pool = rng.standard_normal(min(POOL, max(math.prod(one.shapes[0]) for one in wanted.values())), np.float32)
    tensors: dict[str, Array] = {}
    first: dict[str, str] = {}
    for name, one in wanted.items():
        kind = re.sub(r"\d+", "", name) if alike else name
        if kind in first:
            tensors[name] = tensors[first[kind]]
            continue
        first[kind] = name
        shape, (layer, _, end) = one.shapes[0], name.rpartition(".")
        drawn = np.roll(pool, -int(rng.integers(len(pool))))[: math.prod(shape)]
        array = None
        if layer in linears:
            array = _stored(rng, np.resize(drawn, shape), end, one, linears[layer], format_(layer))
        if array is None:
            array = _plain(drawn, shape, config, name)
        elif one.dtypes == FLOATS:
            array = array.astype(DTYPES[config.dtype])
        tensors[name] = array
    return tensors


def _stored(
    rng: np.random.Generator, normal: Array, end: str, wanted: Wanted, layer: LinearShape, scheme: Scheme
) -> Array | None:
    """A tensor of a quantised linear layer; None for tensors that are not quantised.

    normal: normal random numbers of the tensor's shape. end: the tensor's name after the layer's. Weights have a
    magnitude of about inputs ** -0.5 for some thousands of inputs.
    """
    shape, dtype = wanted.shapes[0], wanted.dtypes[0]
    if end == "weight_shape":
        return np.array([layer.outputs, layer.inputs])
    if dtype == "int32":  # bytes up to 254, since GPTQ stores zeros less one
        return rng.integers(0, 255, (*shape, 4), np.uint8).view(np.int32)[..., 0]
    if dtype == "int8":
        return rng.integers(-127, 128, shape, np.int8)
    if dtype == "float8_e4m3fn":
        return (normal * 100).clip(-448, 448).astype(STORED_DTYPES["F8_E4M3"])
    if end in ("scales", "weight_scale", "weight_scale_inv"):
        return np.full(shape, 0.005 if "linear_int4" in scheme.ops else 0.0002, np.float32)
    return np.full(shape, 0.02, np.float32) if end in ("input_scale", "activation_scale") else None


def _plain(drawn: Array, shape: tuple[int, ...], config: Config, name: str) -> Array:
    values = drawn * shape[-1] ** -0.5
    if name.endswith("norm.weight"):
        values = drawn / 10 if config.zero_centred else 1 + drawn / 10
    elif name == config.embeddings:
        values = drawn / config.embedding_scale
    return np.resize(values.astype(DTYPES[config.dtype]), shape)


def write_checkpoint(folder: Path, found: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
    """Write config.json, model.safetensors, tokenizer.json and a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    save_file(
        {name: np.ascontiguousarray(array) for name, array in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    write_tokenizer(folder / "tokenizer.json", found["vocab_size"])
    (folder / "chat_template.jinja").write_text(CHAT, encoding="utf-8")


def write_tokenizer(path: Path, vocabulary: int) -> None:
    """Write a tokenizer whose tokens 0 to 255 are bytes and the others their numbers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(f"<{i}>" for i in range(256, vocabulary))]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write the checkpoint to")
    parser.add_argument("--family", choices=FAMILIES, default="llama", help="(default: %(default)s)")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="(default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--quantisation", choices=QUANTISATIONS, help="quantisation of linear layers (default: none)")
    parser.add_argument("--gptq", action="store_const", const="gptq", dest="quantisation", help="--quantisation gptq")
    options = parser.parse_args()
    stored = {"quantization_config": QUANTISATIONS[options.quantisation]} if options.quantisation else {}
    found = settings(options.size, options.family, torch_dtype=options.dtype, **stored)
    write_checkpoint(options.folder, found, random_tensors(found, options.seed))


if __name__ == "__main__":
    main()
