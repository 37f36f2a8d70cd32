"""`HipDriver` through hip-python, over the double of libamdhip64: the library, devices, memory, code objects."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest

from aot_runtime import get_device
from aot_runtime.device.drivers import driver_for_arch, open_driver
from aot_runtime.device.drivers.hip import HipDriver
from aot_runtime.errors import DeviceError, DeviceMemoryError, DriverCallError
from tests.support.driver_contract import CHECKS
from tests.support.hip_double.double import Double, DoubleLibrary, in_double


def check_contract(name: str) -> None:
    CHECKS[name](HipDriver())
    assert Double().alive("graph") == 0


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("setting", [{}, {"HIP_DOUBLE_DEFERS": 1}, {"HIP_DOUBLE_DEVICES": 2, "HIP_DOUBLE_POOLS": 0}])
def test_contract(hip_double: DoubleLibrary, name: str, setting: dict[str, int]):
    hip_double.run(check_contract, name, **setting)


def abort() -> None:
    os.abort()


def test_the_child_reports_its_failure(hip_double: DoubleLibrary):
    """Otherwise no test over the double could fail."""
    with pytest.raises(AssertionError, match="KeyError: 'no such check'"):
        hip_double.run(check_contract, "no such check")
    with pytest.raises(AssertionError, match="exit status -6"):
        hip_double.run(abort)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        hip_double.run_text("1 / 0")


@in_double(HIP_DOUBLE_ARCH="gfx1100")
def test_compute_units_of_rdna():
    """HIP counts work-group processors, of two compute units each; with its variable, compute units."""
    assert HipDriver().properties(0).num_cus == 2 * 304
    with mock.patch.dict(os.environ, {"GPU_ENABLE_WGP_MODE": "0"}):
        assert HipDriver().properties(0).num_cus == 304


@in_double(HIP_DOUBLE_DEVICES=0)
def test_no_device():
    assert HipDriver().device_count() == 0
    with pytest.raises(DriverCallError) as raised:
        HipDriver().allocate(0, 16, 0)
    assert raised.value.code == "hipErrorNoDevice"
    with pytest.raises(DeviceError, match=r"no usable GPU\n  hip: the driver is installed and sees no GPU"):
        get_device()
    Double().fail("hipGetDeviceCount", 999)
    with pytest.raises(DriverCallError, match=r"hipGetDeviceCount failed: hipErrorUnknown \(999\): unknown error"):
        HipDriver()


@in_double()
def test_drivers_are_found():
    assert open_driver("hip").name == get_device().driver.name == "hip"
    assert (driver_for_arch("gfx942"), driver_for_arch("sm_90")) == ("hip", "cuda")
    with pytest.raises(DeviceError, match="no driver named 'opencl'; there are: hip, cuda"):
        open_driver("opencl")
    with pytest.raises(DeviceError, match=r"'spirv'.*gfx942"):
        driver_for_arch("spirv")


@in_double(only="it has the function")
def test_a_function_that_the_library_lacks():
    with pytest.raises(DeviceError, match=r"hipDeviceReset cannot be called through .*hip"):
        HipDriver()._call("DeviceReset")


def test_no_library_and_no_binding(hip_double: DoubleLibrary, tmp_path):
    hip_double.only("it is named to each process")
    printed = hip_double.run_text(
        """
import sys
from aot_runtime import get_device
from aot_runtime.device.drivers import open_driver
from aot_runtime.errors import DeviceError
def show(call, *arguments):
    try: call(*arguments)
    except DeviceError as error: print("|", error)
show(open_driver, "hip")
for name in ("hip", "rocm", "cuda"):
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]
    sys.modules[name] = None
show(open_driver, "hip")
show(open_driver, "cuda")
show(get_device)
""",
        ROCM_PATH=tmp_path,
        LD_LIBRARY_PATH=tmp_path,
    )
    library, hip, cuda, both = (text.strip() for text in printed.split("|")[1:])
    assert "libamdhip64.so" in library and "ROCM_PATH" in library and "LD_LIBRARY_PATH" in library
    assert "pip install hip-python" in hip and "pip install 'aot-runtime[cuda]'" in cuda
    assert both.startswith("no usable GPU\n  hip: ") and "\n  cuda: " in both


@in_double(HIP_DOUBLE_DEVICES=2)
def test_each_device_and_driver_has_a_pool_that_dies_with_the_driver():
    """Threads share the object of a driver and device, which keeps the pool's memory."""
    double, drivers = Double(), [HipDriver(), HipDriver()]
    with ThreadPoolExecutor(8) as threads:
        barrier = threading.Barrier(8)

        def allocate(_: int) -> int:
            barrier.wait()
            return drivers[0].allocate(0, 64, 0)

        assert len(set(threads.map(allocate, range(8)))) == 8
    assert double.calls("hipMemPoolCreate") == 1
    for driver in drivers:
        for device in (0, 1, 0, 1):
            driver.free(device, driver.allocate(device, 16, 0), 0)
    assert double.alive("pool") == 4 and double.release_threshold() == 2**64 - 1
    assert double.calls("hipMallocFromPoolAsync") == double.calls("hipFreeAsync") + 8 == 16
    assert double.calls("hipMalloc") == double.calls("hipFree") == 0
    del drivers[:], driver
    gc.collect()
    assert double.alive("pool") == 0


@in_double()
def test_a_fork_leaves_a_drivers_pool_alone():
    """HIP aborts a fork of its process that calls it."""
    double, driver = Double(), HipDriver()
    driver.free(0, driver.allocate(0, 16, 0), 0)
    if (child := os.fork()) == 0:
        del driver
        gc.collect()
        os._exit(double.calls("hipMemPoolDestroy"))
    assert os.waitpid(child, 0)[1] == 0


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


@in_double()
def test_pinned_memory_is_host_memory():
    from hip import hip

    driver = HipDriver()
    _, pinned = hip.hipHostMalloc(64, 0)
    with pytest.raises(DriverCallError, match="is host memory"):
        driver.device_of(int(pinned))


@in_double(HIP_DOUBLE_MEMORY=4 << 20)
def test_memory_that_the_pool_keeps_is_given_up_for_what_is_not_of_the_pool(scale_image: bytes):
    double, driver = Double(), HipDriver()

    def used_and_freed() -> None:
        driver.free(0, driver.allocate(0, 3 << 20, 0), 0)
        assert double.kept() == 3 << 20

    used_and_freed()
    driver.synchronize(0, 0)
    assert double.kept() == 3 << 20
    driver.trim(0, 1 << 20)
    assert double.kept() == 1 << 20
    used_and_freed()
    address = driver.allocate_now(0, 2 << 20)
    assert double.kept() == 0
    with pytest.raises(DeviceMemoryError):
        driver.allocate_now(0, 3 << 20)
    driver.free_now(0, address)
    used_and_freed()
    double.fail("hipModuleLoadData", 2)
    driver.load_module(0, scale_image)
    assert double.kept() == 0 and double.calls("hipModuleLoadData") == 2


@in_double()
def test_null_handles_are_errors_whatever_the_status(scale_image: bytes):
    double, driver = Double(), HipDriver()
    module = driver.load_module(0, scale_image)
    with (
        mock.patch.object(driver._binding, "hipModuleGetFunction", return_value=(0, None)),
        pytest.raises(DriverCallError, match=r"hipModuleGetFunction .*null handle"),
    ):
        driver.get_function(0, module, "scale", 0)
    for call, act in {
        "hipModuleLoadData": lambda: driver.load_module(0, scale_image),
        "hipStreamCreateWithFlags": lambda: driver.create_stream(0),
    }.items():
        with (
            mock.patch.object(driver._unlocked, call, lambda *_: 0, create=True),
            pytest.raises(DriverCallError, match=f"{call} .*null handle"),
        ):
            act()
        assert act() != 0
    assert double.calls("hipModuleLaunchKernel") == 0


@in_double()
def test_the_image_lives_as_long_as_its_module(scale_image: bytes):
    """HIP need not copy it; the double checks it again."""
    driver = HipDriver()
    module = driver.load_module(0, bytes(bytearray(scale_image)))
    gc.collect()
    _overwritten = [bytes([byte]) * len(scale_image) for byte in range(64)]
    driver.get_function(0, module, "scale", 0)
    driver.unload_module(0, module)
    assert not driver._images
    with pytest.raises(DriverCallError, match="hipErrorNotFound"):
        driver.get_function(0, module, "scale", 0)
