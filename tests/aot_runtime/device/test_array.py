"""`DeviceArray` against numpy, in the memory of the double of libamdhip64."""

from __future__ import annotations

import gc
import operator
from itertools import permutations
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices

from aot_runtime import ArgumentError, get_device
from aot_runtime.contract.dtypes import DTYPES, numpy_dtype
from aot_runtime.contract.layout import make_layout, packed_strides
from aot_runtime.device.array import DeviceArray
from aot_runtime.device.views import _reshaped_strides
from tests.support.hip_double.double import Double, in_double

shapes = array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
many = settings(max_examples=150, deadline=None, database=None)


def counted(shape: tuple[int, ...], dtype: str = "int16") -> np.ndarray:
    return np.arange(int(np.prod(shape)), dtype=dtype).reshape(shape)


def check_same(ours: DeviceArray, theirs: np.ndarray) -> None:
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert (ours.size, ours.ndim, ours.nbytes) == (theirs.size, theirs.ndim, theirs.nbytes)
    found = ours.numpy()
    assert found.shape == theirs.shape and found.dtype == theirs.dtype and found.flags.c_contiguous
    np.testing.assert_array_equal(found, theirs)
    if theirs.size:
        for a, b, extent in zip(ours.strides, theirs.strides, theirs.shape, strict=True):
            assert extent == 1 or a == b


def draw_shape(data: st.DataObject, size: int) -> tuple[int, ...]:
    """Draw a shape with this number of elements."""
    if size == 0:
        return data.draw(st.sampled_from([(0,), (3, 0), (0, 2, 1)]))
    shape: list[int] = []
    while size > 1:
        shape.append(data.draw(st.sampled_from([n for n in range(2, size + 1) if size % n == 0])))
        size //= shape[-1]
    return tuple(shape + [1] * data.draw(st.integers(0, 2)))


@in_double()
def test_views_are_numpys():
    device = get_device("hip:0")

    @many
    @given(st.data())
    def check(data):
        theirs = counted(data.draw(shapes))
        ours = device.array(theirs)
        for _ in range(data.draw(st.integers(1, 3))):
            match data.draw(st.sampled_from(["index", "transpose", "T", "reshape"])):
                case "index":
                    key = data.draw(basic_indices(theirs.shape, allow_newaxis=True, allow_ellipsis=True, max_dims=6))
                    ours, theirs = ours[key], np.asarray(theirs[key])
                case "transpose" if theirs.ndim:
                    order = data.draw(st.permutations(range(theirs.ndim)))
                    order = [axis - theirs.ndim if data.draw(st.booleans()) else axis for axis in order]
                    ours, theirs = ours.transpose(*order), theirs.transpose(*order)
                case "reshape":
                    wanted = draw_shape(data, theirs.size)
                    reshaped = theirs.reshape(wanted)
                    if theirs.size and not np.shares_memory(reshaped, theirs):
                        with pytest.raises(ArgumentError, match="would need a copy"):
                            ours.reshape(*wanted)
                    else:
                        ours, theirs = ours.reshape(*wanted), reshaped
                case _:
                    ours, theirs = ours.T, theirs.T
            check_same(ours, theirs)
            assert theirs.ndim == 0 or len(ours) == len(theirs)

    check()


def factorisations(size: int) -> list[tuple[int, ...]]:
    """Return every shape with this number of elements whose extents are all above 1."""
    splits = [(n, rest) for n in range(2, size + 1) if size % n == 0 for rest in factorisations(size // n)]
    return [(n, *rest) for n, rest in splits] or [()]


def test_a_view_of_another_shape_is_there_where_numpy_has_one():
    """Views are permuted, stepped, backwards, broadcast, and have dims of one element anywhere."""
    packed = counted((2, 3, 4))
    bases = [packed.transpose(order) for order in permutations(range(3))]
    bases += [counted((4, 6, 8))[::2, ::2, ::2], counted((2, 6, 4))[:, ::2], packed[::-1, ::-1, ::-1], packed[:, ::-1]]
    bases += [np.broadcast_to(packed[:, :1], (2, 3, 4)), np.broadcast_to(packed[0, 0, 0], (2, 3, 4))]
    for base in (*bases, bases[1][:, None, :, :, None], packed[:1, :1, :1], packed[1:, 2]):
        strides = tuple(stride // base.itemsize for stride in base.strides)
        layout = make_layout(("hip", 0), base.dtype.name, base.shape, strides, True)
        for shape in factorisations(base.size):
            for wanted in (shape, (1, *shape), (*shape[:1], 1, *shape[1:], 1)):
                theirs = base.reshape(wanted)
                found = _reshaped_strides(layout, wanted)
                assert (found is not None) == np.shares_memory(theirs, base), (base.shape, base.strides, wanted)
                for extent, ours, stride in zip(wanted, found or (), theirs.strides, strict=found is not None):
                    assert extent == 1 or ours * base.itemsize == stride, (base.shape, base.strides, wanted)


@in_double()
def test_layouts_of_views():
    x = get_device("hip:0").array(counted((4, 8)))
    assert x[1].layout.aligned and not x[:, 1:].layout.aligned
    assert x[::-1].layout.low == -24 and x[::-1].ptr == x.ptr + 48
    assert x[np.int64(2), -1].numpy() == 23
    assert [int(row.numpy()[0]) for row in x] == [0, 8, 16, 24]
    for shape in ((np.int64(8), 4), (-1, 4), (2, -1, 2)):
        assert all(type(n) is int for n in x.reshape(*shape).layout.shape)


@in_double()
def test_wrong_views():
    x = get_device("hip:0").array(counted((4, 8)))
    for key in (4, -5, (0, 8), (0, 0, 0), (..., ...), True, [0, 1], "a", 1.0, (np.array([0, 1]),)):
        with pytest.raises(ArgumentError, match="index"):
            x[key]
    with pytest.raises(ValueError, match="zero"):
        x[::0]
    for axes in ((0,), (0, 0), (0, 2), (2, 3), (-3, 0), (0, 1, 2)):
        with pytest.raises(ArgumentError, match="is not a permutation of 2 dims"):
            x.transpose(*axes)
    with pytest.raises(ArgumentError, match="is not a permutation of 0 dims"):
        x[0, 0].transpose(0)
    for shape in ((33,), (-1, 5), (-1, -1), (-4, -8), (0, -1), (2**62, 2**62), ()):
        with pytest.raises(ArgumentError, match="sizes differ"):
            x.reshape(*shape)
    with pytest.raises(ArgumentError, match="sizes differ"):
        x[:0].reshape(2**32, 2**32)  # whose product is 0 in 64 bits
    with pytest.raises(ArgumentError, match="would need a copy"):
        x.T.reshape(32)
    with pytest.raises(TypeError, match="without dims"):
        len(x[0, 0])


@in_double()
def test_every_dtype_makes_the_round_trip():
    device = get_device("hip:0")
    for name in DTYPES:
        host = (np.arange(24) % 7).astype(numpy_dtype(name)).reshape(2, 3, 4)
        array = device.array(host)
        assert array.dtype == host.dtype and array.layout.dtype == name and array.layout.itemsize == host.itemsize
        for ours, theirs in ((array, host), (array[:, ::-2].T, host[:, ::-2].T), (array[1, 2, 3], host[1, 2, 3])):
            found = ours.numpy()
            assert found.dtype == host.dtype and found.tobytes() == np.ascontiguousarray(theirs).tobytes()
    assert device.empty(3, ml_dtypes.bfloat16).layout.dtype == "bfloat16"
    assert device.empty(3, "float8_e4m3fnuz").layout.itemsize == 1


@in_double()
def test_copy_from():
    device = get_device("hip:0")

    @many
    @given(shapes, st.randoms(use_true_random=False), st.booleans())
    def check(shape, random, strided):
        order = list(range(len(shape)))
        random.shuffle(order)
        target = device.empty(shape, "int16", order=tuple(order))
        assert target.layout.strides == packed_strides(shape, tuple(order))
        wide = counted((*shape, 2))
        host = wide[..., 0] if strided else wide[..., 1].copy()
        target.copy_from(host)
        np.testing.assert_array_equal(target.numpy(), host)
        target.fill(0xFF)
        at = np.s_[..., None, :] if shape else np.s_[None]
        target[at].copy_from(host[at])
        np.testing.assert_array_equal(target.numpy(), host)

    check()


@in_double()
def test_fill_and_copies_that_are_refused():
    x = get_device("hip:0").array(counted((4, 8)))
    for view in (x[:, ::2], x[:, 1:], x[::-1]):
        with pytest.raises(ArgumentError, match="cannot write to an array with gaps or overlap"):
            view.copy_from(np.zeros(view.shape, np.int16))
        with pytest.raises(ArgumentError, match="cannot write to an array with gaps or overlap"):
            view.fill(0)
    for shape, dtype in (((4, 7), "int16"), ((4, 8), "int32"), ((4, 8), ">i2")):
        with pytest.raises(ArgumentError, match=rf"cannot copy {dtype}\[4, {shape[1]}\] to int16\[4, 8\]"):
            x.copy_from(np.zeros(shape, dtype))
    np.testing.assert_array_equal(x.numpy(), counted((4, 8)))
    x[1:3].fill(0x01)
    assert (x.numpy()[1:3] == 0x0101).all() and (x.numpy()[[0, 3]] == counted((4, 8))[[0, 3]]).all()
    x.T.fill(0xFF)
    assert (x.numpy() == -1).all()


@in_double()
def test_arrays_of_one_number():
    device = get_device("hip:0")
    for dtype in DTYPES:
        kind = numpy_dtype(dtype)
        for shape in ((3, 5), 7, (), (0, 4)):
            given = dtype if shape == 7 else kind
            check_same(device.zeros(shape, given), np.zeros(shape, kind))
            for value in (1, 0) if dtype == "bool" else (1, 0, 100):
                check_same(device.full(shape, value, given), np.full(shape, value, kind))
    check_same(device.full((2, 3), -1, "int32"), np.full((2, 3), -1, np.int32))
    check_same(device.full((2, 3), -np.inf, "bfloat16"), np.full((2, 3), -np.inf, ml_dtypes.bfloat16))
    for turned in (device.full((2, 3), 1.5, "float32", order=(1, 0)), device.zeros((2, 3), "float32", order=(1, 0))):
        assert turned.strides == (4, 8) and len(set(turned.numpy().flat)) == 1
    check_same(device.array([[1.0, 2.5]], "bfloat16"), np.array([[1.0, 2.5]], ml_dtypes.bfloat16))
    for value, dtype in ((300, "uint8"), (np.nan, "int32"), ("one", "float32"), ([1, 2], "int8")):
        with pytest.raises(ArgumentError, match=f"cannot fill an array of {dtype}: "):
            device.full((2, 2), value, dtype)
    with pytest.raises(ArgumentError, match="dtype float128 is not supported"):
        device.full(2, 1, "float128")


@in_double()
def test_numbers_are_written_in_the_order_of_a_stream():
    device = get_device("hip:0")
    stream = device.stream()
    with mock.patch.object(device.driver, "fill") as fill, mock.patch.object(device, "write") as write:
        arrays = [device.full(6, value, "float32", stream=stream) for value in (0, 0.1)]
        arrays.append(device.zeros(6, "float32", stream=stream))
    assert fill.mock_calls == [mock.call(0, array.ptr, 0, 24, stream.handle) for array in arrays[::2]]
    assert [(call.args[0], call.args[2]) for call in write.mock_calls] == [(arrays[1].ptr, stream.handle)]
    assert {array.owner.stream for array in arrays} == {stream.handle}


@in_double()
def test_what_is_in_an_array_is_asked_of_numpy():
    device = get_device("hip:0")
    array, other = device.array(counted((3,))), device.array(counted((3,)))
    for compare in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
        for value in (other, array, 1, None, counted((3,))):
            with pytest.raises(TypeError, match=r"int16\[3\].* cannot be compared on the device: .* numpy\(\)"):
                compare(array, value)
        assert compare(counted((3,)), array).tolist() == compare(counted((3,)), counted((3,))).tolist()
    for asked in (array, array[:1], array[0], array[:0]):
        with pytest.raises(TypeError, match=r"depends on its content: .*numpy\(\)"):
            bool(asked)
    assert len({array, other, array}) == 2 and {array: 1}[array] == 1
    assert [int(row.numpy()) for row in array] == [int(row.numpy()) for row in reversed(array)][::-1] == [0, 1, 2]
    with pytest.raises(TypeError, match="without dims"):
        iter(array[0])
    shown = array._repr_html_()
    assert "(3,)" in shown and "int16" in shown and "hip:0" in shown


@in_double()
def test_there_is_no_current_stream():
    stream = get_device("hip:0").stream()
    with pytest.raises(TypeError, match="no current stream to set with `with`: pass stream="), stream:
        raise AssertionError("not reached")
    assert repr(stream) == f"<stream {stream.handle:#x} on hip:0>"
    event = stream.record()
    assert repr(event) == f"<event {event.handle:#x} on hip:0>"
    with get_device("hip:0").capture(stream) as graph:
        assert repr(graph) == "<graph without work on hip:0>"
    assert repr(graph) == f"<graph {graph.handle:#x} on hip:0>"


@in_double()
def test_empty_arrays():
    device, double = get_device("hip:0"), Double()
    for shape in ((0,), (3, 0), (0, 3), (2, 0, 4)):
        x = device.array(np.zeros(shape, np.float32))
        assert (x.shape, x.ptr, x.nbytes, x.owner) == (shape, 0, 0, None)
        x.copy_from(np.zeros(shape, np.float32))
        x.fill(1)
        check_same(x.T, np.zeros(shape, np.float32).T)
    assert double.alive("memory") == 0


@in_double()
def test_arrays_that_cannot_be():
    device = get_device("hip:0")
    for dtype, words in {"complex64": "complex64", "bfloat17": "bfloat17", object: "object", "U3": "str", 3: 3}.items():
        with pytest.raises(ArgumentError, match=f"dtype '?{words}.*is not supported; allowed: bool, int8"):
            device.empty((2,), dtype)
    for shape, order in (((2, -1), None), ((2, 3), (0,)), ((2, 3), (0, 0)), ((2, 3), (1, 2))):
        with pytest.raises(ArgumentError, match="no array has shape"):
            device.empty(shape, "float32", order=order)
    with pytest.raises(ArgumentError, match="dtype object is not supported"):
        device.array([object()])


@in_double(HIP_DOUBLE_DEVICES=2)
def test_arrays_live_on_their_device_as_long_as_their_views():
    first, second, double = get_device("hip:0"), get_device("hip:1"), Double()
    x, y = first.array(counted((1 << 20,))), second.array(counted((200,)))
    assert repr(y) == "DeviceArray(int16[200] strides [1] elements on hip:1)"
    assert (x.layout.device, y.layout.device) == (("hip", 0), ("hip", 1))
    assert first.driver is second.driver
    assert (first.driver.device_of(x.ptr), first.driver.device_of(y.ptr)) == (0, 1)
    check_same(y[::3], counted((200,))[::3])
    view = x[5:]
    del x
    gc.collect()
    assert double.allocated() >= 2 << 20
    del view
    first.memory.trim()
    assert double.allocated() == 0
