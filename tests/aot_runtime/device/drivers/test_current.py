"""Calls preserve the current device of the calling thread."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aot_runtime import DriverCallError, get_device
from aot_runtime.device.drivers.current import Selector
from aot_runtime.device.drivers.hip import HipDriver
from aot_runtime.device.drivers.launch import KernelLaunch, LaunchFunction
from tests.support.hip_double.double import Double, in_double
from tests.support.reference_launches import open_over_double

X = np.ones((3, 5), np.float32)
NOT_INITIALISED, INVALID_CONTEXT = 3, 201
WANTED = 0x7F0000001000


def library() -> ctypes.CDLL:
    return ctypes.CDLL(f"{os.environ['ROCM_PATH']}/lib/libamdhip64.so")


def current() -> int:
    found = ctypes.c_int(-1)
    assert library().hipGetDevice(ctypes.byref(found)) == 0
    return found.value


def work(driver: HipDriver, device: int, image: bytes) -> dict[str, Callable[[], object]]:
    """Call each of a driver's methods once, in a valid order."""
    made: dict[str, int] = {}
    host = np.zeros(64, np.uint8)

    def make(name: str, value: int) -> None:
        made[name] = value

    return {
        "allocate": lambda: make("address", driver.allocate(device, 64, 0)),
        "copy_to_device": lambda: driver.copy_to_device(device, made["address"], host.ctypes.data, 64, 0),
        "copy_to_host": lambda: driver.copy_to_host(device, host.ctypes.data, made["address"], 64, 0),
        "fill": lambda: driver.fill(device, made["address"], 1, 64, 0),
        "device_of": lambda: driver.device_of(made["address"]),
        "free": lambda: driver.free(device, made["address"], 0),
        "allocate_now": lambda: make("now", driver.allocate_now(device, 64)),
        "free_now": lambda: driver.free_now(device, made["now"]),
        "load_module": lambda: make("module", driver.load_module(device, image)),
        "get_function": lambda: make("function", driver.get_function(device, made["module"], "scale", 0)),
        "run": lambda: driver.prepare(device, made["function"], (1, 1, 1), 64, 0, bytes(8)).run(0),
        "unload_module": lambda: driver.unload_module(device, made["module"]),
        "create_stream": lambda: make("stream", driver.create_stream(device)),
        "is_capturing": lambda: driver.is_capturing(device, made["stream"]),
        "begin_capture": lambda: driver.begin_capture(device, made["stream"]),
        "end_capture": lambda: make("graph", driver.end_capture(device, made["stream"])),
        "launch_graph": lambda: driver.launch_graph(device, made["graph"], made["stream"]),
        "destroy_graph": lambda: driver.destroy_graph(device, made["graph"]),
        "create_event": lambda: make("event", driver.create_event(device)),
        "record_event": lambda: driver.record_event(device, made["event"], made["stream"]),
        "wait_event": lambda: driver.wait_event(device, made["stream"], made["event"]),
        "synchronize_event": lambda: driver.synchronize_event(device, made["event"]),
        "elapsed_ms": lambda: driver.elapsed_ms(device, made["event"], made["event"]),
        "destroy_event": lambda: driver.destroy_event(device, made["event"]),
        "synchronize": lambda: driver.synchronize(device, made["stream"]),
        "destroy_stream": lambda: driver.destroy_stream(device, made["stream"]),
        "properties": lambda: driver.properties(device),
    }


@in_double(HIP_DOUBLE_DEVICES=3)
def test_every_call_leaves_the_current_device(scale_image: bytes):
    driver = HipDriver()
    for device in range(3):
        for other in range(3):
            library().hipSetDevice(other)
            for name, call in work(driver, device, scale_image).items():
                call()
                assert current() == other, f"{name} on device {device}"


@in_double(HIP_DOUBLE_DEVICES=2)
def test_so_does_one_that_fails(scale_image: bytes):
    double, driver = Double(), HipDriver()
    library().hipSetDevice(1)
    function = driver.get_function(0, driver.load_module(0, scale_image), "scale", 0)
    launch = driver.prepare(0, function, (1, 1, 1), 64, 0, bytes(8))
    for name, call in {
        "hipMallocFromPoolAsync": lambda: driver.allocate(0, 64, 0),
        "hipMalloc": lambda: driver.allocate_now(0, 64),
        "hipModuleLoadData": lambda: driver.load_module(0, scale_image),
        "hipModuleLaunchKernel": lambda: launch.run(0),
        "hipStreamCreateWithFlags": lambda: driver.create_stream(0),
    }.items():
        double.fail(name, 719)
        with pytest.raises(DriverCallError, match=name):
            call()
        assert current() == 1, name


@in_double(HIP_DOUBLE_DEVICES=1)
def test_a_single_device_is_never_asked_for(scale_image: bytes):
    """It is always current, so calls need not ask for it."""
    double, driver = Double(), HipDriver()
    before = double.calls("hipSetDevice"), double.calls("hipGetDevice")
    for call in work(driver, 0, scale_image).values():
        call()
    assert (double.calls("hipSetDevice"), double.calls("hipGetDevice")) == before
    with pytest.raises(DriverCallError, match="hipErrorInvalidDevice"):
        driver.create_stream(1)


@in_double(HIP_DOUBLE_DEVICES=2)
def test_calls_and_what_is_dropped(small_bundle: Path):
    small, launches = open_over_double(small_bundle, device="hip:1")
    library().hipSetDevice(0)
    x = small.device.array(X)
    out = small.affine(x, stream=small.device.stream())
    small.affine(x, out=out), small.affine(X)
    assert current() == 0 and launches.count == 3
    selects = launches.double.calls("hipSetDevice")
    event = small.device.event()
    with small.device.capture(small.device.stream()) as graph:
        pass
    del x, out, event, graph
    gc.collect()
    assert current() == 0 and launches.double.calls("hipSetDevice") > selects
    library().hipSetDevice(1)
    x = small.device.array(X)
    out = small.affine(x)
    selects = launches.double.calls("hipSetDevice")
    small.affine(x, out=out)
    assert launches.double.calls("hipSetDevice") == selects, "it is current, so nothing is set"


@in_double(HIP_DOUBLE_DEVICES=2)
def test_an_array_that_another_thread_drops():
    device, found = get_device("hip:1"), []
    arrays = [device.array(np.zeros(1 << 21, np.uint8))]

    def drop() -> None:
        before = current()
        arrays.clear()
        gc.collect()
        found.append((before, current()))

    thread = threading.Thread(target=drop)
    thread.start()
    thread.join()
    assert found == [(0, 0)]


# CUDA's contexts: a thread may have none.


class Contexts:
    """An API with a current context, without which launches fail."""

    def __init__(self, context: int | None, is_only: bool = False):
        self.context, self.launched_in, self.failed = context, [], 0
        self.selector = Selector(ctypes.c_void_p, self.get, self.set, ctypes.c_void_p(WANTED), is_only)

    def get(self, place: object) -> int:
        place._obj.value = self.context  # type: ignore[attr-defined]
        return 0

    def set(self, context: ctypes.c_void_p) -> int:
        self.context = context.value
        return 0

    def launch(self, *_: object) -> int:
        if self.context is None:
            self.failed += 1
            return INVALID_CONTEXT
        self.launched_in.append(self.context)
        return 0

    def prepared(self, always: bool) -> KernelLaunch:
        function = LaunchFunction(self.launch, 0, frozenset({INVALID_CONTEXT}), lambda status: ValueError(status))
        return KernelLaunch(function, self.selector, always, 1, (1, 1, 1), 64, 0, bytes(8))


@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize("context", [None, WANTED])
def test_a_thread_without_a_context_has_none_afterwards(always: bool, context: int | None):
    contexts = Contexts(context)
    contexts.prepared(always).run(0)
    assert contexts.launched_in == [WANTED] and contexts.context == context


def test_of_a_single_device_it_keeps_the_context():
    """No other device can be meant; otherwise each launch would begin with one that fails."""
    contexts = Contexts(None, is_only=True)
    launch = contexts.prepared(False)
    launch.run(0), launch.run(0)
    assert contexts.launched_in == [WANTED, WANTED] and contexts.failed == 1


@pytest.mark.parametrize("is_only", [True, False])
def test_another_context_is_put_back(is_only: bool):
    contexts = Contexts(0x1000, is_only)
    contexts.prepared(True).run(0)
    assert contexts.launched_in == [WANTED] and contexts.context == 0x1000


def test_a_context_that_cannot_be_had():
    contexts = Contexts(None)
    contexts.set = lambda context: NOT_INITIALISED
    contexts.selector = Selector(ctypes.c_void_p, contexts.get, contexts.set, contexts.selector.wanted)
    for always in (True, False):
        with pytest.raises(ValueError, match=str(NOT_INITIALISED)):
            contexts.prepared(always).run(0)
    assert contexts.launched_in == [] and contexts.context is None
