"""Low memory and failed calls leave no partial object behind."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot_runtime import CaptureError, DriverCallError, get_device
from aot_runtime.device import memory
from aot_runtime.device.drivers.gpu import GpuDriver
from aot_runtime.device.drivers.hip import HipDriver
from tests.support.hip_double.double import Double, in_double
from tests.support.reference_launches import open_over_double

X = np.ones((3, 5), np.float32)


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
