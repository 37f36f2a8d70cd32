"""Arguments that do not fit one another: what the contracts of the matrix products ask for."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle
from tests.support.dtypes import FP16, FP32, INT8

LONG = np.zeros((1, 131072), INT8)
GIVEN = {
    "matmul": {"a": np.zeros((3, 4), FP16), "b": np.zeros((4, 3), FP16)},
    "integer_matmul": {"a": LONG, "b": LONG.T},
    "int8_linear": {"a": LONG, "w": LONG, "d": np.zeros((1, 1), INT8), "alpha": 1.0},
    "scaled_matmul": {"a": np.ones((3, 8), INT8), "b": np.ones((8, 4), INT8), "scale_a": np.ones(3, FP32),
                      "scale_b": np.ones(4, FP32), "e": np.zeros((3, 4), FP16)},
    "block_scaled_matmul": {"a": np.ones((3, 8), INT8), "b": np.ones((8, 4), INT8), "scale_a": np.ones((3, 1), FP32),
                            "scale_b": np.ones((1, 1), FP32), "e": np.zeros((3, 4), FP16)},
    "linear_int4": {"x": np.zeros((1, 64), FP16), "w": np.zeros((8, 32), np.uint8), "scales": np.ones((2, 8), FP16),
                    "group_size": 32},
    "linear_int4_a8": {"x": np.zeros((3, 64), INT8), "w": np.zeros((8, 32), np.uint8), "scales": np.ones((2, 8), FP16),
                       "row_scales": np.ones(3, FP32), "e": np.zeros((3, 8), FP16)},
    "lora_linear": {"x": np.zeros((3, 32), FP16), "w": np.zeros((8, 32), FP16), "down": np.zeros((1, 4, 32), FP16),
                    "up": np.zeros((1, 8, 4), FP16)},
}  # fmt: skip
"""Calls; those with LONG have sums that might not fit int32."""


@pytest.mark.parametrize(
    "op, changes, message",
    (
        ("matmul", {"b": np.zeros((5, 3), FP16)}, "k"),
        ("matmul", {"d": np.ones((2, 3), FP16)}, "d"),
        ("integer_matmul", {}, "131071"),
        ("int8_linear", {}, "131071"),
        ("scaled_matmul", {"scale_a": np.ones(2, FP32)}, "scale_a"),
        ("block_scaled_matmul", {"scale_a": np.ones((3, 2), FP32)}, "scale_a"),
        ("block_scaled_matmul", {"scale_b": np.ones((2, 4), FP32)}, "scale_b"),
        ("linear_int4", {"scales": np.ones((3, 8), FP16)}, r"groups \* group_size == k"),
        ("linear_int4", {"group_size": 16, "scales": np.ones((4, 8), FP16)}, "group_size % 32"),
        ("linear_int4", {"zeros": np.zeros((1, 8), np.uint8)}, "zeros"),
        ("linear_int4", {"w": np.zeros((8, 31), np.uint8)}, "w"),
        ("linear_int4", {"w": np.zeros((1, 16, 32), np.int32)}, "'w' has 3 dims"),  # prepacked
        ("linear_int4", {"zeros": np.zeros((2, 8), np.uint8), "codebook": np.zeros(16, FP32)}, "codebook"),
        ("linear_int4", {"order": np.full(64, 64, np.int32)}, "order.*has 64 at"),
        ("linear_int4_a8", {"scales": np.ones((3, 8), FP16)}, r"groups \* group_size == k"),
        ("linear_int4_a8", {"scales": np.ones((4, 8), FP16)}, "group_size % 32"),
        ("linear_int4_a8", {"scales": np.ones((2, 7), FP16)}, "scales"),
        ("linear_int4_a8", {"scales": np.ones((2, 8), FP32)}, "scales"),
        ("linear_int4_a8", {"row_scales": np.ones(2, FP32)}, "row_scales"),
        ("linear_int4_a8", {"zeros": np.full((2, 8), 17, np.uint8)}, "zeros.*has 17 at"),
        ("linear_int4_a8", {"zeros": np.ones((3, 8), np.uint8)}, "zeros"),
        ("linear_int4_a8", {"zeros": np.ones((2, 8), INT8)}, "zeros"),
        ("linear_int4_a8", {"x": np.zeros((3, 64), FP16)}, "x.*float16"),
        ("linear_int4_a8", {"x": np.zeros((3, 64), ml_dtypes.float8_e5m2)}, "x.*float8_e5m2"),
        ("linear_int4_a8", {"e": np.zeros((3, 8), INT8)}, "e.*int8"),
        ("lora_linear", {"up": np.zeros((1, 8, 5), FP16)}, "rank"),
        ("lora_linear", {"adapter_of": np.zeros(4, np.int32)}, "adapter_of"),
        ("lora_linear", {"adapter_scales": np.ones(2, FP32)}, "adapters"),
    ),
)
def test_what_does_not_fit_is_refused(gemm: Bundle, op: str, changes: dict, message: str):
    with pytest.raises(ArgumentError, match=message):
        getattr(gemm, op)(**GIVEN[op] | changes)
