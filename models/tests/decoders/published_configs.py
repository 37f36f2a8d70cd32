"""config.json of published models, as far as their keys go."""

from __future__ import annotations

from typing import Any

WRITTEN = {
    "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02, "use_cache": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.0", "attention_dropout": 0.0, "tie_word_embeddings": False,
}  # fmt: skip
SIZES = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "vocab_size": 32000, "hidden_act": "silu"}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "Llama 3.1": {
        **WRITTEN, **SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
        "eos_token_id": [128001, 128008, 128009], "max_position_embeddings": 131072, "mlp_bias": False,
        "pretraining_tp": 1, "rope_theta": 500000.0, "rope_scaling": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            "rope_type": "llama3"},
    },
    "Llama 2, a chat": {
        **WRITTEN, **SIZES, "_name_or_path": "x", "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "max_position_embeddings": 4096, "pad_token_id": 0, "pretraining_tp": 1, "rope_scaling": None,
        "max_length": 4096, "temperature": 0.9, "top_p": 0.6, "max_sequence_length": 2048, "unsloth_version": "2024.9",
    },
    "Mistral 7B": {
        **WRITTEN, **SIZES, "architectures": ["MistralForCausalLM"], "model_type": "mistral",
        "max_position_embeddings": 32768, "rope_theta": 10000.0, "sliding_window": 4096,
    },
    "Mixtral 8x7B": {
        **WRITTEN, **SIZES, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
        "max_position_embeddings": 32768, "num_experts_per_tok": 2, "num_local_experts": 8,
        "output_router_logits": False, "router_aux_loss_coef": 0.02, "rope_theta": 1e6, "sliding_window": None,
    },
    "Qwen2.5 distilled": {
        **WRITTEN, **SIZES, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_mrope": False,
        "max_position_embeddings": 131072, "max_window_layers": 21, "rope_theta": 10000, "sliding_window": 4096,
        "use_sliding_window": False,
    },
    "Qwen1.5-MoE": {
        **WRITTEN, **SIZES, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe",
        "decoder_sparse_step": 1, "max_position_embeddings": 8192, "max_window_layers": 21,
        "moe_intermediate_size": 1408, "norm_topk_prob": False, "num_experts": 60, "num_experts_per_tok": 4,
        "output_router_logits": False, "rope_theta": 1e6, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "use_sliding_window": False,
    },
    "Qwen3": {
        **WRITTEN, **SIZES, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
        "head_dim": 128, "max_position_embeddings": 40960, "max_window_layers": 36, "rope_scaling": None,
        "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False,
    },
    "Qwen3-MoE, written by a newer version": {
        **{key: value for key, value in {**WRITTEN, **SIZES}.items() if key != "torch_dtype"}, "dtype": "bfloat16",
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False,
        "decoder_sparse_step": 1, "head_dim": 128, "max_position_embeddings": 40960, "mlp_only_layers": [],
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_experts_per_tok": 8, "num_local_experts": 128,
        "output_router_logits": False, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
        "router_aux_loss_coef": 0.001, "sliding_window": None, "use_sliding_window": False,
    },
    "DeepSeek-V2-Lite": {
        **WRITTEN, **SIZES, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
        "auto_map": {"AutoConfig": "x"}, "attention_bias": False, "aux_loss_alpha": 0.001, "ep_size": 1,
        "first_k_dense_replace": 1, "kv_lora_rank": 512, "max_position_embeddings": 163840,
        "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64,
        "n_shared_experts": 2, "norm_topk_prob": False, "num_experts_per_tok": 6, "num_key_value_heads": 32,
        "pretraining_tp": 1, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
        "seq_aux": True, "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128, "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096, "type": "yarn"},
    },
    "Phi-4-mini": {
        **WRITTEN, **SIZES, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "attention_bias": False,
        "embd_pdrop": 0.0, "full_attn_mod": 1, "hidden_size": 3072, "interpolate_factor": 1, "lm_head_bias": False,
        "max_position_embeddings": 131072, "mlp_bias": False, "num_attention_heads": 24,
        "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75, "resid_pdrop": 0.0,
        "rope_theta": 10000.0, "sliding_window": 262144, "rope_scaling": {
            "long_factor": [1.5] * 48, "short_factor": [1.0] * 48, "type": "longrope"},
    },
    "Gemma 2": {
        **WRITTEN, **SIZES, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "attention_bias": False,
        "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid", "final_logit_softcapping": 30.0,
        "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192, "query_pre_attn_scalar": 256, "rope_theta": 10000.0, "sliding_window": 4096,
        "sliding_window_size": 4096, "tie_word_embeddings": True,
    },
    "Gemma 3, its text": {
        **WRITTEN, **{key: value for key, value in SIZES.items() if key != "hidden_act"},
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "_sliding_window_pattern": 6,
        "attention_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 32768, "query_pre_attn_scalar": 256,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5 + ["sliding_attention"] * 2,
        "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1e6, "sliding_window": 512,
        "use_bidirectional_attention": False, "tie_word_embeddings": True,
    },
    "Gemma 3, with images": {
        "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
        "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
        "model_type": "gemma3", "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
        "vision_config": {"hidden_size": 1152}, "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
    },
}  # fmt: skip
"""The configs by a name for tests."""
