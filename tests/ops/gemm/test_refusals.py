"""Arguments that do not fit one another: what the contracts of the matrix products ask for."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle
from tests.support.dtypes import FP16, FP32


def scaled(**changes: np.ndarray) -> dict[str, np.ndarray]:
    return {"a": np.ones((3, 8), np.int8), "b": np.ones((8, 4), np.int8), "scale_a": np.ones(3, FP32),
            "scale_b": np.ones(4, FP32), "e": np.zeros((3, 4), FP16), **changes}  # fmt: skip


def blocks(**changes: np.ndarray) -> dict[str, np.ndarray]:
    return scaled(scale_a=np.ones((3, 1), FP32), scale_b=np.ones((1, 1), FP32)) | changes


def packed(**changes: object) -> dict[str, object]:
    return {"x": np.zeros((1, 64), FP16), "w": np.zeros((8, 32), np.uint8), "scales": np.ones((2, 8), FP16),
            "group_size": 32, **changes}  # fmt: skip


LONG = np.zeros((1, 131072), np.int8)
ADAPTED = {"x": np.zeros((3, 32), FP16), "w": np.zeros((8, 32), FP16), "down": np.zeros((1, 4, 32), FP16),
           "up": np.zeros((1, 8, 4), FP16)}  # fmt: skip


@pytest.mark.parametrize(
    "op, given, message",
    (
        ("matmul", {"a": np.zeros((3, 4), FP16), "b": np.zeros((5, 3), FP16)}, "k"),
        ("matmul", {"a": np.zeros((3, 4), FP16), "b": np.zeros((4, 3), FP32)}, "float32"),
        ("matmul", {"a": np.ones((3, 4), FP16), "b": np.ones((4, 3), FP16), "d": np.ones((2, 3), FP16)}, "d"),
        ("integer_matmul", {"a": LONG, "b": LONG.T}, "131071"),  # the sum might not fit int32
        ("int8_linear", {"a": LONG, "w": LONG, "d": np.zeros(1, np.int8), "alpha": 1.0}, "131071"),
        ("scaled_matmul", scaled(scale_a=np.ones(2, FP32)), "scale_a"),
        ("scaled_matmul", scaled(scale_b=np.ones(4, FP16)), "scale_b"),
        ("block_scaled_matmul", blocks(scale_a=np.ones((3, 2), FP32)), "scale_a"),
        ("block_scaled_matmul", blocks(scale_b=np.ones((2, 4), FP32)), "scale_b"),
        ("linear_int4", packed(scales=np.ones((3, 8), FP16)), r"groups \* group_size == k"),
        ("linear_int4", packed(group_size=16, scales=np.ones((4, 8), FP16)), "group_size % 32"),
        ("linear_int4", packed(zeros=np.zeros((2, 8), np.int8)), "zeros"),
        ("linear_int4", packed(zeros=np.zeros((1, 8), np.uint8)), "zeros"),
        ("linear_int4", packed(w=np.zeros((8, 31), np.uint8)), "w"),
        ("linear_int4", packed(zeros=np.zeros((2, 8), np.uint8), codebook=np.zeros(16, FP32)), "codebook"),
        ("lora_linear", {**ADAPTED, "up": np.zeros((1, 8, 5), FP16)}, "rank"),
        ("lora_linear", {**ADAPTED, "adapter_of": np.zeros(4, np.int32)}, "adapter_of"),
    ),
)  # fmt: skip
def test_what_does_not_fit_is_refused(gemm: Bundle, op: str, given: dict, message: str):
    with pytest.raises(ArgumentError, match=message):
        getattr(gemm, op)(**given)
