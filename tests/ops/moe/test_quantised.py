"""Experts with weights of 8 and 4 bits: scales, zeros, groups, and quantised intermediate results."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.moe import quantised_reference
from tests.ops.moe.checking import check_moe, made_codes, made_scaled
from tests.support.dtypes import BF16, FP16, eight_bits

pytestmark = pytest.mark.sampled(1)

SHAPES = ((5, 4, 2, 64, 48), (5, 4, 4, 48, 33), (1, 8, 2, 64, 48), (33, 60, 4, 40, 16), (70, 2, 2, 96, 80),
          (130, 1, 1, 32, 64), (17, 3, 2, 31, 7))  # fmt: skip
"""Tokens, experts, topk, hidden, intermediate."""


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
@pytest.mark.parametrize("kind", ("e4m3", "int8"))
def test_scales_of_rows(moe: Bundle, kind: str, dtype: np.dtype, shape: tuple[int, ...]):
    rng = np.random.default_rng(sum(shape))
    check_moe(moe, "gelu_tanh", "moe_scaled", **made_scaled(rng, eight_bits(moe, kind), shape, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("shape", ((5, 4, 2, 144, 272), (9, 3, 2, 272, 136), (70, 2, 2, 160, 144), (130, 1, 1, 256, 64),
    (6, 2, 1, 131, 20)), ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
def test_scales_of_blocks(moe: Bundle, dtype: np.dtype, shape: tuple[int, ...]):
    rng = np.random.default_rng(sum(shape))
    given = made_scaled(rng, eight_bits(moe, "e4m3"), shape, dtype, (128, 128))
    check_moe(moe, "silu", "moe_block_scaled", **given)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("op, block", (("moe_block_scaled", (128, 128)), ("moe_scaled", None)))
def test_rounds_where_other_libraries_do(moe: Bundle, op: str, block: tuple[int, int] | None, seed: int):
    """vLLM allows a mean difference of 0.035 of the mean magnitude; one missing rounding costs up to 0.02."""
    given = made_scaled(np.random.default_rng(seed), eight_bits(moe, "e4m3"), (7, 8, 2, 256, 256), BF16, block)
    wanted = getattr(quantised_reference, f"{op}_same_dtype")(**given).astype(np.float32)
    difference = np.abs(getattr(moe, op)(**given).astype(np.float32) - wanted)
    assert difference.mean() < 0.002 * np.abs(wanted).mean()


@pytest.mark.slow
def test_tokens_of_zeros_and_the_shared_part(moe: Bundle):
    rng = np.random.default_rng(4)
    given = made_scaled(rng, eight_bits(moe, "int8"), (5, 3, 2, 64, 32), FP16)
    given["x"][1] = 0
    check_moe(moe, "silu", "moe_scaled", **given, shared=rng.standard_normal((5, 64)).astype(FP16))


# Weights of 4 and 8 bits beside tokens of 16


GROUPED = (((5, 4, 2, 128, 64), (2, 2)), ((9, 3, 2, 33, 21), (1, 1)), ((70, 2, 2, 96, 80), (3, 1)),
          ((20, 3, 2, 96, 160), (1, 5)))  # fmt: skip
"""Tokens, experts, topk, hidden, intermediate; groups of gate and up, and of down."""


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "groups"), GROUPED, ids=str)
@pytest.mark.parametrize("with_zeros", (True, False))
@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
def test_int4(moe: Bundle, dtype: np.dtype, with_zeros: bool, shape: tuple[int, ...], groups: tuple[int, int]):
    rng = np.random.default_rng(sum(shape))
    check_moe(moe, "silu", "moe_int4", **made_codes(rng, 4, shape, dtype, groups, with_zeros))


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "groups"), GROUPED, ids=str)
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_int8(moe: Bundle, dtype: np.dtype, shape: tuple[int, ...], groups: tuple[int, int]):
    check_moe(moe, "relu", "moe_int8", **made_codes(np.random.default_rng(sum(shape)), 8, shape, dtype, groups))
