"""Driver resources are released once their owners are gone, whatever thread drops them or interrupt occurs."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle, Device, get_device, open_bundle
from aot_runtime.device.memory import KEPT_BLOCK
from tests.support.hip_double.double import Double, in_double
from tests.support.interrupts import interrupted_at

LARGE = KEPT_BLOCK + 1
KINDS = ("memory", "module", "stream", "event", "graph", "executable")


def there(device: Device) -> dict[str, int]:
    """Count the objects that exist when nothing unused is kept."""
    gc.collect()
    device.trim()
    double, memory = Double(), device.memory
    tables = len(memory._small) + memory._small_bytes + len(memory._kept) + memory._kept_bytes + len(memory.streams)
    found = {kind: double.alive(kind) for kind in KINDS} | {"bytes": double.allocated(), "tables": tables}
    return found | {"held": len(device.holdings._held), "captures": len(device.holdings.captures)}


def use_memory(device: Device) -> None:
    stream = device.stream()
    arrays = [device.empty(size, "int8", stream=where) for size in (100, LARGE) for where in (None, stream)]
    for array in arrays[::2]:
        array.owner.used_on(stream.handle)
    arrays.clear()
    device.empty(100, "int8"), device.empty(100, "int8", stream=stream)
    device.memory.scratch(5000)
    space = device.memory.new_scratch(5000)
    device.memory.trim()
    del space, stream
    device.trim()


def use_graphs(device: Device) -> None:
    stream, target = device.stream(), device.empty(16, "int8")
    stream.wait(stream.record())
    with device.capture(stream) as graph:
        target.fill(1, stream)
        device.memory.workspace(1000, stream.handle)
    graph.launch(stream)
    device.empty(16, "int8", stream=stream)
    target.__dlpack__(stream=stream.handle)


def hold_interrupted(device: Device, work: Callable[[Device], None], step: int) -> None:
    """Interrupt some work at each place, or each of so many, and assert that nothing is left of it."""
    work(device)
    before, at = there(device), 1
    while where := interrupted_at(lambda: work(device), at, "/aot_runtime/device/"):
        assert there(device) == before, f"interrupted at place {at}, {where}"
        at += step
    assert at > 150


@pytest.mark.parametrize("work", [use_memory, use_graphs])
@in_double()
def test_an_interrupt_leaves_nothing_behind(work: Callable[[Device], None]):
    hold_interrupted(get_device("hip:0"), work, 5)


@pytest.mark.slow
@pytest.mark.parametrize("work", [use_memory, use_graphs])
@in_double()
def test_no_interrupt_leaves_anything_behind(work: Callable[[Device], None]):
    hold_interrupted(get_device("hip:0"), work, 1)


@in_double(only="AMD's HIP 7 may lock up: https://github.com/ROCm/rocm-systems/issues/10529")
def test_giving_memory_back_beside_streams_that_are_dropped():
    device, double = get_device("hip:0"), Double()
    is_over = threading.Event()

    def drop() -> None:
        while not is_over.is_set():
            stream = device.stream()
            arrays = [device.empty(100 + i, "float32", stream=stream) for i in range(4)]
            del arrays, stream

    threads = [threading.Thread(target=drop) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(150):
            device.trim()
            device.memory_stats()
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    device.trim()
    assert (double.alive("stream"), double.alive("event"), double.allocated()) == (0, 0, 0)


@in_double()
def test_a_capture_whose_end_was_interrupted_is_ended_by_the_next():
    device, driver = get_device("hip:0"), get_device("hip:0").driver
    stream, target = device.stream(), device.empty(16, "int8")

    def interrupt(*_: Any) -> int:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "end_capture", interrupt, raising=False)
        with pytest.raises(KeyboardInterrupt), device.capture(stream):
            target.fill(1, stream)
    assert driver.is_capturing(0, stream.handle)
    with device.capture(stream) as graph:
        target.fill(2, stream)
    graph.launch(stream)
    assert (target.numpy() == 2).all() and not driver.is_capturing(0, stream.handle)


@in_double()
def test_a_fork_leaves_the_resources_of_its_parent_alone():
    """HIP works in no other process than the one that initialised it: a call of a fork may crash, or never return."""
    double, device = Double(), get_device("hip:0")
    stream, array = device.stream(), device.empty(LARGE, "int8")
    with device.capture(stream) as graph:
        array.fill(1, stream)
    event = stream.record()
    before = {kind: double.alive(kind) for kind in KINDS}
    if (child := os.fork()) == 0:
        del stream, array, graph, event
        gc.collect()
        os._exit({kind: double.alive(kind) for kind in KINDS} != before)
    assert os.waitpid(child, 0)[1] == 0
    graph.launch(stream)
    device.synchronize()


# Code


X = np.ones((3, 5), np.float32)


@in_double()
def test_code_is_unloaded_with_the_last_that_may_launch_it(small_bundle: Path):
    double, device = Double(), get_device("hip:0")

    def modules() -> int:
        gc.collect()
        return double.alive("module")

    for _ in range(20):
        open_bundle(small_bundle, device).affine(X)
    assert modules() == 0 and double.calls("hipModuleLoadData") == 20
    small: Bundle | None = open_bundle(small_bundle, device)
    x, out, stream = device.array(X), device.array(X), device.stream()
    assert small is not None
    with device.capture(stream) as graph:
        small.affine(x, scale=2.0, out=out, stream=stream)
    affine: Any = small.affine
    small = None
    assert modules() == 1
    affine(X)
    affine = None
    assert modules() >= 1, "the graph launches it"
    graph.launch(stream)
    del graph
    assert modules() == 0


@in_double(HIP_DOUBLE_DEFERS=1)
def test_code_is_unloaded_after_the_work_that_uses_it(small_bundle: Path):
    double, device = Double(), get_device("hip:0")
    launched: list[object] = []
    double.on_launch(lambda launch: launched.append(launch))
    x, out, stream = device.array(X), device.array(X), device.stream()
    small: Bundle | None = open_bundle(small_bundle, device)
    assert small is not None
    small.affine(x, scale=2.0, out=out, stream=stream)
    assert launched == []
    small = None
    gc.collect()
    assert len(launched) == 1 and double.alive("module") == 0


def test_code_is_unloaded_from_the_emulator(small_bundle: Path):
    driver = get_device("emulator:gfx942").driver
    gc.collect()  # bundles of other tests
    before = len(driver._modules)  # type: ignore[attr-defined]
    for _ in range(3):
        open_bundle(small_bundle, "emulator").affine(X)
    gc.collect()
    assert len(driver._modules) == before  # type: ignore[attr-defined]
