"""Weight formats by the `quantization_config` of a checkpoint; each format is a module."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from aot_models.checkpoints import awq, compressed_tensors, fp8, gptq
from aot_models.checkpoints.scheme import Format, Plain
from aot_models.checkpoints.values import Values, said

METHODS: dict[str, Callable[[Values], Format]] = {
    "gptq": gptq.parse, "awq": awq.parse, "fp8": fp8.parse, "compressed-tensors": compressed_tensors.parse,
}  # fmt: skip
"""The parser of each `quant_method`."""


def format_of(values: Values) -> Format:
    """The format that config.json declares. Raises `CheckpointError` for unsupported formats and unknown keys."""
    found = values.get("quantization_config") or values.get("compression_config")
    if not found:
        return lambda name: Plain()
    values.demand(isinstance(found, dict), f"quantization_config {said(found)}", ["an object"])
    stored = values.part(found)
    method = stored["quant_method"]
    values.demand(isinstance(method, str) and method in METHODS, f"quantisation {said(method)}", METHODS)
    return lru_cache(None)(METHODS[method](stored))
