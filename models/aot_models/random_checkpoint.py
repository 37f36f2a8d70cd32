"""A checkpoint of random numbers, as models are published: python examples/random_checkpoint.py FOLDER

Its texts mean nothing, but it has all that examples/generate.py needs, in any size.
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
from aot_models.checkpoints.linear import FLOATS
from aot_models.checkpoints.values import Values
from aot_models.decoders.config import Config
from aot_models.decoders.families import config_from
from aot_models.random_formats import QUANTISATIONS, random_stored

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
"""What config.json says of each family, beside the sizes."""
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
GPTQ = {"quantization_config": QUANTISATIONS["gptq"]}
CHAT = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
POOL = 1 << 24
"""Random numbers that are drawn; larger tensors repeat them."""


def settings(size: str, family: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config.json of a family with the figures of a size, and changes of them."""
    return {**SHARED, **SIZES[size], **FAMILIES[family], **changes}


def random_tensors(found: Mapping[str, Any], seed: int = 0, alike: bool = False) -> dict[str, Array]:
    """What a config's model needs, by name. Each layer's results are about as large as its inputs.

    alike: all layers have one layer's tensors, and all experts one expert's, which share their memory.
    """
    values = Values(found)
    config, rng = config_from(values), np.random.default_rng(seed)
    linears = config.linears()
    format_ = format_of(values)
    wanted = dict(wanted_tensors(format_, config.tensors(), linears, values.path))
    pool = rng.standard_normal(min(POOL, max(math.prod(found.shapes[0]) for found in wanted.values())), np.float32)
    tensors: dict[str, Array] = {}
    first: dict[str, str] = {}
    for name, found in wanted.items():
        kind = re.sub(r"\d+", "", name) if alike else name
        if kind in first:
            tensors[name] = tensors[first[kind]]
            continue
        first[kind] = name
        shape, (layer, _, end) = found.shapes[0], name.rpartition(".")
        drawn = np.roll(pool, -int(rng.integers(len(pool))))[: math.prod(shape)]
        array = None
        if layer in linears:
            array = random_stored(rng, np.resize(drawn, shape), end, found, linears[layer], format_(layer))
        if array is None:
            array = _plain(drawn, shape, config, name)
        elif found.dtypes == FLOATS:
            array = array.astype(DTYPES[config.dtype])
        tensors[name] = array
    return tensors


def _plain(drawn: Array, shape: tuple[int, ...], config: Config, name: str) -> Array:
    values = drawn * shape[-1] ** -0.5
    if name.endswith("norm.weight"):
        values = drawn / 10 if config.zero_centred else 1 + drawn / 10
    elif name == config.embeddings:
        values = drawn / config.embedding_scale
    return np.resize(values.astype(DTYPES[config.dtype]), shape)


def write_checkpoint(folder: Path, found: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
    """config.json, model.safetensors, tokenizer.json and a chat template."""
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
    """Tokens 0 to 255 are bytes; the others are their numbers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(f"<{i}>" for i in range(256, vocabulary))]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the checkpoint is written to")
    parser.add_argument("--family", choices=FAMILIES, default="llama", help="(default: %(default)s)")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="(default: %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument("--quantisation", choices=QUANTISATIONS, help="how linear layers are stored (default: plain)")
    parser.add_argument("--gptq", action="store_const", const="gptq", dest="quantisation", help="--quantisation gptq")
    options = parser.parse_args()
    stored = {"quantization_config": QUANTISATIONS[options.quantisation]} if options.quantisation else {}
    found = settings(options.size, options.family, torch_dtype=options.dtype, **stored)
    write_checkpoint(options.folder, found, random_tensors(found, options.seed))


if __name__ == "__main__":
    main()
