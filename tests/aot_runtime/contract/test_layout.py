"""Properties of layouts, against numpy."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aot_runtime.contract.layout import contiguous_order, make_layout, packed_strides
from aot_runtime.contract.overlap import is_nested
from tests.support.contracts import HERE, layout

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
strides = st.lists(st.integers(-6, 12), min_size=4, max_size=4).map(tuple)


@given(shapes, st.randoms(use_true_random=False))
def test_packed_strides_are_those_of_a_transposed_numpy_array(shape: tuple[int, ...], random):
    order = list(range(len(shape)))
    random.shuffle(order)
    packed = np.empty([shape[dim] for dim in order], np.int8)
    back = packed.transpose(np.argsort(order)) if order else packed
    found = packed_strides(shape, tuple(order))
    if 0 not in shape:
        for dim, extent in enumerate(shape):
            assert extent == 1 or found[dim] == back.strides[dim]


@given(shapes, strides)
def test_what_a_layout_says_of_its_offsets(shape: tuple[int, ...], steps: tuple[int, ...]):
    found = layout(*shape, strides=steps[: len(shape)])
    offsets = [
        sum(i * stride for i, stride in zip(index, found.strides, strict=True))
        for index in itertools.product(*map(range, found.shape))
    ]
    assert (found.low, found.high) == ((min(offsets), max(offsets) + 1) if offsets else (0, 0))
    assert found.size == len(offsets)
    assert not is_nested(shape, found.strides) or len(set(offsets)) == len(offsets), "an overlap is never overlooked"
    order, filled = found.packed_order, sorted(offsets) == list(range(len(offsets)))
    negative = offsets and any(stride < 0 and extent > 1 for stride, extent in zip(found.strides, shape, strict=True))
    assert (order is not None) == (filled and not negative)
    if order is not None and 0 not in shape:
        rebuilt = packed_strides(shape, order)
        assert all(a == b or n == 1 for a, b, n in zip(rebuilt, found.strides, shape, strict=True))


slices = st.tuples(st.integers(0, 3), st.integers(4, 9), st.sampled_from([1, 2, 3, -1, -2]))


@given(st.permutations(range(3)), st.tuples(slices, slices, slices))
def test_every_view_of_an_array_is_nested(order: list[int], parts):
    view = np.empty((9, 8, 9), np.int8)[tuple(np.s_[a:b:c] if c > 0 else np.s_[b:a:c] for a, b, c in parts)]
    view = view.transpose(order)
    assert is_nested(view.shape, view.strides)


def test_a_layout_is_interned_and_describes_itself():
    first = ("hip", 0), "float16", (2, 3), (3, 1), True
    assert make_layout(HERE, "float16", (2, 3), (3, 1), True) is make_layout(*first)
    assert make_layout(*first, False, True) is make_layout(*first, writeable=True) is make_layout(*first)
    for position, other in enumerate((("hip", 1), "bfloat16", (3, 2), (3, 2), False)):
        found = make_layout(*(other if i == position else value for i, value in enumerate(first)))
        assert found is not make_layout(*first) and found != make_layout(*first)
    assert repr(layout(2, 3, dtype="int8")) == "int8[2, 3] strides [3, 1]"
    assert repr(layout(2, dtype="int8", aligned=False)) == "int8[2] strides [1] unaligned"


def test_steps_are_zero_where_there_is_one_element():
    found = layout(1, 5, 1, strides=(77, 2, -3))
    assert found.kernel_strides == (0, 2, 0) and found.strides == (77, 2, -3)


def test_contiguous_dims_are_packed_innermost():
    for contiguous, order in (((), (0, 1, 2)), ((2,), (0, 1, 2)), ((0,), (1, 2, 0)), ((2, 0), (1, 2, 0))):
        assert contiguous_order(3, contiguous) == order
