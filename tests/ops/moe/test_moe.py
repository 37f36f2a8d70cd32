"""Mixtures of experts: blocks of assignments of every size, and experts chosen by no token or by all."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from tests.ops.moe.checking import check_moe, made
from tests.support.dtypes import BF16, FP16, FP32, INT32

pytestmark = pytest.mark.sampled(1)

SHAPES = ((1, 8, 2, 64, 48), (5, 4, 4, 48, 33), (33, 60, 4, 40, 16), (70, 2, 2, 96, 80), (130, 1, 1, 32, 64),
          (17, 3, 2, 31, 7), (1, 36, 9, 300, 270), (3, 40, 3, 31, 7))  # fmt: skip
"""Tokens, experts, topk, hidden, intermediate."""


@pytest.mark.parametrize("activation", ("silu", "gelu_tanh"))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", (BF16, FP16, FP32), ids=str)
def test_every_block(moe: Bundle, dtype: np.dtype, shape: tuple[int, ...], activation: str):
    check_moe(moe, activation, **made(np.random.default_rng(sum(shape)), *shape, dtype))


@pytest.mark.parametrize(
    "activation, limit, shift", (("gelu_quick", 1.0, 1.0), ("silu", 0.5, 0.0), ("gelu", 0.0, -0.5))
)
@pytest.mark.parametrize("shape", ((33, 4, 2, 48, 33), (1, 8, 2, 64, 48)), ids=str)
def test_clamped_and_shifted_products(moe: Bundle, shape: tuple[int, ...], activation: str, limit: float, shift: float):
    """gelu_quick with a limit and a shift is the gating of gpt-oss, here with a limit that clamps many values."""
    given = made(np.random.default_rng(3), *shape, BF16)
    check_moe(moe, activation, how={"limit": limit, "shift": shift}, **given)


@pytest.mark.parametrize("hidden", (48, 31))
def test_the_shared_part_is_added(moe: Bundle, hidden: int):
    rng = np.random.default_rng(1)
    given = made(rng, 9, 4, 2, hidden, 32, BF16)
    check_moe(moe, **given, shared=rng.standard_normal((9, hidden)).astype(BF16))


def test_a_token_whose_experts_are_alone(moe: Bundle):
    """There are more slots and columns than are multiplied at a time, a shared part, and experts of other devices."""
    rng = np.random.default_rng(9)
    given = made(rng, 1, 36, 9, 264, 272, BF16)
    given["chosen"][0, 3:8] = -1
    check_moe(moe, **given, shared=rng.standard_normal((1, 264)).astype(BF16))


def test_all_tokens_on_one_expert_and_tokens_on_none(moe: Bundle):
    """Experts of other devices (-1) are left out; a token without any is 0."""
    given = made(np.random.default_rng(3), 40, 6, 3, 32, 16, BF16)
    given["chosen"] = np.full((40, 3), -1, INT32)
    given["chosen"][:, 1] = 4
    given["chosen"][7] = -1
    assert not check_moe(moe, **given)[7].any()


def test_assignments_are_ordered_in_several_runs(moe: Bundle):
    """There are more assignments than a run has, the last run is not full, and wrong indices on the device do no
    harm."""
    given = made(np.random.default_rng(8), 130, 13, 8, 32, 16, BF16)
    given["chosen"] = np.where(given["chosen"] == 3, INT32.type(-1), given["chosen"])
    expected = check_moe(moe, **given)
    wrong = np.where(given["chosen"] == -1, INT32.type(13), given["chosen"])
    placed = {name: moe.device.array(host) for name, host in (given | {"chosen": wrong}).items()}
    assert np.array_equal(moe.moe(**placed).numpy(), expected)


def test_an_expert_twice(moe: Bundle):
    given = made(np.random.default_rng(4), 5, 4, 2, 32, 16, BF16)
    check_moe(moe, **given | {"chosen": np.repeat(given["chosen"][:, :1], 2, 1)})


@pytest.mark.parametrize("number", (-(2**31), 8, 2**31 - 1))
@pytest.mark.parametrize("tokens", (1, 5), ids=("alone", "in_order"))
def test_numbers_on_the_device_that_are_no_experts_are_left_out(moe: Bundle, tokens: int, number: int):
    """Device arrays are not read before the call, so a wrong index must be harmless."""
    given = made(np.random.default_rng(5), tokens, 8, 2, 32, 16, BF16)
    chosen, removed = given["chosen"], given["chosen"][0, 1]
    expected = moe.moe(**given | {"chosen": np.where(chosen == removed, -1, chosen).astype(INT32)})
    wrong = np.where(chosen == removed, number, chosen).astype(INT32)
    placed = {name: moe.device.array(host) for name, host in (given | {"chosen": wrong}).items()}
    assert expected.any() and np.array_equal(moe.moe(**placed).numpy(), expected)
