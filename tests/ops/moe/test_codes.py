"""Experts with weights of 4 and 8 bits, multiplied with tokens of 16 bits: groups, zeros, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from tests.ops.moe.checking import check_moe, made_codes
from tests.support.dtypes import BF16, FP16

pytestmark = pytest.mark.sampled(1)

SHAPES = (((5, 4, 2, 128, 64), (2, 2)), ((9, 3, 2, 33, 21), (1, 1)), ((70, 2, 2, 96, 80), (3, 1)),
          ((20, 3, 2, 96, 160), (1, 5)))  # fmt: skip
"""Tokens, experts, topk, hidden, intermediate; groups of gate and up, and of down."""


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
@pytest.mark.parametrize("with_zeros", (True, False))
@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
def test_int4(moe: Bundle, dtype: np.dtype, with_zeros: bool, shape: tuple[int, ...], groups: tuple[int, int]):
    rng = np.random.default_rng(sum(shape))
    check_moe(moe, "silu", "moe_int4", **made_codes(rng, 4, shape, dtype, groups, with_zeros))


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "groups"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_int8(moe: Bundle, dtype: np.dtype, shape: tuple[int, ...], groups: tuple[int, int]):
    check_moe(moe, "relu", "moe_int8", **made_codes(np.random.default_rng(sum(shape)), 8, shape, dtype, groups))
