"""Arguments of other libraries: host arrays are copied, emulated memory is never shared, others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle, open_bundle
from aot_runtime.device.dlpack import CPU, Exchanged, export_capsule
from tests.support.emulation.bundling import on_demand
from tests.support.hip_double.double import in_double
from tests.support.reference_launches import open_over_double

BF16 = np.dtype(ml_dtypes.bfloat16)


class OnHost:
    """An array of a library that keeps its memory on the host."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = CPU, writeable: bool = True):
        self.array, self.device, self.writeable = array, device, writeable

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: None = None, max_version: tuple[int, int] | None = None) -> Any:
        strides = tuple(stride // self.array.itemsize for stride in self.array.strides)
        address = self.array.__array_interface__["data"][0]
        shape = self.array.shape
        given = Exchanged(address, self.array.dtype.name, shape, strides, self.array, self.device, self.writeable)
        return export_capsule(given, max_version is not None)


@pytest.fixture(scope="module")
def rows() -> Bundle:
    return on_demand("rows", "op=softmax,T=bfloat16")


@pytest.mark.parametrize("device", (CPU, (3, 0), (11, 0)))
def test_memory_of_the_host_is_host_memory(rows: Bundle, device: tuple[int, int]):
    x = np.random.default_rng(0).standard_normal((4, 70)).astype(BF16)[:, ::-1][:, ::-1]
    wanted = rows.softmax(x)
    found = rows.softmax(OnHost(x, device))
    assert type(found) is np.ndarray and np.array_equal(found, wanted)
    out = np.zeros(x.shape, BF16)
    rows.softmax(OnHost(x, device), out=OnHost(out, device))
    assert np.array_equal(out, wanted)
    with pytest.raises(ArgumentError, match="argument 'out' is written to, but is read-only"):
        rows.softmax(x, out=OnHost(out, device, writeable=False))


@in_double()
def test_read_only_device_memory_is_no_output(rows_bundle: Path):
    rows = open_bundle(rows_bundle, "hip:0")
    x, memory = rows.device.array(np.zeros((2, 600), np.float32)), rows.device.array(np.zeros((2, 600), np.float32))

    class ReadOnly:
        __cuda_array_interface__ = memory.__cuda_array_interface__ | {"data": (memory.ptr, True)}

    rows.softmax(x, out=memory)  # its plan is not that of the next call
    for fixed in (ReadOnly(), rows.device.wrap(ReadOnly())):
        with pytest.raises(ArgumentError, match="argument 'out' is written to, but is read-only"):
            rows.softmax(x, out=fixed)
        assert rows.softmax(fixed).shape == (2, 600)


def test_emulated_arrays_never_pose_as_memory_of_others(rows: Bundle):
    host = np.arange(12, dtype=np.int32).reshape(3, 4)
    x = rows.device.array(host)
    assert not hasattr(x, "__cuda_array_interface__") and x.__dlpack_device__() == CPU
    copy = np.from_dlpack(x)
    assert np.array_equal(copy, host) and copy.__array_interface__["data"][0] != x.ptr
    assert np.array_equal(np.asarray(x[1]), host[1])
    with pytest.raises(BufferError, match="copy=False"):
        x.__dlpack__(copy=False)
    assert rows.device.wrap(x) is x
    with pytest.raises(ArgumentError, match="the array is in host memory"):
        rows.device.wrap(OnHost(host))


@in_double()
def test_a_class_is_no_argument(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    x = small.device.array(np.ones((3, 5), np.float32))
    for kind in (np.ndarray, np.float32, type(x), int, type):
        with pytest.raises(ArgumentError, match=f"affine: argument 'x': {kind.__name__} is a class, not an array"):
            small.affine(kind)
        with pytest.raises(ArgumentError, match=f"argument 'bias': {kind.__name__} is a class"):
            small.affine(x, kind)
        with pytest.raises(ArgumentError, match="argument 'scale' is <class"):
            small.affine(x, scale=kind)
        with pytest.raises(ArgumentError, match=f"{kind.__name__} is a class, not an array"):
            small.device.wrap(kind)
    assert launches.count == 0


@in_double()
def test_an_array_that_cannot_be_taken(small_bundle: Path):
    """They are refused, as torch refuses a tensor with gradients."""
    small, _ = open_over_double(small_bundle)

    class Tracked:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 10, 0

        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("cannot export a tensor that requires gradients")

    class Partial:
        __cuda_array_interface__ = {"shape": (1,)}  # noqa: RUF012

    with pytest.raises(ArgumentError, match=r"argument 'x': Tracked .* BufferError: cannot export a tensor"):
        small.affine(Tracked())
    with pytest.raises(ArgumentError, match="argument 'x': Partial cannot be imported: KeyError: 'typestr'"):
        small.affine(Partial())
