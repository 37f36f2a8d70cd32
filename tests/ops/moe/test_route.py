"""Experts that a token gets, and their weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle
from tests.ops.moe.checking import check_route
from tests.support.dtypes import BF16, FP16, FP32

pytestmark = pytest.mark.sampled(2)

MIXTRAL: dict[str, Any] = {"topk": 2}
QWEN_2: dict[str, Any] = {"topk": 4, "renormalise": False}
DEEPSEEK_2: dict[str, Any] = {"topk": 6, "renormalise": False, "groups": 8, "topk_groups": 3, "scale": 16.0}
DEEPSEEK_3: dict[str, Any] = {"topk": 8, "scoring": "sigmoid", "groups": 8, "topk_groups": 4, "scale": 2.5}


@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
@pytest.mark.parametrize("experts, how, biased", ((8, MIXTRAL, False), (60, QWEN_2, False), (160, DEEPSEEK_2, False),
    (256, DEEPSEEK_3, True), (1000, {"topk": 32}, True), (1, {"topk": 1}, False), (32, {"topk": 32}, False),
    (24, {"topk": 5, "groups": 24, "topk_groups": 5, "scoring": "sigmoid"}, True)), ids=str)  # fmt: skip
def test_models(moe: Bundle, experts: int, how: dict[str, Any], biased: bool, dtype: np.dtype):
    rng = np.random.default_rng(experts)
    logits = (rng.standard_normal((7, experts)) * 2).astype(dtype)
    check_route(moe, logits, bias=rng.standard_normal(experts).astype(FP32) if biased else None, **how)


@pytest.mark.parametrize("kind", (FP16, BF16), ids=str)
@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
def test_biases_of_16_bits(moe: Bundle, dtype: np.dtype, kind: np.dtype):
    rng = np.random.default_rng(5)
    logits, bias = rng.standard_normal((7, 256)).astype(dtype), rng.standard_normal(256).astype(kind)
    check_route(moe, logits, bias=bias, **DEEPSEEK_3)


@pytest.mark.parametrize("dtype", (BF16, FP32), ids=str)
@pytest.mark.parametrize("biased", (False, True))
def test_roots_of_softplus(moe: Bundle, biased: bool, dtype: np.dtype):
    """Weights of large logits are finite, and those of a row of small ones, of 2e-5 and less, are exact, too."""
    rng = np.random.default_rng(6)
    logits = (rng.standard_normal((7, 256)) * 4).astype(dtype)
    logits[:2, 0] = 80
    logits[2] -= np.float32(40)
    bias = rng.standard_normal(256).astype(FP32) if biased else None
    check_route(moe, logits, bias=bias, topk=6, scoring="sqrt_softplus", scale=1.5)


def test_equal_logits_go_to_the_first_experts(moe: Bundle):
    assert check_route(moe, np.zeros((3, 40), FP32), 4).tolist() == [[0, 1, 2, 3]] * 3


def test_a_logit_that_is_no_number_leaves_the_indices_whole(moe: Bundle):
    logits = np.zeros((2, 20), FP32)
    logits[1, 5] = np.nan
    weights, chosen = moe.moe_route(logits, topk=3)
    assert chosen.tolist() == [[0, 1, 2], [5, 0, 1]]
    assert np.isnan(weights[1]).all() and np.isfinite(weights[0]).all()
