"""Tiny models in which every feature of a family matters: windows shorter than prompts, bounds that bind, layers of
each kind."""

from __future__ import annotations

SMALL = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "head_dim": 64, "max_position_embeddings": 512}
GEMMA = {**SMALL, "head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1, "query_pre_attn_scalar": 16,
         "sliding_window": 6, "tie_word_embeddings": True}  # fmt: skip
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0, 1.25] * 8, "long_factor": [1.5, 4.0] * 8}

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

TINY: dict[str, dict[str, object]] = {
    "gemma3": {"family": "gemma3", **GEMMA, "head_dim": 64, "num_hidden_layers": 3, "sliding_window_pattern": 3,
               "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    "qwen2": {"family": "qwen2", **SMALL},
    "qwen2, windows": {"family": "qwen2", **SMALL, "use_sliding_window": True, "sliding_window": 5,
                       "max_window_layers": 1, "tie_word_embeddings": True},
    "qwen3": {"family": "qwen3", **SMALL, "head_dim": 128},
    "phi3": {"family": "phi3", **SMALL, "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2,
             "sliding_window": 9},
    "phi3, long": {"family": "phi3", **SMALL, "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1,
                   "sliding_window": 512, "partial_rotary_factor": 0.5, "rope_scaling": LONGROPE,
                   "tie_word_embeddings": True, "original_max_position_embeddings": 64},
    "gemma2": {"family": "gemma2", **GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
}  # fmt: skip
"""Arguments of `tiny`, by name."""

EXPERTS: dict[str, object] = {**SMALL, "torch_dtype": "float16", "moe_intermediate_size": 32}
"""Mixtures use float16, whose rounding hardly ever changes the choice of experts."""
MIXTURES: dict[str, dict[str, object]] = {
    "mixtral": {"family": "mixtral", **EXPERTS, "num_local_experts": 4, "sliding_window": 9},
    "qwen2_moe": {"family": "qwen2_moe", **EXPERTS, "shared_expert_intermediate_size": 64, "mlp_only_layers": [0]},
    "deepseek_v2": {"family": "deepseek_v2", **EXPERTS, "num_key_value_heads": 4},
    "deepseek_v2, yarn": {
        "family": "deepseek_v2",
        **EXPERTS,
        "num_key_value_heads": 4,
        "routed_scaling_factor": 2.5,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "rope_scaling": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.8},
    },
    "qwen3_moe": {"family": "qwen3_moe", **EXPERTS, "num_experts": 8, "num_experts_per_tok": 3},
}
"""Likewise, with experts."""
