"""Launches and graphs of them through `HipDriver`, over the double of libamdhip64."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
import pytest

from aot_runtime.device.drivers.hip import HipDriver
from aot_runtime.errors import DriverCallError
from tests.support.hip_double.double import ILLEGAL_ADDRESS, Double, DoubleLibrary, Launch, in_double
from tests.support.launch_contract import LAUNCH_CHECKS, loaded

ONE = ((1, 1, 1), 64, 0)
"""Grid, block and LDS of the smallest launch."""


def scale(launch: Launch) -> None:
    out, source, factor, n = struct.unpack("<QQfI", launch.kernargs)
    assert launch.grid == (-(-n // 128), 1, 1) and launch.block == (128, 1, 1)
    values = np.ctypeslib.as_array((ctypes.c_float * n).from_address(source))
    np.ctypeslib.as_array((ctypes.c_float * n).from_address(out))[:] = values * np.float32(factor)


def check_contract(name: str, image: bytes) -> None:
    double = Double()
    if double.is_double:
        double.on_launch(scale)
    LAUNCH_CHECKS[name](HipDriver(), image)


@pytest.mark.parametrize("name", LAUNCH_CHECKS)
def test_contract(hip_double: DoubleLibrary, name: str, scale_image: bytes):
    hip_double.run(check_contract, name, scale_image, HIP_DOUBLE_DEVICES=2)


@in_double(only="the launch is too large to run")
def test_a_launch_arrives_as_it_was_prepared(scale_image: bytes):
    double, driver, launches = Double(), HipDriver(), []
    double.on_launch(launches.append)
    stream = driver.create_stream(0)
    kernargs = struct.pack("<QQfi", 0x7F0000001234, 2**64 - 1, 0.5, -7)
    launch = driver.prepare(0, loaded(driver, scale_image), (2**24 - 1, 65535, 3), 256, 65536, kernargs)
    address = ctypes.addressof(ctypes.c_char.from_buffer(launch.kernargs))
    for at in (0, stream, 0):
        launch.run(at)
    shape = ("scale", (2**24 - 1, 65535, 3), (256, 1, 1), 65536, kernargs, 0)
    assert launches == [Launch(scale_image, *shape, at) for at in (0, stream, 0)]
    with pytest.raises(BufferError):
        launch.kernargs.append(0)
    assert ctypes.addressof(ctypes.c_char.from_buffer(launch.kernargs)) == address


@in_double(HIP_DOUBLE_DEVICES=3)
def test_a_failed_launch_raises_with_its_status(scale_image: bytes):
    double, driver = Double(), HipDriver()
    double.on_launch(lambda _: ILLEGAL_ADDRESS)
    launch = driver.prepare(1, loaded(driver, scale_image, device=1), *ONE, bytes(8))
    with pytest.raises(DriverCallError) as raised:
        launch.run(0)
    error = raised.value
    assert (error.call, error.status, error.code) == ("hipModuleLaunchKernel", 700, "hipErrorIllegalAddress")
    double.fail("hipModuleLaunchKernel", 12345)
    with pytest.raises(DriverCallError, match=r"hipErrorUnknown \(12345\)"):
        launch.run(0)
    with pytest.raises(DriverCallError, match="hipErrorInvalidHandle"):
        launch.run(driver.create_stream(2))
    assert double.calls("hipModuleLaunchKernel") == 3, "a failed launch is not repeated"
    driver.activate(0)
    double.fail("hipSetDevice", 101)
    with pytest.raises(DriverCallError, match="hipErrorInvalidDevice"):
        launch.run(0)
    assert double.calls("hipModuleLaunchKernel") == 3, "a launch whose device cannot be had does not happen"


@in_double()
def test_a_broken_capture_is_an_error():
    double, driver = Double(), HipDriver()
    stream, address = driver.create_stream(0), driver.allocate(0, 64, 0)
    strict = (  # AMD's library lets these pass
        (lambda: driver.allocate(0, 64, stream), "hipErrorStreamCaptureUnsupported"),
        (lambda: driver.fill(0, address, 0, 64, 0), "hipErrorStreamCaptureImplicit"),
        (lambda: driver.free(0, address, 0), "hipErrorStreamCaptureImplicit"),
    )
    for use, code in (
        (lambda: driver.synchronize(0, stream), "hipErrorStreamCaptureUnsupported"),
        *(strict if double.is_double else ()),
    ):
        driver.begin_capture(0, stream)
        with pytest.raises(DriverCallError, match=code):
            use()
        with pytest.raises(DriverCallError, match="hipErrorStreamCaptureInvalidated"):
            driver.end_capture(0, stream)
        assert not driver.is_capturing(0, stream)
    double.fail("hipGraphInstantiateWithFlags", 999)
    driver.begin_capture(0, stream)
    with pytest.raises(DriverCallError, match="hipGraphInstantiateWithFlags"):
        driver.end_capture(0, stream)
    assert double.alive("graph") == 0, "the graph of a failed instantiation is destroyed"
