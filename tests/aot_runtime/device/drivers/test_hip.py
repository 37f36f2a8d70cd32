"""`HipDriver` through hip-python, over the double of libamdhip64."""

from __future__ import annotations

import ctypes
import gc
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from aot_runtime.device.drivers import available_drivers, driver_for_arch, open_driver
from aot_runtime.device.drivers.hip import HipDriver
from aot_runtime.errors import DeviceError, DeviceMemoryError, DriverCallError
from tests.support.driver_contract import CHECKS, from_device
from tests.support.hip_double.code_object import code_object
from tests.support.hip_double.double import ILLEGAL_ADDRESS, Double, DoubleLibrary, Launch, in_double

IMAGE = code_object("gfx942", "scale", "add")


def check_contract(name: str) -> None:
    CHECKS[name](HipDriver())
    assert Double().alive("graph") == 0


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("setting", [{}, {"HIP_DOUBLE_DEVICES": 2}, {"HIP_DOUBLE_POOLS": 0}], ids=str)
def test_contract(hip_double: DoubleLibrary, name: str, setting: dict[str, int]):
    hip_double.run(check_contract, name, **setting)


def loaded(driver: HipDriver, device: int = 0, kernel: str = "scale") -> int:
    return driver.get_function(device, driver.load_module(device, IMAGE), kernel, 0)


def recorded(double: Double) -> list[Launch]:
    launches: list[Launch] = []
    double.on_launch(launches.append)
    return launches


# The library and its devices.


@in_double(HIP_DOUBLE_DEVICES=2, HIP_DOUBLE_ARCH="gfx950:sramecc+:xnack-", HIP_DOUBLE_MEMORY=12345)
def test_properties():
    driver = HipDriver()
    found = driver.properties(1)
    assert driver.device_count() == 2
    assert (found.name, found.arch) == ("Double of an AMD GPU", "gfx950")
    assert (found.num_cus, found.warp_size) == (304, 64)
    assert (found.lds_bytes, found.memory_bytes) == (160 << 10, 12345)
    assert found.driver_version == "7.2.26015"


@in_double(HIP_DOUBLE_ARCH="gfx1100")
def test_properties_of_a_wave32_device():
    found = HipDriver().properties(0)
    assert (found.arch, found.warp_size, found.lds_bytes) == ("gfx1100", 32, 64 << 10)


@in_double(HIP_DOUBLE_DEVICES=0)
def test_no_device():
    assert HipDriver().device_count() == 0
    with pytest.raises(DriverCallError) as raised:
        HipDriver().allocate(0, 16, 0)
    assert raised.value.code == "hipErrorInvalidDevice"
    assert "hip" not in available_drivers()


@in_double()
def test_drivers_are_found():
    assert open_driver("hip").name == "hip"
    assert (driver_for_arch("gfx942"), driver_for_arch("sm_90")) == ("hip", "cuda")
    assert available_drivers()[0] == "hip"


@in_double()
def test_another_failure_to_count_is_an_error():
    Double().fail("hipGetDeviceCount", 999)
    with pytest.raises(DriverCallError, match=r"hipGetDeviceCount failed: hipErrorUnknown \(999\): unknown error"):
        HipDriver()


def test_no_library(hip_double: DoubleLibrary, tmp_path):
    body = """
import pytest
from aot_runtime.device.drivers import open_driver
from aot_runtime.errors import DeviceError
with pytest.raises(DeviceError, match="libamdhip64.so.*ROCM_PATH.*LD_LIBRARY_PATH") as raised:
    open_driver("hip")
"""
    hip_double.run(body, ROCM_PATH=tmp_path, LD_LIBRARY_PATH=tmp_path)


def test_no_binding_is_needed_to_import(hip_double: DoubleLibrary):
    body = """
import sys
for name in ("hip", "rocm", "cuda"):
    sys.modules[name] = None
import pytest
from aot_runtime import get_device
from aot_runtime.device.drivers import available_drivers, open_driver
from aot_runtime.errors import DeviceError
with pytest.raises(DeviceError, match="pip install hip-python"):
    open_driver("hip")
with pytest.raises(DeviceError, match="pip install 'aotbuild\\\\[cuda\\\\]'"):
    open_driver("cuda")
with pytest.raises(DeviceError, match="(?s)no usable GPU.*hip: .*hip-python.*cuda: .*cuda-bindings"):
    get_device()
assert available_drivers() == ()
"""
    hip_double.run(body)


# Memory.


@in_double()
def test_the_pool_keeps_its_memory():
    double, driver = Double(), HipDriver()
    driver.free(0, driver.allocate(0, 100, 0), 0)
    driver.free(0, driver.allocate(0, 100, 0), 0)
    assert double.calls("hipMemPoolCreate") == 1
    assert double.calls("hipMallocFromPoolAsync") == double.calls("hipFreeAsync") == 2
    assert double.calls("hipMalloc") == double.calls("hipFree") == 0
    assert double.release_threshold() == 2**64 - 1


@in_double(HIP_DOUBLE_DEVICES=2)
def test_each_device_and_driver_has_a_pool_that_dies_with_the_driver():
    double = Double()
    drivers = [HipDriver(), HipDriver()]
    for driver in drivers:
        for device in (0, 1, 0, 1):
            driver.allocate(device, 16, 0)
    assert double.alive("pool") == 4
    del drivers[:], driver
    gc.collect()
    assert double.alive("pool") == 0


@in_double()
def test_threads_share_a_pool():
    double, driver = Double(), HipDriver()
    barrier = threading.Barrier(8)

    def allocate(_: int) -> int:
        barrier.wait()
        return driver.allocate(0, 64, 0)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(allocate, range(8)))) == 8
    assert double.calls("hipMemPoolCreate") == 1


@in_double(HIP_DOUBLE_POOLS=0)
def test_without_pools_a_free_waits_for_the_stream():
    double, driver = Double(), HipDriver()
    stream = driver.create_stream(0)
    address = driver.allocate(0, 100, stream)
    before = double.calls("hipStreamSynchronize")
    driver.free(0, address, stream)
    assert double.calls("hipStreamSynchronize") == before + 1
    assert double.calls("hipMalloc") == double.calls("hipFree") == 1
    assert double.calls("hipMemPoolCreate") == double.calls("hipMallocFromPoolAsync") == 0


@in_double(HIP_DOUBLE_MEMORY=1 << 20)
def test_out_of_memory_by_the_books():
    double, driver = Double(), HipDriver()
    half = driver.allocate(0, 1 << 19, 0)
    with pytest.raises(DeviceMemoryError, match=r"hipMallocFromPoolAsync failed: hipErrorOutOfMemory \(2\)"):
        driver.allocate(0, (1 << 19) + 1, 0)
    with pytest.raises(DeviceMemoryError, match="hipMalloc failed"):
        driver.allocate_now(0, (1 << 19) + 1)
    driver.free(0, half, 0)
    driver.free(0, driver.allocate(0, 1 << 20, 0), 0)
    assert double.allocated() == 0


@in_double()
def test_out_of_memory_anywhere_is_a_memory_error():
    double, driver = Double(), HipDriver()
    function = loaded(driver)
    for call, act in {
        "hipStreamCreateWithFlags": lambda: driver.create_stream(0),
        "hipModuleLoadData": lambda: driver.load_module(0, IMAGE),
        "hipModuleLaunchKernel": lambda: driver.prepare(0, function, (1, 1, 1), 64, 0, bytes(8)).run(0),
    }.items():
        double.fail(call, 2)
        with pytest.raises(DeviceMemoryError, match=call):
            act()
        act()


@in_double()
def test_bad_frees_and_copies_are_refused():
    driver = HipDriver()
    host = np.zeros(64, np.uint8)
    address = driver.allocate(0, 64, 0)
    for bad in (
        lambda: driver.free(0, address + 1, 0),
        lambda: driver.free_now(0, host.ctypes.data),
        lambda: driver.copy_to_device(0, address + 1, host.ctypes.data, 64, 0),
        lambda: driver.copy_to_host(0, host.ctypes.data, address, 65, 0),
        lambda: driver.fill(0, address - 1, 0, 8, 0),
    ):
        with pytest.raises(DriverCallError, match="hipErrorInvalidValue"):
            bad()
    driver.free(0, address, 0)
    with pytest.raises(DriverCallError, match="hipFreeAsync"):
        driver.free(0, address, 0)


@in_double()
def test_host_memory_is_free_to_change_when_a_copy_returns():
    from hip import hip

    double, driver = Double(), HipDriver()
    address, pageable = driver.allocate(0, 64, 0), np.zeros(64, np.uint8)
    _, pinned = hip.hipHostMalloc(64, 0)
    for waits, source in enumerate((pageable.ctypes.data, int(pinned)), 1):
        driver.copy_to_device(0, address, source, 64, 0)
        assert double.calls("hipStreamSynchronize") == waits
    with pytest.raises(DriverCallError, match="is host memory"):
        driver.device_of(int(pinned))


# Code.


@in_double()
def test_a_failed_load_raises_now_and_again():
    double, driver = Double(), HipDriver()
    for _ in range(2):
        with pytest.raises(DriverCallError) as raised:
            driver.load_module(0, code_object("gfx90a", "scale"))
        error = raised.value
        assert (error.call, error.status, error.code) == ("hipModuleLoadData", 209, "hipErrorNoBinaryForGpu")
        assert error.meaning in str(error)
    assert double.calls("hipModuleLoadData") == 2
    assert double.alive("module") == 0


@in_double()
def test_a_missing_kernel_is_an_error():
    driver = HipDriver()
    module = driver.load_module(0, IMAGE)
    with pytest.raises(DriverCallError, match="hipModuleGetFunction failed: hipErrorNotFound"):
        driver.get_function(0, module, "scal", 0)
    assert driver.get_function(0, module, "scale", 0) != driver.get_function(0, module, "add", 0)


@in_double()
def test_null_handles_are_errors_whatever_the_status():
    double, driver = Double(), HipDriver()
    module = driver.load_module(0, IMAGE)
    for call, act in {
        "hipModuleGetFunction": lambda: driver.get_function(0, module, "scale", 0),
        "hipModuleLoadData": lambda: driver.load_module(0, IMAGE),
        "hipStreamCreateWithFlags": lambda: driver.create_stream(0),
    }.items():
        driver._binding = Lying(driver._binding, call)
        with pytest.raises(DriverCallError, match=f"{call} .*null handle"):
            act()
        driver._binding = driver._binding.honest
        assert act() != 0
    assert double.calls("hipModuleLaunchKernel") == 0


class Lying:
    """A binding one of whose functions says success and gives nothing."""

    def __init__(self, honest: object, function: str):
        self.honest, self.function = honest, function

    def __getattr__(self, name: str):
        return (lambda *_: (0, None)) if name == self.function else getattr(self.honest, name)


@in_double()
def test_the_image_lives_as_long_as_its_module():
    """HIP does not copy it; the double checks it again."""
    driver = HipDriver()
    module = driver.load_module(0, bytes(bytearray(IMAGE)))
    gc.collect()
    overwritten = [bytes([byte]) * len(IMAGE) for byte in range(64)]
    driver.get_function(0, module, "scale", 0)
    assert overwritten
    driver.unload_module(0, module)
    assert not driver._images
    with pytest.raises(DriverCallError, match="hipErrorInvalidHandle"):
        driver.get_function(0, module, "scale", 0)


@in_double()
def test_functions_die_with_their_module():
    double, driver = Double(), HipDriver()
    launches = recorded(double)
    module = driver.load_module(0, IMAGE)
    launch = driver.prepare(0, driver.get_function(0, module, "scale", 0), (1, 1, 1), 64, 0, bytes(8))
    launch.run(0)
    driver.unload_module(0, module)
    with pytest.raises(DriverCallError, match="hipModuleLaunchKernel failed: hipErrorInvalidHandle"):
        launch.run(0)
    assert len(launches) == 1 and double.alive("function") == 0


# Launches.


@in_double()
def test_a_launch_arrives_as_it_was_prepared():
    double, driver = Double(), HipDriver()
    launches = recorded(double)
    stream = driver.create_stream(0)
    kernargs = struct.pack("<QQfi", 0x7F0000001234, 2**64 - 1, 0.5, -7)
    launch = driver.prepare(0, loaded(driver), (2**31 - 1, 65535, 3), 256, 65536, kernargs)
    launch.run(0)
    launch.run(stream)
    launch.run(0)
    shape = ("scale", (2**31 - 1, 65535, 3), (256, 1, 1), 65536, kernargs, 0)
    assert launches == [Launch(IMAGE, *shape, at) for at in (0, stream, 0)]


@in_double()
def test_kernargs_are_written_in_place_and_copied_by_the_launch():
    double, driver = Double(), HipDriver()
    launches = recorded(double)
    launch = driver.prepare(0, loaded(driver), (1, 1, 1), 64, 0, bytes(24))
    address = ctypes.addressof(ctypes.c_char.from_buffer(launch.kernargs))
    for value in (1, 2):
        struct.pack_into("<Q", launch.kernargs, 8, value)
        launch.run(0)
    assert [struct.unpack("<QQQ", each.kernargs) for each in launches] == [(0, 1, 0), (0, 2, 0)]
    with pytest.raises(BufferError):
        launch.kernargs.append(0)
    assert len(launch.kernargs) == 24
    assert ctypes.addressof(ctypes.c_char.from_buffer(launch.kernargs)) == address


@in_double()
def test_a_kernel_computes_on_device_memory():
    double, driver = Double(), HipDriver()
    size = 1000

    def scale(launch: Launch) -> None:
        out, source, factor, count = struct.unpack("<QQfI", launch.kernargs)
        values = np.ctypeslib.as_array((ctypes.c_float * count).from_address(source))
        np.ctypeslib.as_array((ctypes.c_float * count).from_address(out))[:] = values * np.float32(factor)

    double.on_launch(scale)
    values = np.arange(size, dtype=np.float32)
    source, out = driver.allocate(0, values.nbytes, 0), driver.allocate(0, values.nbytes, 0)
    driver.copy_to_device(0, source, values.ctypes.data, values.nbytes, 0)
    assert np.isnan(from_device(driver, out, values.nbytes).view(np.float32)).all(), "new memory is poisoned"
    kernargs = struct.pack("<QQfI", out, source, 3.0, size)
    driver.prepare(0, loaded(driver), (4, 1, 1), 256, 0, kernargs).run(0)
    assert (from_device(driver, out, values.nbytes).view(np.float32) == values * 3).all()


@in_double()
def test_a_failed_launch_raises_with_its_status():
    double, driver = Double(), HipDriver()
    double.on_launch(lambda _: ILLEGAL_ADDRESS)
    launch = driver.prepare(0, loaded(driver), (1, 1, 1), 64, 0, bytes(8))
    with pytest.raises(DriverCallError) as raised:
        launch.run(0)
    error = raised.value
    assert (error.call, error.status, error.code) == ("hipModuleLaunchKernel", 700, "hipErrorIllegalAddress")
    assert double.calls("hipModuleLaunchKernel") == 1, "a failed launch is not repeated"
    double.fail("hipModuleLaunchKernel", 12345)
    with pytest.raises(DriverCallError, match=r"hipErrorUnknown \(12345\)"):
        launch.run(0)


@in_double()
def test_impossible_launches_are_refused():
    driver = HipDriver()
    function = loaded(driver)
    stream = driver.create_stream(0)
    driver.destroy_stream(0, stream)
    with pytest.raises(DriverCallError, match="hipErrorInvalidConfiguration"):
        driver.prepare(0, function, (0, 1, 1), 64, 0, bytes(8)).run(0)
    with pytest.raises(DriverCallError, match="hipErrorInvalidConfiguration"):
        driver.prepare(0, function, (1, 1, 1), 1025, 0, bytes(8)).run(0)
    with pytest.raises(DriverCallError, match="hipErrorInvalidValue"):
        driver.prepare(0, function, (1, 1, 1), 64, 65537, bytes(8)).run(0)
    with pytest.raises(DriverCallError, match="hipErrorContextIsDestroyed"):
        driver.prepare(0, function, (1, 1, 1), 64, 0, bytes(8)).run(stream)


@in_double(HIP_DOUBLE_DEVICES=3)
def test_a_launch_goes_to_its_own_device():
    double, driver = Double(), HipDriver()
    launches = recorded(double)
    prepared = [driver.prepare(device, loaded(driver, device), (1, 1, 1), 64, 0, bytes(8)) for device in range(3)]
    streams = [driver.create_stream(device) for device in range(3)]
    for device in (2, 0, 1):
        driver.activate((device + 1) % 3)
        prepared[device].run(0)
        driver.activate((device + 2) % 3)
        prepared[device].run(streams[device])
    assert [launch.device for launch in launches] == [2, 2, 0, 0, 1, 1]
    with pytest.raises(DriverCallError, match="hipErrorInvalidHandle"):
        prepared[0].run(streams[1])
    with pytest.raises(DriverCallError, match="hipErrorInvalidHandle"):
        driver.get_function(1, driver.load_module(0, IMAGE), "scale", 0)


@in_double(HIP_DOUBLE_DEVICES=2)
def test_a_launch_whose_device_cannot_be_had_does_not_happen():
    double, driver = Double(), HipDriver()
    launch = driver.prepare(1, loaded(driver, 1), (1, 1, 1), 64, 0, bytes(8))
    driver.activate(0)
    double.fail("hipSetDevice", 101)
    with pytest.raises(DriverCallError, match="hipErrorInvalidDevice"):
        launch.run(0)
    assert double.calls("hipModuleLaunchKernel") == 0


@in_double(HIP_DOUBLE_DEVICES=2)
def test_threads_launch_side_by_side():
    double, driver = Double(), HipDriver()
    launches = recorded(double)
    functions = [loaded(driver, device) for device in range(2)]
    barrier = threading.Barrier(4)

    def work(thread: int) -> None:
        device = thread % 2
        launch = driver.prepare(device, functions[device], (1, 1, 1), 64, 0, bytes(16))
        barrier.wait()
        for step in range(200):
            struct.pack_into("<QQ", launch.kernargs, 0, thread, step)
            launch.run(0)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    for thread in range(4):
        mine = [each for each in launches if struct.unpack_from("<Q", each.kernargs)[0] == thread]
        assert [struct.unpack_from("<Q", each.kernargs, 8)[0] for each in mine] == list(range(200))
        assert {each.device for each in mine} == {thread % 2}


# Graphs.


@in_double()
def test_a_graph_replays_launches_with_the_kernargs_of_the_capture():
    double, driver = Double(), HipDriver()
    launches = recorded(double)
    stream, other = driver.create_stream(0), driver.create_stream(0)
    launch = driver.prepare(0, loaded(driver), (1, 2, 3), 64, 128, bytes(8))
    driver.begin_capture(0, stream)
    for value in (5, 6):
        struct.pack_into("<Q", launch.kernargs, 0, value)
        launch.run(stream)
    graph = driver.end_capture(0, stream)
    assert launches == []
    struct.pack_into("<Q", launch.kernargs, 0, 99)
    driver.launch_graph(0, graph, stream)
    driver.launch_graph(0, graph, other)
    assert [struct.unpack("<Q", each.kernargs)[0] for each in launches] == [5, 6, 5, 6]
    assert [each.stream for each in launches] == [stream, stream, other, other]
    driver.destroy_graph(0, graph)
    with pytest.raises(DriverCallError, match="hipGraphLaunch"):
        driver.launch_graph(0, graph, stream)
    assert double.alive("graph") == double.alive("executable") == 0


@in_double()
def test_a_broken_capture_is_an_error():
    double, driver = Double(), HipDriver()
    stream = driver.create_stream(0)
    driver.begin_capture(0, stream)
    with pytest.raises(DriverCallError, match="hipErrorStreamCaptureUnsupported"):
        driver.allocate(0, 64, stream)
    with pytest.raises(DriverCallError, match="hipErrorStreamCaptureInvalidated"):
        driver.end_capture(0, stream)
    assert not driver.is_capturing(0, stream)
    address = driver.allocate(0, 64, 0)
    for use in (lambda: driver.fill(0, address, 0, 64, 0), lambda: driver.free(0, address, 0)):
        driver.begin_capture(0, stream)
        with pytest.raises(DriverCallError, match="hipErrorStreamCaptureImplicit"):
            use()
        with pytest.raises(DriverCallError, match="hipErrorStreamCaptureInvalidated"):
            driver.end_capture(0, stream)
    with pytest.raises(DriverCallError, match="hipStreamBeginCapture"):
        driver.begin_capture(0, 0)
    double.fail("hipGraphInstantiateWithFlags", 999)
    driver.begin_capture(0, stream)
    with pytest.raises(DriverCallError, match="hipGraphInstantiateWithFlags"):
        driver.end_capture(0, stream)
    assert double.alive("graph") == 0, "the graph of a failed instantiation is destroyed"


@in_double()
def test_a_code_object_can_be_loaded_during_a_strict_capture():
    driver = HipDriver()
    stream = driver.create_stream(0)
    driver._call("StreamBeginCapture", stream, type(driver.relaxed_capture)(0))
    launch = driver.prepare(0, loaded(driver), (1, 1, 1), 64, 0, bytes(8))
    launch.run(stream)
    driver.destroy_graph(0, driver.end_capture(0, stream))


# Objects.


@in_double()
def test_what_was_destroyed_is_refused():
    driver = HipDriver()
    stream, event = driver.create_stream(0), driver.create_event(0)
    driver.destroy_stream(0, stream)
    driver.destroy_event(0, event)
    for use in (
        lambda: driver.synchronize(0, stream),
        lambda: driver.destroy_stream(0, stream),
        lambda: driver.record_event(0, event, 0),
        lambda: driver.synchronize_event(0, event),
        lambda: driver.destroy_event(0, event),
    ):
        with pytest.raises(DriverCallError, match="hipErrorContextIsDestroyed"):
            use()


@in_double()
def test_a_function_that_the_library_lacks():
    driver = HipDriver()
    with pytest.raises(DeviceError, match=r"hipDeviceReset cannot be called through .*hip"):
        driver._call("DeviceReset")


def test_the_child_reports_its_failure(hip_double: DoubleLibrary):
    """Or no test of this file could fail."""
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        hip_double.run("1 / 0")
    with pytest.raises(AssertionError, match="exit status -6"):
        hip_double.run("import os; os.abort()")
    with pytest.raises(AssertionError, match="KeyError: 'no such check'"):
        hip_double.run(check_contract, "no such check")


def test_unknown_names():
    with pytest.raises(DeviceError, match="no driver named 'opencl'; there are: hip, cuda"):
        open_driver("opencl")
    with pytest.raises(DeviceError, match=r"'spirv'.*gfx942"):
        driver_for_arch("spirv")
