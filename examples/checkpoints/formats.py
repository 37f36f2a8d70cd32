"""How a checkpoint stores the weights of its linear layers: one module per format, by quantization_config."""

from __future__ import annotations

from collections.abc import Callable

from checkpoints import awq, compressed_tensors, fp8, gptq
from checkpoints.scheme import Format, Plain
from checkpoints.values import Values

METHODS: dict[str, Callable[[Values], Format]] = {
    "gptq": gptq.parse, "awq": awq.parse, "fp8": fp8.parse, "compressed-tensors": compressed_tensors.parse,
}  # fmt: skip
"""By quant_method."""


def format_of(values: Values) -> Format:
    """Raises `CheckpointError`: a format that is not supported."""
    found = values.get("quantization_config") or values.get("compression_config")
    if not found:
        return lambda name: Plain()
    stored = values.part(found)
    method = stored["quant_method"]
    values.demand(method in METHODS, f"quantisation {method}", METHODS)
    return METHODS[method](stored)
