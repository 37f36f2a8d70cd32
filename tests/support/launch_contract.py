"""Tests for launches of all GPU drivers, as functions of a driver and a code object, like `driver_contract`.

The code object has the kernel `scale(float *out, const float *in, float factor, unsigned n)`: out[i] = in[i] * factor
where i < n, in workgroups of 128.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from aot_runtime.device.drivers.gpu import GpuDriver
from aot_runtime.device.drivers.protocol import PreparedLaunch
from aot_runtime.errors import DriverCallError

from .driver_contract import allocated, from_device, new_stream, to_device

VALUES = np.arange(1000, dtype=np.float32)


def loaded(driver: GpuDriver, image: bytes, kernel: str = "scale", lds_bytes: int = 0, device: int = 0) -> int:
    return driver.get_function(device, driver.load_module(device, image), kernel, lds_bytes)


def scaling(driver: GpuDriver, function: int, out: int, source: int, factor: float, n: int) -> PreparedLaunch:
    kernargs = struct.pack("<QQfI", out, source, factor, n)
    return driver.prepare(0, function, (-(-n // 128), 1, 1), 128, 0, kernargs)


def a_launch_computes(driver: GpuDriver, image: bytes) -> None:
    nbytes = VALUES.nbytes
    with (
        new_stream(driver) as stream,
        allocated(driver, nbytes, stream) as source,
        allocated(driver, nbytes, stream) as out,
    ):
        to_device(driver, source, VALUES, stream)
        driver.fill(0, out, 0xFF, nbytes, stream)
        launch = scaling(driver, loaded(driver, image), out, source, 2.0, 999)
        launch.run(stream)
        found = from_device(driver, out, nbytes, stream).view(np.float32)
        assert (found[:999] == 2 * VALUES[:999]).all() and np.isnan(found[999])


def kernargs_are_copied_by_run(driver: GpuDriver, image: bytes) -> None:
    """Many launches are made at once, and each overwrites the kernargs of the one before."""
    count = 500
    with allocated(driver, 4) as source, allocated(driver, 4 * count) as out:
        to_device(driver, source, np.ones(1, np.float32))
        launch = scaling(driver, loaded(driver, image), out, source, 0.0, 1)
        for index in range(count):
            struct.pack_into("<QQf", launch.kernargs, 0, out + 4 * index, source, index)
            launch.run(0)
        assert (from_device(driver, out, 4 * count).view(np.float32) == np.arange(count)).all()


def a_graph_replays_with_the_kernargs_of_the_capture(driver: GpuDriver, image: bytes) -> None:
    nbytes = VALUES.nbytes
    with (
        new_stream(driver) as stream,
        allocated(driver, nbytes, stream) as source,
        allocated(driver, nbytes, stream) as out,
    ):
        launch = scaling(driver, loaded(driver, image), out, source, 2.0, 100)
        driver.begin_capture(0, stream)
        driver.fill(0, out, 0, nbytes, stream)
        launch.run(stream)
        graph = driver.end_capture(0, stream)
        struct.pack_into("<f", launch.kernargs, 16, 99.0)  # too late for the graph
        for factor in (1, 5):
            to_device(driver, source, VALUES * factor, stream)
            driver.fill(0, out, 0xFF, nbytes, stream)
            driver.launch_graph(0, graph, stream)
            found = from_device(driver, out, nbytes, stream).view(np.float32)
            assert (found[:100] == 2 * factor * VALUES[:100]).all() and (found[100:] == 0).all()
        driver.destroy_graph(0, graph)


def code_is_loaded_during_a_strict_capture(driver: GpuDriver, image: bytes) -> None:
    with new_stream(driver) as stream, allocated(driver, 4, stream) as source, allocated(driver, 4, stream) as out:
        to_device(driver, source, np.full(1, 3, np.float32), stream)
        driver._call("StreamBeginCapture", stream, type(driver.relaxed_capture)(0))
        scaling(driver, loaded(driver, image), out, source, 2.0, 1).run(stream)
        graph = driver.end_capture(0, stream)
        driver.launch_graph(0, graph, stream)
        assert from_device(driver, out, 4, stream).view(np.float32) == 6
        driver.destroy_graph(0, graph)


def threads_launch_side_by_side(driver: GpuDriver, image: bytes) -> None:
    """Each thread's first call of the API is a launch, for which no context is current yet."""
    function, nbytes = loaded(driver, image), VALUES.nbytes
    source, *outs = (driver.allocate(0, nbytes, 0) for _ in range(9))
    to_device(driver, source, VALUES)
    launches = [scaling(driver, function, out, source, 0.0, len(VALUES)) for out in outs]

    def work(index: int) -> None:
        for step in range(100):
            struct.pack_into("<f", launches[index].kernargs, 16, index + step)
            launches[index].run(0)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    for index, out in enumerate(outs):
        assert (from_device(driver, out, nbytes).view(np.float32) == (index + 99) * VALUES).all()
    for address in (source, *outs):
        driver.free(0, address, 0)


def a_launch_goes_to_its_own_device(driver: GpuDriver, image: bytes) -> None:
    """The other device is made current, where there are two."""
    for device in (1, 0) if driver.device_count() > 1 else ():
        function, out = loaded(driver, image, device=device), driver.allocate(device, 8, 0)
        driver.copy_to_device(device, out, VALUES[1:].ctypes.data, 8, 0)
        launch = driver.prepare(device, function, (1, 1, 1), 128, 0, struct.pack("<QQfI", out, out, 3.0, 2))
        driver.activate(1 - device)
        launch.run(0)
        found = np.empty(2, np.float32)
        driver.copy_to_host(device, found.ctypes.data, out, 8, 0)
        assert (found == [3, 6]).all() and driver.device_of(out) == device
        driver.free(device, out, 0)


def a_bad_launch_is_an_error_and_harms_nothing(driver: GpuDriver, image: bytes) -> None:
    function = loaded(driver, image)
    for grid, block, lds_bytes in (((0, 1, 1), 128, 0), ((1, 1, 1), 2048, 0), ((1, 1, 1), 128, 1 << 20)):
        with pytest.raises(DriverCallError, match=r"LaunchKernel(Ex)? failed: [A-Za-z_]*(INVALID|Invalid)"):
            driver.prepare(0, function, grid, block, lds_bytes, bytes(24)).run(0)
    with pytest.raises(DriverCallError, match=r"ModuleGetFunction failed: .*(NOT_FOUND|NotFound)"):
        loaded(driver, image, "scal")
    a_launch_computes(driver, image)


LAUNCH_CHECKS: dict[str, Callable[[GpuDriver, bytes], None]] = {
    check.__name__: check
    for check in (
        a_launch_computes,
        kernargs_are_copied_by_run,
        a_graph_replays_with_the_kernargs_of_the_capture,
        code_is_loaded_during_a_strict_capture,
        threads_launch_side_by_side,
        a_launch_goes_to_its_own_device,
        a_bad_launch_is_an_error_and_harms_nothing,
    )
}
