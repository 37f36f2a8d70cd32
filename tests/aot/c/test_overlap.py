"""The rule of overlap: Python and C agree, no overlap is missed, and views of one array are told apart.

numpy's `shares_memory` is exact.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from aot_runtime.contract.overlap import Distances, Strided, is_nested
from tests.support.c_interface.calling import PlannedInC, Tensor, tensor
from tests.support.sample_index import sample_index

ROOM = np.zeros(1 << 14, np.uint8)
DTYPES = {1: "uint8", 2: "float16", 4: "float32", 8: "int64"}
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> PlannedInC:
    return PlannedInC(sample_index(), tmp_path_factory.mktemp("overlap"))


def random_view(drawn: random.Random) -> Array:
    """Return a view of the room with strides of all kinds, also ones that no slice of an array has."""
    itemsize = drawn.choice((1, 1, 2, 4, 8))
    rank = drawn.randrange(5)
    shape = tuple(drawn.choice((0, 1, 2, 3, 4, 7)) if drawn.random() < 0.9 else 12 for _ in range(rank))
    steps = (-8, -3, -1, 0, 1, 2, 3, 4, 6, 8, 15, 40, 64)
    strides = tuple(drawn.choice(steps) * itemsize for _ in range(rank))
    low = sum(min(0, (n - 1) * step) for n, step in zip(shape, strides, strict=True) if n)
    offset = drawn.randrange(0, 256, drawn.choice((1, itemsize))) - low
    flat = ROOM[offset : offset + itemsize].view(np.dtype(f"V{itemsize}"))
    return np.lib.stride_tricks.as_strided(flat, shape, strides)


def random_slice(whole: Array, drawn: random.Random) -> tuple[Any, ...]:
    found = []
    for extent in whole.shape:
        step = drawn.choice((1, 1, 1, 2, 3))
        start = drawn.randrange(extent)
        found.append(drawn.choice((start, slice(start, drawn.randrange(start, extent) + 1, step))))
    return tuple(found)


def in_python(one: Array, other: Array) -> bool:
    places = (Strided(array.itemsize, tuple(zip(array.shape, array.strides, strict=True))) for array in (one, other))
    return Distances(*places).may_overlap(address(other) - address(one))


def address(array: Array) -> int:
    return array.__array_interface__["data"][0]


def as_tensor(array: Array) -> Tensor:
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return tensor(address(array), DTYPES[array.itemsize], array.shape, strides)


def test_python_and_c_agree_and_miss_no_overlap(c: PlannedInC):
    drawn = random.Random(3)
    seen: Counter[tuple[bool, bool]] = Counter()
    for _ in range(3000):
        one, other = random_view(drawn), random_view(drawn)
        found, shares = in_python(one, other), bool(np.shares_memory(one, other))
        tensors = as_tensor(one), as_tensor(other)
        arrays = [(array.shape, array.strides, array.itemsize, address(array)) for array in (one, other)]
        assert found or not shares, f"Python misses an overlap of {arrays}"
        assert found == in_python(other, one), f"in Python, the order of arrays matters: {arrays}"
        assert found == c.may_overlap(*tensors) == c.may_overlap(*tensors[::-1]), f"C differs from Python: {arrays}"
        seen[found, shares] += 1
    assert min(seen[True, True], seen[False, False]) > 300, seen


def test_python_and_c_agree_on_what_is_nested(c: PlannedInC):
    drawn = random.Random(4)
    seen: Counter[bool] = Counter()
    for _ in range(3000):
        array = random_view(drawn)
        nested = is_nested(array.shape, array.strides, array.itemsize)
        assert nested == c.is_nested(as_tensor(array))
        seen[nested] += 1
        if nested and array.size:
            first = array.itemsize * np.arange(1)
            for extent, stride in zip(array.shape, array.strides, strict=True):
                first = (first[:, None] + stride * np.arange(extent)).ravel()
            bytes_of = (np.sort(first)[:, None] + np.arange(array.itemsize)).ravel()
            assert (np.diff(bytes_of) > 0).all(), (array.shape, array.strides)
    assert min(seen.values()) > 500


def test_slices_of_one_array_are_apart_if_they_differ_along_a_dim():
    """Parts of a packed qkv tensor, rows of a cache, and even and odd elements are such slices."""
    drawn = random.Random(5)
    for _ in range(2000):
        shape = tuple(drawn.choice((2, 4, 6)) for _ in range(drawn.randrange(1, 5)))
        whole = ROOM[: 2 * np.prod(shape)].view(np.float16).reshape(shape).transpose(
            drawn.sample(range(len(shape)), len(shape))
        )  # fmt: skip
        one, other = random_slice(whole, drawn), random_slice(whole, drawn)
        dim = drawn.randrange(len(shape))
        cut = drawn.randrange(1, whole.shape[dim])
        parts = drawn.choice(((slice(None, cut), slice(cut, None)), (slice(None, None, 2), slice(1, None, 2))))
        first, second = (
            whole[tuple(part if i == dim else item for i, item in enumerate(items))]
            for part, items in zip(parts, (one, other), strict=True)
        )
        assert not np.shares_memory(first, second)
        assert not in_python(first, second), (whole.strides, first.shape, first.strides, second.shape, second.strides)


def test_the_time_does_not_grow_with_the_size_of_arrays(c: PlannedInC):
    """An exact answer for these layouts is a hard problem of integers."""
    steps = [2**40 + 2**k + 1 for k in range(8)]
    far = [tensor(1 << 50, "uint8", (7,) * 8, tuple(step >> shift for step in steps)) for shift in (0, 1)]
    assert c.may_overlap(*far)
