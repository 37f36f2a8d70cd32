"""Products of groups of rows: groups of every size, partly filled slots, matrices by index, and offsets gone wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle
from kernels.gemm import grouped_reference
from kernels.gemm.reference import SCALED
from kernels.tolerance import assert_close
from tests.ops.gemm.checking import lost_by_hopper, matrix, on_device
from tests.support.dtypes import BF16, FP16, FP32, INT32, eight_bits
from tests.support.poison import into_poison

pytestmark = pytest.mark.sampled(2)

SIZES = ((5, 0, 17, 130, 1), (16, 16, 16), (70,), (0, 0, 33), (129, 128))
"""Rows of each group."""


def offsets_of(sizes: tuple[int, ...]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(INT32)


def operands(
    gemm: Bundle, kind: str, sizes: tuple[int, ...], n: int, k: int, b_columns: bool = True, one_scale: bool = False
) -> tuple[str, dict[str, np.ndarray]]:
    """Return an op and its operands: of a float dtype, or of `int8` or `e4m3`, with `blocks` of scales."""
    rng, rows, groups = np.random.default_rng(n + k), sum(sizes), len(sizes)
    kind, _, blocks = kind.partition(" ")
    dtype = eight_bits(gemm, kind) if kind in ("int8", "e4m3") else np.dtype(kind) if kind != "bfloat16" else BF16
    given = {"a": matrix(rng, (rows, k), dtype), "b": matrix(rng, (groups, k, n), dtype, b_columns),
             "offsets": offsets_of(sizes)}  # fmt: skip
    if dtype.itemsize > 1:
        return "grouped_matmul", given | {"bias": matrix(rng, (groups, n), dtype)}
    parts, columns = -(-k // SCALED), -(-n // SCALED)
    one = (1,), (1, 1)
    of_a, of_b = ((rows, parts), (groups, parts, columns)) if blocks else one if one_scale else ((rows,), (groups, n))
    given["scale_a"] = rng.uniform(1e-3, 1e-2, of_a).astype(FP32)
    given["scale_b"] = rng.uniform(0.5, 2, of_b).astype(FP32)
    return f"grouped_{'block_' if blocks else ''}scaled_matmul", given


def check(gemm: Bundle, op: str, dtype: np.dtype, given: dict[str, Any]) -> np.ndarray:
    """Check the rows of groups, and that no others are written. bias gets the dtype of the result."""
    given = {name: x.astype(dtype) if name == "bias" else x for name, x in given.items()}
    placed = {name: on_device(gemm, x) for name, x in given.items()}
    shape = len(given["a"]), given["b"].shape[2]
    result = into_poison(gemm, shape, dtype, lambda e: getattr(gemm, op)(**placed, e=e))
    before = np.full(shape, np.nan, dtype)
    exact, same = (getattr(grouped_reference, f"{op}{end}")(**given, e=before) for end in ("", "_same_dtype"))
    in_group = ~np.isnan(exact).any(1)
    assert np.isnan(result[~in_group]).all()
    floor = 1e-6 * given["a"].shape[1] ** 0.5 + lost_by_hopper(gemm, given["a"], exact[in_group], dtype)
    assert_close(result[in_group], exact[in_group], same[in_group], floor)
    return result


@pytest.mark.parametrize("shape", ((48, 64), (33, 40), (144, 272)), ids=str)
@pytest.mark.parametrize("b_columns", (True, False))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", ("float16", "bfloat16", "float32"))
def test_floats(gemm: Bundle, kind: str, sizes: tuple[int, ...], b_columns: bool, shape: tuple[int, int]):
    op, given = operands(gemm, kind, sizes, *shape, b_columns)
    check(gemm, op, given["a"].dtype, given)


@pytest.mark.parametrize("shape", ((48, 64), (33, 40), (144, 272)), ids=str)
@pytest.mark.parametrize("kind", ("int8", "e4m3", "int8 blocks", "e4m3 blocks"))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("one_scale", (False, True))
def test_eight_bits(gemm: Bundle, sizes: tuple[int, ...], kind: str, one_scale: bool, shape: tuple[int, int]):
    op, given = operands(gemm, kind, sizes, *shape, one_scale=one_scale)
    check(gemm, op, FP16, given)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ("float16", "e4m3", "int8 blocks"))
def test_results_of_float32(gemm: Bundle, kind: str):
    op, given = operands(gemm, kind, (5, 40), 48, 64)
    check(gemm, op, FP32, given)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ("float16", "e4m3", "e4m3 blocks"))
def test_slots_partly_filled(gemm: Bundle, kind: str):
    """The masked layout of expert parallelism: groups have slots of equal size, and counts of rows."""
    op, given = operands(gemm, kind, (40,) * 4, 48, 144)
    counts = np.array([0, 17, 40, 1], INT32)
    result = check(gemm, op, FP16, given | {"counts": counts})
    assert (~np.isnan(result[:, 0].astype(FP32))).reshape(4, 40).sum(1).tolist() == counts.tolist()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ("float16", "int8", "e4m3 blocks"))
def test_matrices_by_index(gemm: Bundle, kind: str):
    op, given = operands(gemm, kind, (7, 30, 20), 48, 64)
    check(gemm, op, FP16, given | {"indices": np.array([2, 0, 2], INT32)})
    if kind == "float16":
        few = given | {"b": given["b"][:2], "bias": given["bias"][:1]}
        check(gemm, op, FP16, few | {"indices": np.array([1], INT32)})
        with pytest.raises(ArgumentError, match=r"given\(indices\) or matrices == groups"):
            gemm.grouped_matmul(**few, e=np.zeros((57, 48), FP16))


@pytest.mark.sampled(0)
def test_more_groups_than_are_looked_at_together(gemm: Bundle):
    sizes = tuple(np.random.default_rng(0).integers(0, 3, 600).tolist())
    op, given = operands(gemm, "float16", sizes, 16, 32)
    check(gemm, op, FP16, given)


@pytest.mark.sampled(0)
def test_offsets_of_64_bits(gemm: Bundle):
    op, given = operands(gemm, "float16", (7, 0, 20), 48, 64)
    expected = check(gemm, op, FP16, given)
    placed = {name: on_device(gemm, x) for name, x in given.items()}
    halves = gemm.device.array(given["offsets"].astype(np.int64).view(INT32))[::2]
    e = gemm.device.empty(expected.shape, FP16)
    gemm.grouped_matmul(**placed | {"offsets": halves}, e=e)
    assert np.array_equal(e.numpy(), expected)


@pytest.mark.sampled(0)
@pytest.mark.parametrize("offsets", ([0, 9, 2, 27], [-5, 3, 60, 2**31 - 1], [40, 50, 60, 70]), ids=str)
def test_wrong_numbers_on_the_device_do_no_harm(gemm: Bundle, offsets: list[int]):
    """Device arrays are not read before the call: nothing outside the rows is read or written."""
    op, given = operands(gemm, "float16", (7, 0, 20), 48, 64)
    placed = {name: on_device(gemm, x) for name, x in given.items()}
    placed |= {"offsets": gemm.device.array(np.array(offsets, INT32)),
               "counts": gemm.device.array(np.array([-3, 2**31 - 1, 5], INT32)),
               "indices": gemm.device.array(np.array([-1, 3, 2], INT32))}  # fmt: skip
    into_poison(gemm, (27, 48), FP16, lambda e: getattr(gemm, op)(**placed, e=e))
