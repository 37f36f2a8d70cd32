"""Exchange with other libraries through DLPack, in the memory of the double."""

from __future__ import annotations

import ctypes
import gc
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aot_runtime import ArgumentError, get_device
from aot_runtime.contract.dtypes import DTYPES, numpy_dtype
from tests.support.hip_double.double import Double, DoubleLibrary, in_double
from tests.support.producers import Exported, OneCapsule, Versioned, alike


def counted(*shape: int, dtype: Any = "float32") -> np.ndarray:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def exports() -> int:
    """Return the number of exports that keep their array."""
    gc.collect()
    return sum(type(item) is SimpleNamespace and hasattr(item, "__array_interface__") for item in gc.get_objects())


@in_double()
def test_round_trip():
    device = get_device("hip:0")
    for name, producer in itertools.product(DTYPES, (Exported, Versioned)):
        x = device.array(counted(3, 4, dtype=numpy_dtype(name)))
        for array in (x, x.T, x[1:, ::2], x[::-1, 1:], x[None, :, None], x[2, 3], x[:, :0]):
            again = device.wrap(producer(array))
            assert alike(again, array) and device.wrap(array) is array
            assert again.numpy().tobytes() == array.numpy().tobytes()
    assert array.__dlpack_device__() == (10, 0)
    del again
    gc.collect()
    assert exports() == 0


@in_double()
def test_an_export_lives_as_long_as_its_import_or_its_capsule():
    device, double = get_device("hip:0"), Double()
    x = device.array(counted(1 << 20))
    capsules = [x.__dlpack__() for _ in range(3)]
    y, address = device.wrap(Exported(x)), x.ptr
    del x, capsules[0]
    gc.collect()
    assert exports() == 2 + 1, "a capsule that nobody takes lets go"
    capsules.clear()
    assert double.allocated() > 0 and y.ptr == address and y[7].numpy() == 7
    view = y[1000:]
    del y
    gc.collect()
    assert exports() == 1 and view[0].numpy() == 1000
    del view
    gc.collect()
    assert exports() == 0 and double.allocated() == 0


@in_double()
def test_a_capsule_that_is_dropped_during_an_exception_leaves_it_alone():
    """A capsule may be dropped while an exception is on its way."""
    device, double = get_device("hip:0"), Double()
    for raised in (KeyError, KeyboardInterrupt):
        with pytest.raises(raised, match="the caller's"):
            fail(device.array(counted(1 << 20)).__dlpack__(), raised)
    assert exports() == 0 and double.allocated() == 0


def fail(*arguments: Any) -> None:
    def raise_it(kind: type[BaseException]) -> None:
        raise kind("the caller's")

    print([arguments[0], *(raise_it(kind) for kind in arguments[1:])])


@in_double()
def test_a_capsule_is_taken_once():
    device = get_device("hip:0")
    producer = OneCapsule(device.array(counted(5)).__dlpack__())
    first = device.wrap(producer)
    with pytest.raises(ArgumentError, match="PyCapsule_GetPointer"):
        device.wrap(producer)
    del producer
    gc.collect()
    assert exports() == 1 and first[4].numpy() == 4


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Tensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h, declared independently of the library."""

    _fields_ = (
        *(("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)),
        *(("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)),
        *(("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64))),
        *(("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", Deleter)),
    )


def foreign_capsule(tensor: Tensor, deleted: list[int] | None) -> Any:
    """Make a capsule as another library does; `deleted` gets the address that its deleter is called with."""
    tensor.deleter = Deleter() if deleted is None else Deleter(deleted.append)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(ctypes.addressof(tensor), b"dltensor", None)


@in_double(HIP_DOUBLE_DEVICES=2)
def test_an_export_as_a_consumer_in_c_reads_it():
    x = get_device("hip:1").array(counted(3, 4, dtype=np.float16))[1:, ::2]
    capsule = x.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    found = Tensor.from_address(get(capsule, b"dltensor"))
    assert (found.data, found.device_type, found.device_id, found.ndim) == (x.ptr, 10, 1, 2)
    assert (found.code, found.bits, found.lanes, found.byte_offset) == (2, 16, 1, 0)
    assert (found.shape[:2], found.strides[:2]) == ([2, 2], [4, 2])


@in_double()
def test_an_import_calls_the_deleter_once():
    device = get_device("hip:0")
    memory, shape = device.array(counted(12)), (ctypes.c_int64 * 2)(2, 3)
    tensor = Tensor(data=memory.ptr, device_type=10, ndim=2, code=2, bits=32, lanes=1, shape=shape, byte_offset=16)
    deleted: list[int] = []
    x = device.wrap(OneCapsule(foreign_capsule(tensor, deleted)))
    assert x.ptr == memory.ptr + 16 and x.layout.strides == (3, 1), "no strides: row-major"
    np.testing.assert_array_equal(x.numpy(), counted(12)[4:10].reshape(2, 3))
    row = x[1]
    del x
    gc.collect()
    assert not deleted
    del row
    gc.collect()
    assert deleted == [ctypes.addressof(tensor)]
    tensor.strides = (ctypes.c_int64 * 2)(-6, 2)
    tensor.byte_offset = 24
    x = device.wrap(OneCapsule(foreign_capsule(tensor, None)))
    assert x.numpy().tolist() == [[6, 8, 10], [0, 2, 4]]
    del x
    gc.collect()


@in_double(HIP_DOUBLE_DEVICES=2)
def test_imports_that_are_refused():
    device, other = get_device("hip:0"), get_device("hip:1")
    memory, shape = device.array(counted(4)), (ctypes.c_int64 * 1)(4)
    for code, bits, lanes in ((5, 64, 1), (2, 128, 1), (2, 32, 4), (3, 64, 1), (0, 4, 1)):
        deleted: list[int] = []
        tensor = Tensor(data=memory.ptr, device_type=10, ndim=1, code=code, bits=bits, lanes=lanes, shape=shape)
        with pytest.raises(ArgumentError, match=f"DLPack dtype code {code} with {bits} bits"):
            device.wrap(OneCapsule(foreign_capsule(tensor, deleted)))
        assert not deleted, "a capsule that was not taken is still its producer's"
    for producer in (OneCapsule(None, (1, 0)), OneCapsule(None, (11, 0)), np.zeros(3)):
        with pytest.raises(ArgumentError, match="the array is in host memory, not on hip:0"):
            device.wrap(producer)
    with pytest.raises(ArgumentError, match=r"said to be on DLPack device \(10, 1\), but is on \(10, 0\)"):
        other.wrap(OneCapsule(memory.__dlpack__(), (10, 1)))
    for producer in (OneCapsule(None, (2, 0)), OneCapsule(None, (10, 1))):
        with pytest.raises(ArgumentError, match=r"the array is on DLPack device \(\d+, \d\), not on hip:0"):
            device.wrap(producer)
    with pytest.raises(ArgumentError, match=r"on DLPack device \(10, 0\), not on hip:1"):
        other.wrap(memory)


@in_double()
def test_an_export_makes_the_consumers_stream_wait():
    device, double = get_device("hip:0"), Double()
    x, stream = device.empty(4, "int32"), device.stream()
    before = double.calls("hipStreamWaitEvent")
    for quiet in (None, -1, 0, 1, 2):
        x.__dlpack__(stream=quiet)
    assert double.calls("hipStreamWaitEvent") == before
    x.__dlpack__(stream=stream.handle)
    x.__dlpack__(stream=stream.handle)
    assert double.calls("hipStreamWaitEvent") == before + 2
    assert double.alive("event") == 1
    del stream
    assert double.alive("event") == 0


@in_double(HIP_DOUBLE_DEVICES=2)
def test_exports_as_the_array_api_asks_for_them():
    device = get_device("hip:0")
    x = device.array(counted(3, 4))[:, ::2]
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        np.testing.assert_array_equal(np.from_dlpack(Versioned(x), device="cpu"), counted(3, 4)[:, ::2])
    copied = device.wrap(OneCapsule(x.__dlpack__(copy=True)))
    assert copied.ptr != x.ptr and np.array_equal(copied.numpy(), x.numpy())
    assert device.wrap(OneCapsule(x.__dlpack__(copy=False, dl_device=(10, 0)))).ptr == x.ptr
    for arguments in ({"dl_device": (1, 0), "copy": False}, {"dl_device": (10, 1)}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError, match="hip:0"):
            x.__dlpack__(**arguments)


@in_double()
def test_numpy_makes_copies_only():
    x = get_device("hip:0").array(counted(3, 4))
    assert type(np.asarray(x)) is np.ndarray and np.array_equal(np.asarray(x), counted(3, 4))
    assert np.asarray(x, np.float64).dtype == np.float64
    with pytest.raises(TypeError, match="copy=False"):
        x.__array__(copy=False)


KEPT: list[object] = []


def leave_exports_behind() -> None:
    import sys

    sys.stderr = sys.stdout
    device = get_device("hip:0")
    x = device.array(counted(4))
    KEPT.extend((device.wrap(Exported(x)), x.__dlpack__(), device.stream(), device.event(), x[1:]))


def test_the_interpreter_ends_in_peace(hip_double: DoubleLibrary):
    """Arrays, capsules, streams and events alive at the end are left to the system, without a message."""
    assert hip_double.run(leave_exports_behind) == ""
