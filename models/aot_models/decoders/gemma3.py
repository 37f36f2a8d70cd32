"""Gemma 3, text part: queries and keys are normalised, five sliding layers alternate with one full layer, and the two
kinds of layers have different rotary embeddings."""

from __future__ import annotations

from dataclasses import replace

from aot_models.checkpoints.keys import Table, an_object, harmless, held, number, only, or_null, whole
from aot_models.checkpoints.values import Values
from aot_models.decoders.config import Attention, Config
from aot_models.decoders.config_keys import (
    COMMON,
    COMPUTED,
    FULL,
    IGNORED,
    KINDS,
    MOST_LAYERS,
    SIZES,
    SLIDING,
    context_of,
    head_dim_of,
    kinds_of,
    mixed,
    of_kind,
    window_of,
)
from aot_models.decoders.gemma2 import BOUND, GEMMA, NAMES, gemma
from aot_models.decoders.rope import known_parameters, rope_of

DEFAULTS = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
}  # fmt: skip
"""Defaults of sizes that published files omit."""
KEYS: Table = {
    **GEMMA,
    **{name: replace(SIZES[name], default=default) for name, default in DEFAULTS.items()},
    **of_kind("gemma3_text"),
    **harmless("_sliding_window_pattern"),
    "attn_logit_softcapping": replace(only(None), words="{name}"),
    "final_logit_softcapping": or_null(BOUND),
    "sliding_window_pattern": whole(most=MOST_LAYERS, default=6),
    "rope_theta": number(1, 1e15, 1e6),
    "rope_local_base_freq": number(1, 1e15, 1e4),
    "original_max_position_embeddings": only(None),
}
WITH_IMAGES: Table = {
    **IGNORED,
    **{name: COMPUTED[name] for name in COMPUTED if name != "tie_word_embeddings"},
    **harmless(
        """
        vision_config mm_tokens_per_image image_token_index boi_token_index eoi_token_index image_token_id
        boi_token_id eoi_token_id
        """
    ),
    **of_kind("gemma3"),
    "tie_word_embeddings": only(True),
    "is_encoder_decoder": COMMON["is_encoder_decoder"],
    "text_config": an_object(),
}
"""Keys of a model with images, besides those of `text_config`."""
IMAGES = ("vision_tower.", "multi_modal_projector.")


def gemma3(values: Values, context: int | None) -> Config:
    full, sliding = _ropes(values)
    values = values.but(rope_parameters=None, rope_scaling=None)
    head_dim, length, every = head_dim_of(values), context_of(values, context), values["sliding_window_pattern"]
    implied = [SLIDING if (number + 1) % every else FULL for number in range(values["num_hidden_layers"])]
    kinds = kinds_of(values, implied)
    return Config(
        **gemma(values, context),
        attention=mixed(
            kinds,
            Attention(rope_of(values, head_dim, length, full)),
            Attention(rope_of(values, head_dim, length, sliding), window_of(values, kinds)),
        ),
        names=replace(NAMES, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm"),
    )


def gemma3_with_images(values: Values, context: int | None) -> Config:
    """The text part of a model with images, which has its own object in config.json and its own prefix."""
    given = values["text_config"]
    shared = {key: values.found[key] for key in ("dtype", "torch_dtype", "eos_token_id") if values.get(key) is not None}
    config = gemma3(held(values.part({**shared, **given}), KEYS), context)
    return replace(config, root="language_model.model", head="language_model.lm_head", unread=IMAGES)


def _ropes(values: Values) -> tuple[Values, Values]:
    """The parameters of (full layers, sliding layers), from rope_parameters or the keys of older files."""
    given = held(values.part(values.get("rope_parameters", {})), {kind: or_null(an_object()) for kind in KINDS})
    full, older = given.get(FULL, {}), values.get("rope_scaling", {})
    # transformers ignores `type` if there is a `rope_type`.
    values.demand("type" not in older or "rope_type" in older, "rope_scaling with a 'type'", ["a 'rope_type'"])
    values.demand(not (full and older) or full == older, "rope_scaling beside other rope_parameters", ["one of them"])
    return (
        known_parameters(values, {"rope_theta": values["rope_theta"], **(full or older)}),
        known_parameters(values, {"rope_theta": values["rope_local_base_freq"], **given.get(SLIDING, {})}),
    )
