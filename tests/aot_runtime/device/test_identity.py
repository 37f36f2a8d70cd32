"""Objects that own device resources cannot be copied, and low memory leaves no partial object behind."""

from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle, CaptureError, DriverCallError, get_device
from aot_runtime.device import memory
from aot_runtime.device.drivers.gpu import GpuDriver
from aot_runtime.device.drivers.hip import HipDriver
from tests.support.hip_double.double import Double, in_double
from tests.support.reference_launches import open_over_double

X = np.ones((3, 5), np.float32)


@in_double()
def test_handles_are_neither_copied_nor_pickled():
    double, device = Double(), get_device("hip:0")
    array, stream = device.array(X), device.stream()
    events = double.alive("event")
    things = (array, array[1:], stream, stream.record())
    for thing in things:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match=f"a {type(thing).__name__} cannot be copied or pickled: it belongs"):
                attempt(thing)
    with pytest.raises(TypeError, match=r"copy its content with x\.numpy\(\)"):
        copy.deepcopy({"weights": [array]})
    assert (array.numpy() == X).all()
    del array, stream, things, thing
    gc.collect()
    assert (double.alive("stream"), double.alive("event")) == (0, events)


@in_double()
def test_a_device_is_its_own_copy():
    device = get_device("hip:0")
    assert copy.copy(device) is copy.deepcopy([device])[0] is device
    with pytest.raises(TypeError, match=r"a Device cannot be copied .*; pass its name on, as in get_device\('hip:0'\)"):
        pickle.dumps(device)


@in_double()
def test_a_bundle_is_its_own_copy(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    assert copy.copy(small) is copy.deepcopy((small,))[0] is small
    with pytest.raises(TypeError, match=r"a Bundle cannot be copied .*; open it again from its path"):
        pickle.dumps(small)
    small.affine(X)
    assert launches.count == 1


def test_a_bundle_that_is_not_open_has_no_attribute():
    """Copying and unpickling look for an object's methods before it is initialised."""
    with pytest.raises(AttributeError, match="has no 'affine'"):
        _ = Bundle.__new__(Bundle).affine


# Arguments that are no arrays.


@in_double()
def test_a_class_is_no_argument(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    x = small.device.array(X)
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


# Low memory.


def no_memory(*_: Any, **__: Any) -> Any:
    raise MemoryError


@in_double()
def test_memory_that_cannot_be_kept_track_of_is_not_taken():
    double, device = Double(), get_device("hip:0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "Allocation", no_memory)
        with pytest.raises(MemoryError):
            device.array(X)
    assert double.allocated() == 0
    array = device.array(X)
    block = array.owner.block
    device.memory._shelves = type("Full", (dict,), {"setdefault": no_memory})()  # as if the table could not grow
    with pytest.raises(MemoryError):
        device.memory._keep(block)
    assert device.memory._small_bytes == 0 and not block.is_kept


@in_double()
def test_a_module_whose_image_cannot_be_kept_is_unloaded(scale_image: bytes):
    double, driver = Double(), HipDriver()
    driver._images = type("Full", (dict,), {"__setitem__": no_memory})()
    with pytest.raises(MemoryError):
        driver.load_module(0, scale_image)
    assert double.alive("module") == 0


@in_double()
def test_low_memory_in_the_middle_of_copies():
    double, device = Double(), get_device("hip:0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GpuDriver, "copy_to_device", no_memory)
        with pytest.raises(MemoryError):
            device.array(X)
        gc.collect()
    assert double.allocated() <= 512, "at most the block that is kept"
    array = device.array(X)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "empty", no_memory)
        with pytest.raises(MemoryError):
            array.numpy()
    assert (array.numpy() == X).all()


@in_double()
def test_low_memory_while_code_is_read(small_bundle: Path):
    small, launches = open_over_double(small_bundle)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aot_runtime.opening.read_blob", no_memory)
        with pytest.raises(MemoryError):
            small.affine(X)
    small.affine(X)
    assert launches.count == 1


@in_double()
def test_a_capture_that_does_not_begin_leaves_nothing():
    double, device = Double(), get_device("hip:0")
    stream = device.stream()
    double.fail("hipStreamBeginCapture", 999)
    with pytest.raises(DriverCallError, match="hipStreamBeginCapture"), device.capture(stream):
        raise AssertionError("not reached")
    assert device.holdings.captures == {}
    again = device.capture(stream)
    with device.capture(stream) as graph, pytest.raises(CaptureError, match="being captured already"):
        again.__enter__()
    graph.launch(stream)
