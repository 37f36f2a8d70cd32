"""Sorting of assignments by experts, and moving and summing of their rows."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.moe import permute_reference as reference
from kernels.tolerance import assert_close
from tests.ops.moe.checking import FLOOR
from tests.support.dtypes import BF16, FP16, FP32, INT8, INT32
from tests.support.poison import into_poison, poisoned

pytestmark = pytest.mark.sampled(2)

SHAPES = ((1, 1, 1), (0, 2, 4), (5, 2, 4), (33, 4, 60), (130, 8, 13), (700, 3, 5))
"""Tokens, topk, experts; the last ones need more than one run, or more than one step of it."""


def drawn(tokens: int, topk: int, experts: int) -> np.ndarray:
    """Draw experts: some are out of range on either side, and one has no token."""
    chosen = np.random.default_rng(tokens).integers(-1, experts + 1, (tokens, topk), INT32)
    return np.where(chosen == 2, INT32.type(0), chosen)


def check_align(moe: Bundle, shape: tuple[int, int, int], block_size: int) -> None:
    chosen, experts = drawn(*shape), shape[2]
    wanted = reference.moe_align(chosen, experts, block_size)
    whole = [moe.device.array(np.full(array.size + 6, 77, INT32)) for array in wanted]
    names = ("order", "expert_of_block", "offsets", "places", "counts")
    out = {name: within[3:-3].reshape(*array.shape) for name, within, array in zip(names, whole, wanted, strict=True)}
    moe.moe_align(moe.device.array(chosen), experts=experts, block_size=block_size, **out)
    for name, within, array in zip(names, whole, wanted, strict=True):
        found = within.numpy()
        assert np.array_equal(found[3:-3], array.reshape(-1)), name
        assert (found[:3] == 77).all() and (found[-3:] == 77).all(), name


@pytest.mark.parametrize("block_size", (1, 16, 32, 64, 128, 256))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_align(moe: Bundle, shape: tuple[int, int, int], block_size: int):
    check_align(moe, shape, block_size)


@pytest.mark.parametrize("dtype", (FP16, BF16, FP32, INT8), ids=str)
@pytest.mark.parametrize("hidden", (33, 1040))
def test_permute(moe: Bundle, hidden: int, dtype: np.dtype):
    x = (np.random.default_rng(0).standard_normal((7, hidden)) * 9).astype(dtype)
    order = reference.moe_align(drawn(7, 3, 4), 4, 16)[0]
    placed = poisoned(moe, x), moe.device.array(order)
    out = into_poison(moe, (len(order), hidden), dtype, lambda out: moe.moe_permute(*placed, topk=3, out=out))
    assert np.array_equal(out, reference.moe_permute(x, order, 3))


@pytest.mark.parametrize("weighted", (True, False))
@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
@pytest.mark.parametrize("hidden", (33, 1040))
def test_unpermute(moe: Bundle, hidden: int, dtype: np.dtype, weighted: bool):
    """Places out of range, on either side, read nothing."""
    rng = np.random.default_rng(1)
    places = rng.integers(-1, 12, (5, 3), INT32)
    given = {"x": rng.standard_normal((11, hidden)).astype(dtype), "places": places}
    given |= {"weights": rng.random((5, 3)).astype(FP32)} if weighted else {}
    placed = {name: poisoned(moe, array) for name, array in given.items()}
    out = into_poison(moe, (5, hidden), dtype, lambda out: moe.moe_unpermute(**placed, out=out))
    assert_close(out, reference.moe_unpermute(**given), reference.moe_unpermute_same_dtype(**given), FLOOR)


@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
@pytest.mark.parametrize("hidden", (33, 1040))
def test_sum(moe: Bundle, hidden: int, dtype: np.dtype):
    x = np.random.default_rng(2).standard_normal((5, 3, hidden)).astype(dtype)
    placed = poisoned(moe, x)
    out = into_poison(moe, (5, hidden), dtype, lambda out: moe.moe_sum(placed, out=out))
    assert_close(out, reference.moe_sum(x), reference.moe_sum_same_dtype(x), FLOOR)


def test_rows_come_back_to_their_tokens(moe: Bundle):
    """Steps after each other give the sum of each token's weights, times the token."""
    rng = np.random.default_rng(3)
    x, weights = rng.integers(-8, 9, (20, 16)).astype(FP32), rng.integers(0, 4, (20, 2)).astype(FP32)
    chosen = np.argsort(rng.random((20, 6)), 1)[:, :2].astype(INT32)
    order, _, _, places, _ = moe.moe_align(chosen, experts=6, block_size=16)
    rows = moe.moe_permute(x, order, topk=2)
    assert np.array_equal(moe.moe_unpermute(rows, places, weights), x * weights.sum(1, keepdims=True))
