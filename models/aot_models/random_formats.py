"""Tensors of random numbers in the published formats of weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from aot_models.checkpoints.linear import LinearShape, Wanted
from aot_models.checkpoints.scheme import Scheme
from aot_models.checkpoints.shards import DTYPES

Array = np.ndarray
_SYMMETRIC: dict[str, Any] = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
_TOKEN = {**_SYMMETRIC, "strategy": "token", "dynamic": True}


def _compressed(kind: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group},
            "ignore": ["lm_head"]}  # fmt: skip


QUANTISATIONS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
    "gptq8": {"quant_method": "gptq", "bits": 8, "group_size": 128, "desc_act": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "fp8-static": {"quant_method": "fp8", "activation_scheme": "static"},
    "fp8-blocks": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "int8": _compressed("int-quantized", _SYMMETRIC, _TOKEN),
    "int4": _compressed("pack-quantized", {**_SYMMETRIC, "num_bits": 4, "strategy": "group", "group_size": 128}, None),
}
"""A quantization_config of each kind, by a name for it."""


def random_stored(
    rng: np.random.Generator, normal: Array, end: str, wanted: Wanted, layer: LinearShape, scheme: Scheme
) -> Array | None:
    """A tensor of a quantised linear layer; None: it is one of plain weights.

    normal: of the tensor's shape. end: of its name, behind the layer's. Weights come out about as large as
    inputs ** -0.5 where there are some thousands of inputs.
    """
    shape, dtype = wanted.shapes[0], wanted.dtypes[0]
    if end == "weight_shape":
        return np.array([layer.outputs, layer.inputs])
    if dtype == "int32":  # of bytes; zeros of 8 bits that are stored less one are at most 254
        return rng.integers(0, 255, (*shape, 4), np.uint8).view(np.int32)[..., 0]
    if dtype == "int8":
        return rng.integers(-127, 128, shape, np.int8)
    if dtype == "float8_e4m3fn":
        return (normal * 100).clip(-448, 448).astype(DTYPES["F8_E4M3"])
    if end in ("scales", "weight_scale", "weight_scale_inv"):
        return np.full(shape, 0.005 if "linear_int4" in scheme.ops else 0.0002, np.float32)
    return np.full(shape, 0.02, np.float32) if end in ("input_scale", "activation_scale") else None
