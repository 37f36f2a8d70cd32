"""Ops that round as hardware does, with the inputs of quantised layers rounded to 8 bits by their format."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aot_runtime import Bundle
from kernels.gemm.reference import matmul_same_dtype, quantise_same_dtype, quantise_static_same_dtype
from models.tests.checkpoints.published import FORMATS
from models.tests.decoders.reference import Ops, rounded_ops
from tests.support.dtypes import BF16, eight_bits

Array = np.ndarray
VOCABULARY = 320
"""No other layer has so many outputs; the last one is not quantised."""


def rounding(bundle: Bundle, name: str, input_scale: float | None) -> Ops:
    """The operations of a model in a published format. input_scale: the static scale of all layers, if there is one."""
    published = FORMATS[name]

    def product(x: Array, w: Array, bias: Array | None = None) -> Array:
        if published.activations and w.shape[1] != VOCABULARY:
            q, block = np.zeros(x.shape, eight_bits(bundle, published.kind)), 128
            if input_scale is None:
                block = 128 if published.activations == "block" else x.shape[1]
                codes, scales = quantise_same_dtype(x, q, block)
            else:
                factor = input_scale * (2 if q.dtype.name.endswith("fnuz") else 1)
                scales = np.full((len(x), -(-x.shape[1] // block)), factor, np.float32)
                codes = quantise_static_same_dtype(x, q, np.array([factor], np.float32))
            x = (codes.astype(np.float32) * np.repeat(scales, block, 1)[:, : x.shape[1]]).astype(BF16)
        return matmul_same_dtype(x, w, bias)

    return replace(rounded_ops(BF16), product=product)
