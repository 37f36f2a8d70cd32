"""The drivers on real GPUs, and on AMD's own HIP over an emulated one. A test skips where its API has no device."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from aot_runtime.contract.records import TensorMap
from aot_runtime.device.drivers import open_driver
from aot_runtime.device.drivers.gpu import GpuDriver
from aot_runtime.errors import DeviceError, DriverCallError
from tests.support.driver_contract import CHECKS, allocated, from_device
from tests.support.hip_kernels import scale_code
from tests.support.launch_contract import LAUNCH_CHECKS, loaded
from tests.support.session_builds import ROOT

pytestmark = pytest.mark.on("gpu", "rocm")

PTX = (ROOT / "tests/support/kernels.ptx").read_bytes() + b"\0"


def driver_with_device(name: str) -> GpuDriver:
    try:
        driver = open_driver(name)
    except DeviceError as error:
        pytest.skip(str(error))
    if driver.device_count() == 0:
        pytest.skip(f"{name}: the driver is installed and sees no GPU")
    assert isinstance(driver, GpuDriver)
    return driver


@pytest.fixture(scope="module", params=["cuda", "hip"])
def driver(request: pytest.FixtureRequest) -> GpuDriver:
    return driver_with_device(request.param)


@pytest.fixture(scope="module")
def cuda() -> GpuDriver:
    """Mark tests of features of CUDA, or with kernels in PTX."""
    return driver_with_device("cuda")


@pytest.mark.parametrize("name", CHECKS)
def test_contract(driver: GpuDriver, name: str):
    CHECKS[name](driver)


@pytest.fixture(scope="module")
def image(driver: GpuDriver) -> bytes:
    """Return the code object of the kernels that are launched."""
    return PTX if driver.name == "cuda" else scale_code(driver.properties(0).arch)


@pytest.mark.parametrize("name", LAUNCH_CHECKS)
def test_launches(driver: GpuDriver, image: bytes, name: str):
    LAUNCH_CHECKS[name](driver, image)


def test_dynamic_shared_memory(cuda: GpuDriver):
    """Launches use a little, the default's maximum, and all there is; the limit is never lowered."""
    most, module = cuda.properties(0).lds_bytes, cuda.load_module(0, PTX)
    for lds_bytes in (1024, 48 << 10, most):
        function = cuda.get_function(0, module, "mirror", lds_bytes)
        assert cuda.get_function(0, module, "mirror", lds_bytes - 512) == function
        with allocated(cuda, 4 * 128) as out:
            cuda.prepare(0, function, (1, 1, 1), 128, lds_bytes, struct.pack("<QI", out, lds_bytes)).run(0)
            assert (from_device(cuda, out, 4 * 128).view(np.uint32) == np.arange(128)[::-1]).all()
    with pytest.raises(DriverCallError, match="cuFuncSetAttribute"):
        loaded(cuda, PTX, "mirror", most + 4)


def test_tensor_maps(cuda: GpuDriver):
    """Maps contain their arguments; arguments that the driver refuses raise an error."""
    boxes = TensorMap("bfloat16", (0, 1), (64, 64), 128)
    with allocated(cuda, 1 << 20) as address:
        made = {cuda.tensor_map(0, boxes, (512, 512), (1024,), at) for at in (address, address + 1024, address)}
        made.add(cuda.tensor_map(0, boxes, (511, 512), (1024,), address))
        assert len(made) == 3 and {len(item) for item in made} == {128}
        with pytest.raises(DriverCallError, match="cuTensorMapEncodeTiled"):
            cuda.tensor_map(0, boxes, (512, 512), (1028,), address)
