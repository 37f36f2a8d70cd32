"""Experts with weights of 8 and 4 bits: scales, zeros, groups, and quantised intermediate results."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.gemm.reference import largest
from kernels.moe import quantised_reference
from tests.ops.moe.checking import check_moe, made_codes, made_scaled
from tests.support.dtypes import BF16, FP16, FP32, INT8, UINT8, eight_bits

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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ("e4m3", "int8"))
def test_static_scales(moe: Bundle, kind: str, shape: tuple[int, ...]):
    """Either may be static; the largest values saturate."""
    rng, dtype = np.random.default_rng(sum(shape)), eight_bits(moe, kind)
    given = made_scaled(rng, dtype, shape, BF16)
    static = {name: np.array([most / largest(dtype)], FP32) for name, most in (("scale_x", 2.5), ("scale_act", 0.7))}
    check_moe(moe, "silu", "moe_scaled", **given, **static)
    check_moe(moe, "silu", "moe_scaled", **given, scale_act=static["scale_act"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ("e4m3", "int8"))
@pytest.mark.parametrize("shape", ((5, 4, 2, 144, 272), (9, 3, 2, 272, 136), (70, 2, 2, 160, 144), (130, 1, 1, 256, 64),
    (6, 2, 1, 131, 20)), ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", (BF16, FP16), ids=str)
def test_scales_of_blocks(moe: Bundle, dtype: np.dtype, shape: tuple[int, ...], kind: str):
    rng = np.random.default_rng(sum(shape))
    given = made_scaled(rng, eight_bits(moe, kind), shape, dtype, (128, 128))
    check_moe(moe, "silu", "moe_block_scaled", **given)


@pytest.mark.parametrize("kind", ("e4m3", "int8"))
def test_clamped_and_shifted_products(moe: Bundle, kind: str):
    given = made_scaled(np.random.default_rng(6), eight_bits(moe, kind), (9, 3, 2, 144, 80), BF16)
    check_moe(moe, "gelu_quick", "moe_scaled", how={"limit": 1.0, "shift": 1.0}, **given)


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
@pytest.mark.parametrize("op, codes", (("moe_int4", UINT8), ("moe_int8", INT8)))
def test_codes(
    moe: Bundle, op: str, codes: np.dtype, dtype: np.dtype, with_zeros: bool, shape: tuple[int, ...],
    groups: tuple[int, int],
):  # fmt: skip
    rng = np.random.default_rng(sum(shape))
    check_moe(moe, "silu", op, **made_codes(rng, codes, shape, dtype, groups, with_zeros))


@pytest.mark.parametrize(("shape", "groups"), GROUPED, ids=str)
@pytest.mark.parametrize("op, codes", (("moe_int8", INT8), ("moe_int4", UINT8)))
def test_act_order(moe: Bundle, op: str, codes: np.dtype, shape: tuple[int, ...], groups: tuple[int, int]):
    """Each expert has an order of its own."""
    given = made_codes(np.random.default_rng(sum(shape)), codes, shape, FP16, groups, True, True)
    check_moe(moe, "silu", op, **given)
    check_moe(moe, "silu", op, **{name: x for name, x in given.items() if name != "order_down"})


@pytest.mark.parametrize(("shape", "groups"), GROUPED, ids=str)
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_float8(moe: Bundle, dtype: np.dtype, shape: tuple[int, ...], groups: tuple[int, int]):
    rng = np.random.default_rng(sum(shape))
    check_moe(moe, "relu", "moe_fp8", **made_codes(rng, eight_bits(moe, "e4m3"), shape, dtype, groups))
