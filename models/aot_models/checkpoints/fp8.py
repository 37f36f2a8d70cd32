"""fp8, as DeepSeek, Qwen, Mistral and AutoFP8 publish it: float8 with scales per block of 128 x 128, or per tensor."""

from __future__ import annotations

from aot_models.checkpoints.eight_bits import EightBits
from aot_models.checkpoints.keys import Table, harmless, held, listed, or_null, text, whole
from aot_models.checkpoints.linear import BLOCK
from aot_models.checkpoints.patterns import NAMES, Listed
from aot_models.checkpoints.scheme import Format, Plain, Scheme
from aot_models.checkpoints.values import Values, said

SCALES, INPUT_SCALES = ("weight_scale_inv", "weight_scale"), ("input_scale", "activation_scale")
"""Codes are multiplied by `weight_scale_inv` too, despite its name."""
KEYS: Table = {
    **harmless(
        "quant_method dequantize is_checkpoint_fp8_serialized kv_cache_scheme kv_cache_quant_method scale_fmt backend"
    ),
    "fmt": or_null(text(), "e4m3"),
    "activation_scheme": or_null(text(), "dynamic"),
    "weight_block_size": or_null(listed(whole(), 2)),
    "modules_to_not_convert": or_null(NAMES),
    "ignored_layers": or_null(NAMES),
}


def parse(stored: Values) -> Format:
    """Read a quantization_config. Raises `CheckpointError` if it is not supported."""
    stored = held(stored, KEYS)
    kind = stored.get("fmt", "e4m3")
    stored.demand(kind in ("e4m3", "float8_e4m3fn"), f"float8 of the kind {said(kind)}", ["e4m3"])
    activations = stored.get("activation_scheme", "dynamic")
    stored.demand(activations in ("dynamic", "static"), f"activation_scheme {said(activations)}", ("dynamic", "static"))
    block = stored.get("weight_block_size")
    stored.demand(block is None or block == [BLOCK, BLOCK], f"weight_block_size {block}", [f"[{BLOCK}, {BLOCK}]"])
    stored.demand(block is None or activations == "dynamic", "activation_scheme static with blocks", ["dynamic"])
    scheme = EightBits(
        "float8_e4m3fn", "any" if block is None else "block", activations == "static",
        SCALES if block else SCALES[::-1], INPUT_SCALES,
    )  # fmt: skip
    left_out = Listed(stored, stored.get("modules_to_not_convert", stored.get("ignored_layers", [])))

    def scheme_of(name: str) -> Scheme:
        return Plain() if name.endswith("lm_head") or name in left_out else scheme

    return scheme_of
