"""Arrays of other libraries through `__cuda_array_interface__`, in the memory of the double."""

from __future__ import annotations

import gc
from functools import partial

import numpy as np
import pytest

from aot_runtime import ArgumentError, get_device
from aot_runtime.contract.dtypes import DTYPES
from tests.support.hip_double.double import Double, in_double
from tests.support.producers import Interface, Versioned, alike


@in_double()
def test_round_trip():
    device = get_device("hip:0")
    plain = [name for name in DTYPES if name != "bfloat16" and not name.startswith("float8")]
    for name in plain:
        x = device.array(np.arange(12).reshape(3, 4).astype(name))
        for array in (x, x.T, x[1:, ::2], x[::-1, 1:], x[None, :, None], x[2, 3], x[:, :0]):
            exported = array.__cuda_array_interface__
            assert exported["version"] == 3 and np.dtype(exported["typestr"]) == array.dtype
            again = device.wrap(Interface(**exported))
            assert alike(again, array)
            np.testing.assert_array_equal(again.numpy(), array.numpy())
    for name in DTYPES.keys() - set(plain):
        with pytest.raises(AttributeError, match=f"does not support {name}; use __dlpack__"):
            _ = device.empty(3, name).__cuda_array_interface__


@in_double()
def test_a_producer_is_kept_alive():
    device, double = get_device("hip:0"), Double()
    x = device.array(np.arange(1 << 20))
    producer = Interface(**x.__cuda_array_interface__)
    producer.keep = x  # type: ignore[attr-defined]
    wrapped = device.wrap(producer)
    del x, producer
    gc.collect()
    assert wrapped[9].numpy() == 9
    del wrapped
    gc.collect()
    assert double.allocated() == 0


@in_double(HIP_DOUBLE_DEVICES=2)
def test_what_is_refused():
    device, host = get_device("hip:0"), np.arange(4, dtype=np.float32)
    x, y = device.array(host), get_device("hip:1").array(host)
    good = {"shape": (4,), "typestr": "<f4", "data": (x.ptr, False), "strides": None, "version": 3}
    assert alike(device.wrap(Interface(**good)), x)
    square = {"shape": (np.int64(2), np.int64(2)), "strides": (np.int64(4), np.int64(8))}  # a layout not met before
    found = device.wrap(Interface(**good | square)).layout
    assert all(type(n) is int for n in (*found.shape, *found.strides))
    for change, words in (
        ({"typestr": ">f4"}, "dtype >f4 is not supported"),
        ({"typestr": "<c8"}, "dtype <c8 is not supported; allowed: bool"),
        ({"typestr": "|V2"}, "dtype |V2 is not supported"),
        ({"strides": (6,)}, "strides (6,) are not multiples of the 4-byte element"),
        ({"mask": x}, "the array has a mask"),
        ({"data": (y.ptr, False)}, "the array is on hip:1, not on hip:0"),
        ({"data": (host.ctypes.data, False)}, "is not memory of hip:0"),
    ):
        with pytest.raises(ArgumentError) as raised:
            device.wrap(Interface(**good | change))
        assert words in str(raised.value)
    for junk in (3, [1.0], "x", object()):
        with pytest.raises(ArgumentError, match=f"{type(junk).__name__} is not an array"):
            device.wrap(junk)


@in_double()
def test_read_only_memory_is_not_written():
    device = get_device("hip:0")
    x = device.array(np.arange(4, dtype=np.float32))
    fixed = device.wrap(Interface(**x.__cuda_array_interface__ | {"data": (x.ptr, True)}))
    for array in (fixed, device.wrap(Versioned(fixed[1:])), fixed.reshape(2, 2)):
        assert not array.layout.writeable and array.__cuda_array_interface__["data"][1]
        for write in (partial(array.fill, 0), partial(array.copy_from, array.numpy())):
            with pytest.raises(ArgumentError, match="cannot write to a read-only array"):
                write()
