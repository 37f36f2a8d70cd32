"""Exchange with other libraries: DLPack capsules and `__cuda_array_interface__`, in the memory of the double."""

from __future__ import annotations

import ctypes
import gc
import itertools
import re
from typing import Any

import numpy as np
import pytest

from aot_runtime import ArgumentError, DeviceArray, get_device
from aot_runtime.contract.dtypes import DTYPES, numpy_dtype
from aot_runtime.device.dlpack import _exports
from tests.support.hip_double.double import Double, DoubleLibrary, in_double


def counted(*shape: int, dtype: Any = "float32") -> np.ndarray:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def views(x: DeviceArray) -> list[DeviceArray]:
    """Views of a [3, 4] array."""
    return [x, x.T, x[1:, ::2], x[::-1, 1:], x[None, :, None], x[2, 3], x[:, :0]]


def alike(foreign: DeviceArray, own: DeviceArray) -> bool:
    """Whether a wrapped array has the layout of one of this library's."""
    assert foreign.layout.foreign and not own.layout.foreign
    return (foreign.dtype, foreign.shape, foreign.strides) == (own.dtype, own.shape, own.strides)


class Exported:
    """Another library's array over a device array: what it exports, in the way that libraries before DLPack 1 had."""

    def __init__(self, array: DeviceArray):
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream: int | None = None) -> Any:
        return self.array.__dlpack__(stream=stream)


class Versioned(Exported):
    """As `Exported`, since DLPack 1."""

    def __dlpack__(self, stream: int | None = None, max_version: Any = None, **arguments: Any) -> Any:
        return self.array.__dlpack__(stream=stream, max_version=max_version, **arguments)


@in_double()
def test_dlpack_round_trip():
    device = get_device("hip:0")
    for name, producer in itertools.product(DTYPES, (Exported, Versioned)):
        for array in views(device.array(counted(3, 4, dtype=numpy_dtype(name)))):
            again = device.wrap(producer(array))
            assert again is not array and again.ptr == array.ptr and alike(again, array)
            assert again.numpy().tobytes() == array.numpy().tobytes()
    assert array.__dlpack_device__() == (10, 0) and device.wrap(array) is array
    del again
    gc.collect()
    assert not _exports


@in_double()
def test_an_export_lives_as_long_as_its_import():
    device, double = get_device("hip:0"), Double()
    x = device.array(counted(1 << 20))
    y = device.wrap(Exported(x))
    address = x.ptr
    assert len(_exports) == 1
    del x
    gc.collect()
    assert double.allocated() > 0 and y.ptr == address and y[7].numpy() == 7
    view = y[1000:]
    del y
    gc.collect()
    assert len(_exports) == 1 and view[0].numpy() == 1000
    del view
    gc.collect()
    assert not _exports and double.allocated() == 0


@in_double()
def test_a_capsule_that_nobody_takes_lets_go():
    device, double = get_device("hip:0"), Double()
    x = device.array(counted(1 << 20))
    capsules = [x.__dlpack__() for _ in range(3)]
    assert len(_exports) == 3
    del x, capsules[0]
    gc.collect()
    assert len(_exports) == 2 and double.allocated() > 0
    capsules.clear()
    gc.collect()
    assert not _exports and double.allocated() == 0


class OneCapsule:
    """A producer that hands out a capsule that it was given."""

    def __init__(self, capsule: Any, device: tuple[int, int] = (10, 0)):
        self.capsule, self.device = capsule, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: Any = None) -> Any:
        assert stream == -1
        return self.capsule


@in_double()
def test_a_capsule_is_taken_once():
    device = get_device("hip:0")
    producer = OneCapsule(device.array(counted(5)).__dlpack__())
    first = device.wrap(producer)
    with pytest.raises(ValueError, match="PyCapsule_GetPointer"):
        device.wrap(producer)
    del producer
    gc.collect()
    assert len(_exports) == 1 and first[4].numpy() == 4


class Tensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h, written down again: the test's own reading of it."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim",
        ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape",
        ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )  # fmt: skip


def capsule_pointer(capsule: Any) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return get(capsule, b"dltensor")


@in_double(HIP_DOUBLE_DEVICES=2)
def test_an_export_as_a_consumer_in_c_reads_it():
    x = get_device("hip:1").array(counted(3, 4, dtype=np.float16))[1:, ::2]
    capsule = x.__dlpack__()
    found = Tensor.from_address(capsule_pointer(capsule))
    assert (found.data, found.device_type, found.device_id, found.ndim) == (x.ptr, 10, 1, 2)
    assert (found.code, found.bits, found.lanes, found.byte_offset) == (2, 16, 1, 0)
    assert (found.shape[:2], found.strides[:2]) == ([2, 2], [4, 2])
    del x, capsule


def foreign_capsule(tensor: Tensor, deleted: list[int]) -> Any:
    """A capsule as another library makes them; `deleted` gets the address that its deleter is called with."""
    tensor.deleter = type(tensor.deleter)(deleted.append)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(ctypes.addressof(tensor), b"dltensor", None)


@in_double()
def test_an_import_calls_the_deleter_once():
    device = get_device("hip:0")
    memory = device.array(counted(12))
    shape = (ctypes.c_int64 * 2)(2, 3)
    tensor = Tensor(data=memory.ptr, device_type=10, ndim=2, code=2, bits=32, lanes=1, shape=shape, byte_offset=16)
    deleted: list[int] = []
    x = device.wrap(OneCapsule(foreign_capsule(tensor, deleted)))
    assert x.ptr == memory.ptr + 16 and x.layout.strides == (3, 1)  # no strides: row-major
    np.testing.assert_array_equal(x.numpy(), counted(12)[4:10].reshape(2, 3))
    row = x[1]
    del x
    gc.collect()
    assert not deleted
    del row
    gc.collect()
    assert deleted == [ctypes.addressof(tensor)]


@in_double()
def test_an_import_with_strides_and_without_deleter():
    device = get_device("hip:0")
    memory = device.array(counted(12, dtype="int64"))
    shape, strides = (ctypes.c_int64 * 2)(2, 3), (ctypes.c_int64 * 2)(-6, 2)
    tensor = Tensor(
        data=memory.ptr + 48, device_type=10, ndim=2, code=0, bits=64, lanes=1, shape=shape, strides=strides
    )
    capsule = foreign_capsule(tensor, [])
    tensor.deleter = type(tensor.deleter)()
    x = device.wrap(OneCapsule(capsule))
    assert x.numpy().tolist() == [[6, 8, 10], [0, 2, 4]]
    del x
    gc.collect()


@in_double(HIP_DOUBLE_DEVICES=2)
def test_imports_that_are_refused():
    device, other = get_device("hip:0"), get_device("hip:1")
    memory = device.array(counted(4))
    shape = (ctypes.c_int64 * 1)(4)
    for code, bits, lanes in ((5, 64, 1), (2, 128, 1), (2, 32, 4), (3, 64, 1), (0, 4, 1)):
        deleted: list[int] = []
        tensor = Tensor(data=memory.ptr, device_type=10, ndim=1, code=code, bits=bits, lanes=lanes, shape=shape)
        with pytest.raises(ArgumentError, match=f"DLPack dtype code {code} with {bits} bits"):
            device.wrap(OneCapsule(foreign_capsule(tensor, deleted)))
        assert not deleted  # the capsule was not taken: it is still its producer's
    for producer in (OneCapsule(None, (2, 0)), OneCapsule(None, (10, 1))):
        where = tuple(producer.__dlpack_device__())
        with pytest.raises(ArgumentError, match=re.escape(f"the array is on DLPack device {where}, not on hip:0")):
            device.wrap(producer)
    for producer in (OneCapsule(None, (1, 0)), OneCapsule(None, (11, 0)), np.zeros(3)):
        with pytest.raises(ArgumentError, match="the array is in host memory, not on hip:0"):
            device.wrap(producer)
    with pytest.raises(ArgumentError, match=r"on DLPack device \(10, 0\), not on hip:1"):
        other.wrap(memory)
    with pytest.raises(ArgumentError, match=r"said to be on DLPack device \(10, 1\), but is on \(10, 0\)"):
        other.wrap(OneCapsule(memory.__dlpack__(), (10, 1)))
    for junk in (3, [1.0], "x", object()):
        with pytest.raises(ArgumentError, match=f"{type(junk).__name__} is no array"):
            device.wrap(junk)


class Interface:
    """A producer of `__cuda_array_interface__` alone, as numba's and old cupy's arrays are."""

    def __init__(self, **interface: Any):
        self.__cuda_array_interface__ = interface


@in_double()
def test_interface_round_trip():
    device = get_device("hip:0")
    plain = [name for name in DTYPES if name != "bfloat16" and not name.startswith("float8")]
    for name in plain:
        for array in views(device.array(counted(3, 4, dtype=name))):
            exported = array.__cuda_array_interface__
            assert exported["version"] == 3 and np.dtype(exported["typestr"]) == array.dtype
            again = device.wrap(Interface(**exported))
            assert alike(again, array) and again.ptr == array.ptr
            np.testing.assert_array_equal(again.numpy(), array.numpy())
    for name in DTYPES.keys() - set(plain):
        with pytest.raises(AttributeError, match=f"has no {name}; use __dlpack__"):
            _ = device.empty(3, name).__cuda_array_interface__
        assert not hasattr(device.empty(3, name), "__cuda_array_interface__")


@in_double()
def test_interface_keeps_its_producer_alive():
    device, double = get_device("hip:0"), Double()
    x = device.array(counted(1 << 20))
    producer = Interface(**x.__cuda_array_interface__)
    producer.keep = x
    del x
    wrapped = device.wrap(producer)
    del producer
    gc.collect()
    assert wrapped[9].numpy() == 9
    del wrapped
    gc.collect()
    assert double.allocated() == 0


@in_double(HIP_DOUBLE_DEVICES=2)
def test_interfaces_that_are_refused():
    device = get_device("hip:0")
    x, y = device.array(counted(4)), get_device("hip:1").array(counted(4))
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
        ({"data": (counted(4).ctypes.data, False)}, "is not memory of hip:0"),
    ):
        with pytest.raises(ArgumentError) as raised:
            device.wrap(Interface(**good | change))
        assert words in str(raised.value)


@in_double()
def test_an_export_makes_the_consumers_stream_wait():
    device, double = get_device("hip:0"), Double()
    x, stream = device.array(counted(4)), device.stream()
    before = double.calls("hipStreamWaitEvent")
    for quiet in (None, -1, 0, 1, 2):
        x.__dlpack__(stream=quiet)
    assert double.calls("hipStreamWaitEvent") == before
    x.__dlpack__(stream=stream.handle)
    assert double.calls("hipStreamWaitEvent") == before + 1
    assert double.alive("event") == 0


@in_double(HIP_DOUBLE_DEVICES=2)
def test_exports_as_the_array_api_asks_for_them():
    device = get_device("hip:0")
    x = device.array(counted(3, 4))[:, ::2]
    host = np.from_dlpack(Versioned(x), device="cpu") if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else x.numpy()
    np.testing.assert_array_equal(host, counted(3, 4)[:, ::2])
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


@in_double()
def test_read_only_memory_of_others_is_not_written():
    device = get_device("hip:0")
    x = device.array(counted(4))
    given = x.__cuda_array_interface__
    fixed = device.wrap(Interface(**given | {"data": (x.ptr, True)}))
    again = device.wrap(Versioned(fixed[1:]))
    for array in (fixed, again, fixed.reshape(2, 2)):
        assert not array.layout.writeable and array.__cuda_array_interface__["data"][1]
        for write in (lambda: array.fill(0), lambda: array.copy_from(array.numpy())):  # noqa: B023
            with pytest.raises(ArgumentError, match="cannot write to a read-only array"):
                write()


def leave_exports_behind() -> None:
    device = get_device("hip:0")
    x = device.array(counted(4))
    global kept
    kept = (device.wrap(Exported(x)), x.__dlpack__(), device.stream(), device.event(), x[1:])


def test_the_interpreter_ends_in_peace(hip_double: DoubleLibrary):
    """Arrays, capsules, streams and events that are alive at the end are left to the system, without a word."""
    script = f"import sys; sys.path.insert(0, {__file__.rpartition('/')[0]!r})\nimport test_exchange as t\n"
    assert hip_double.run(script + "import sys; sys.stderr = sys.stdout\nt.leave_exports_behind()") == ""
