"""What the families' files share: figures that all config.json give alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checkpoints.values import CheckpointError, Values
from models.config import Attention
from models.rope import longest_context, rope_of

FLOATS = ("float16", "bfloat16", "float32")
KINDS = ("full_attention", "sliding_attention")


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
    end = values.get("eos_token_id", ())
    return {
        "vocabulary": values["vocab_size"],
        "hidden": values["hidden_size"],
        "intermediate": values["intermediate_size"],
        "heads": heads,
        "heads_kv": heads_kv,
        "head_dim": head_dim_of(values),
        "eps": values["rms_norm_eps"],
        "context": context_of(values, context),
        "tied": bool(values.get("tie_word_embeddings", False)),
        "dtype": dtype,
        "end": frozenset([end] if isinstance(end, int) else end),
    }


def context_of(values: Values, wanted: int | None) -> int:
    """Most tokens of a sequence: so many as are wanted, if the model takes them."""
    longest = longest_context(values)
    return min(wanted or longest, longest)


def head_dim_of(values: Values) -> int:
    return values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]


def alike(values: Values, context: int | None, window: int | None = None) -> tuple[Attention, ...]:
    """Layers that all attend alike."""
    rope = rope_of(values, head_dim_of(values), context_of(values, context))
    return (Attention(rope, window),) * values["num_hidden_layers"]


def mixed(values: Values, full: Attention, sliding: Attention, is_full: Callable[[int], bool]) -> tuple[Attention, ...]:
    """Layers of two kinds, by `layer_types`, or where config.json has none by their numbers.

    Raises `CheckpointError`: layer_types of other kinds, or of another number than layers.
    """
    count = values["num_hidden_layers"]
    kinds = values.get("layer_types", [KINDS[0 if is_full(number) else 1] for number in range(count)])
    for kind in kinds:
        values.demand(kind in KINDS, f"layer type {kind}", KINDS)
    if len(kinds) != count:
        raise CheckpointError(f"{values.path}: layer_types has {len(kinds)} entries for {count} layers")
    return tuple(full if kind == KINDS[0] else sliding for kind in kinds)


def demand_activation(values: Values, known: str, *keys: str) -> None:
    """What the first of these keys says that there is; by default hidden_act."""
    found = next((values.found[key] for key in keys or ("hidden_act",) if values.get(key)), known)
    values.demand(found == known, f"hidden_act {found}", [known])
