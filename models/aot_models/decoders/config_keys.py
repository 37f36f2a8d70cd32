"""The keys of config.json that families share, and the parts of a `Config` that are made from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from aot_models.checkpoints.keys import (
    Table,
    an_object,
    flag,
    harmless,
    listed,
    number,
    one_or_listed,
    only,
    or_null,
    text,
    whole,
)
from aot_models.checkpoints.linear import FLOATS
from aot_models.checkpoints.values import CheckpointError, Values, said
from aot_models.decoders.config import Attention, Rope
from aot_models.decoders.rope import longest_context, rope_of

FULL, SLIDING = KINDS = ("full_attention", "sliding_attention")
MOST_LAYERS = 1024
MOST_EXPERTS = 1 << 16
"""Maximum number of experts, over all layers."""

SIZES: Table = {
    "vocab_size": whole(),
    "hidden_size": whole(),
    "intermediate_size": whole(),
    "num_hidden_layers": whole(most=MOST_LAYERS),
    "num_attention_heads": whole(most=1 << 16),
    "num_key_value_heads": or_null(whole(most=1 << 16)),
    "head_dim": or_null(whole(most=1 << 16)),
    "max_position_embeddings": whole(most=1 << 30),
    "rms_norm_eps": number(0, 1),
}
COMPUTED: Table = {
    "tie_word_embeddings": flag(False),
    **dict.fromkeys(("dtype", "torch_dtype"), replace(or_null(only(*FLOATS)), words="dtype {value}")),
    "eos_token_id": or_null(one_or_listed(whole(-1, 1 << 31), 1024)),
    "quantization_config": or_null(an_object()),
    "compression_config": or_null(an_object()),
    "layer_types": or_null(listed(text(), MOST_LAYERS)),
}
WINDOW = or_null(whole(most=1 << 30))
ROPE: Table = {
    "rope_theta": number(1, 1e15, 1e4),
    "rope_scaling": or_null(an_object()),
    "rope_parameters": or_null(an_object()),
    "partial_rotary_factor": only(1.0, None),
    "original_max_position_embeddings": or_null(whole(most=1 << 30)),
}
FIXED: Table = {
    "is_causal": only(True),
    "sliding_window": only(None),
    "use_sliding_window": only(False),
    "attn_logit_softcapping": only(None),
    "final_logit_softcapping": only(None),
    "use_bidirectional_attention": replace(only(False, None), words="{name}"),
    "is_encoder_decoder": only(False),
    "add_cross_attention": only(False),
    "pruned_heads": only({}, None),
    "use_mrope": only(False),
    "rope_interleaved": only(False),
    "lm_head_bias": only(False),
}
"""Keys that change the computation, restricted to the values that leave it as implemented."""
IGNORED: Table = harmless(
    """
    architectures model_type auto_map _name_or_path name_or_path _commit_hash transformers_version
    transformers.js_config
    _attn_implementation _attn_implementation_autoset attn_implementation _attn_implementation_internal
    _flash_attn_2_enabled use_flash_attn unsloth_fixed unsloth_version keys_to_ignore_at_inference vocab_file
    tokenizer_class bos_token_id pad_token_id unk_token_id sep_token_id cls_token_id decoder_start_token_id prefix
    model_max_length max_sequence_length use_cache cache_implementation pretraining_tp initializer_range
    attention_dropout hidden_dropout resid_pdrop embd_pdrop gradient_checkpointing neftune_noise_alpha
    output_attentions output_hidden_states output_router_logits output_past return_dict return_dict_in_generate
    output_scores torchscript use_bfloat16 tf_legacy_loss tie_encoder_decoder is_decoder cross_attention_hidden_size
    chunk_size_feed_forward finetuning_task task_specific_params problem_type id2label label2id num_labels
    do_sample temperature top_k top_p typical_p min_length max_length max_new_tokens num_beams num_beam_groups
    num_return_sequences diversity_penalty repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids early_stopping forced_bos_token_id forced_eos_token_id
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    """
)
"""Keys that transformers writes for training, generation and other programs."""
COMMON: Table = {**IGNORED, **SIZES, **COMPUTED, **ROPE, **FIXED}
MIXTURE: Table = {
    "num_experts_per_tok": whole(most=1 << 12),
    **harmless("router_aux_loss_coef router_jitter_noise aux_loss_alpha seq_aux ep_size"),
}
"""The keys that families with experts share."""


def of_kind(model_type: str) -> Table:
    """The key by which transformers selects the family."""
    return {"model_type": only(model_type)}


def common(values: Values, context: int | None) -> dict[str, Any]:
    """The arguments of `Config` from the keys that all families have.

    context: the longest sequence, in tokens; None: the model's limit.

    Raises:
        CheckpointError: the number of heads is not a multiple of the key heads.
    """
    heads = values["num_attention_heads"]
    heads_kv = values.get("num_key_value_heads", heads)
    if heads % heads_kv:
        raise CheckpointError(f"{values.path}: {heads} heads cannot share {heads_kv} key heads evenly")
    end = values.get("eos_token_id", [])
    return {
        "vocabulary": values["vocab_size"],
        "hidden": values["hidden_size"],
        "intermediate": values["intermediate_size"],
        "heads": heads,
        "heads_kv": heads_kv,
        "head_dim": head_dim_of(values),
        "eps": values["rms_norm_eps"],
        "context": context_of(values, context),
        "tied": values["tie_word_embeddings"],
        "dtype": dtype_of(values),
        "end": frozenset([end] if isinstance(end, int) else end),
    }


def dtype_of(values: Values) -> str:
    return values.get("dtype") or values.get("torch_dtype") or "float32"


def context_of(values: Values, wanted: int | None) -> int:
    """The longest sequence, in tokens: the wanted length, but at most the model's limit."""
    longest = longest_context(values)
    return min(wanted or longest, longest)


def head_dim_of(values: Values) -> int:
    return values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]


def alike(values: Values, context: int | None, window: int | None = None) -> tuple[Attention, ...]:
    """The attention of layers that are all of the same kind.

    Raises:
        CheckpointError: layer_types contradict it.
    """
    return (Attention(rope_of_all(values, context), window),) * layers_of(values, FULL if window is None else SLIDING)


def layers_of(values: Values, kind: str) -> int:
    """The number of layers. Raises `CheckpointError` unless all layer_types are of this kind."""
    kinds = kinds_of(values, [kind] * values["num_hidden_layers"])
    values.demand(set(kinds) == {kind}, "layer_types of another kind", [kind])
    return len(kinds)


def rope_of_all(values: Values, context: int | None) -> Rope:
    """The rotary embedding of all layers."""
    return rope_of(values, head_dim_of(values), context_of(values, context))


def mixed(kinds: Iterable[str], full: Attention, sliding: Attention) -> tuple[Attention, ...]:
    """The attention of layers of two kinds."""
    return tuple(full if kind == FULL else sliding for kind in kinds)


def kinds_of(values: Values, implied: list[str]) -> list[str]:
    """The kind of each layer, by `layer_types` if config.json has them, otherwise as implied by other keys.

    Raises:
        CheckpointError: unknown kinds, or another number of them than layers.
    """
    kinds = values.get("layer_types", implied)
    for kind in kinds:
        values.demand(kind in KINDS, f"layer type {said(kind)}", KINDS)
    if len(kinds) != len(implied):
        raise CheckpointError(f"{values.path}: layer_types has {len(kinds)} entries for {len(implied)} layers")
    return kinds


def window_of(values: Values, kinds: Iterable[str]) -> int | None:
    """The window of sliding layers, in tokens.

    Raises:
        CheckpointError: layers slide, but there is no window.
    """
    window = values.get("sliding_window")
    if SLIDING in kinds and not window:
        raise CheckpointError(f"{values.path}: layers slide, but sliding_window is {window}; at least 1 is needed")
    return window


def check_experts(values: Values, count: int) -> int:
    """The number of a layer's experts. Raises `CheckpointError` for more than `MOST_EXPERTS` in all layers, or fewer
    than each token uses."""
    total, chosen = count * values["num_hidden_layers"], values["num_experts_per_tok"]
    values.demand(total <= MOST_EXPERTS, f"a model of {total} experts", [f"at most {MOST_EXPERTS}"])
    values.demand(chosen <= count, f"num_experts_per_tok {chosen}", [f"at most the {count} that there are"])
    return count
