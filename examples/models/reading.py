"""What the families' files share: figures that all config.json give alike."""

from __future__ import annotations

from typing import Any

from checkpoints.values import CheckpointError, Values

FLOATS = ("float16", "bfloat16", "float32")


def common(values: Values, context: int | None) -> dict[str, Any]:
    """Arguments of `Config` from the keys that all families have.

    context: most tokens of a sequence; None: the model's.

    Raises `CheckpointError`: a key that is missing, a dtype that is not supported, heads that do not fit.
    """
    dtype = str(values.get("dtype") or values.get("torch_dtype") or "float32")
    values.demand(dtype in FLOATS, f"dtype {dtype}", FLOATS)
    heads = values["num_attention_heads"]
    heads_kv = values.get("num_key_value_heads", heads)
    if heads % heads_kv:
        raise CheckpointError(f"{values.path}: {heads} heads cannot share {heads_kv} key heads evenly")
    longest, end = values["max_position_embeddings"], values.get("eos_token_id", ())
    return {
        "vocabulary": values["vocab_size"],
        "hidden": values["hidden_size"],
        "intermediate": values["intermediate_size"],
        "heads": heads,
        "heads_kv": heads_kv,
        "head_dim": head_dim_of(values),
        "eps": values["rms_norm_eps"],
        "context": min(context or longest, longest),
        "tied": bool(values.get("tie_word_embeddings", False)),
        "dtype": dtype,
        "end": frozenset([end] if isinstance(end, int) else end),
    }


def head_dim_of(values: Values) -> int:
    return values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]


def demand_activation(values: Values, *known: str) -> str:
    """hidden_act, which has to be one of these."""
    found = values.get("hidden_act", known[0])
    values.demand(found in known, f"hidden_act {found}", known)
    return found
