"""The drivers on real GPUs. Each test skips where its API has no device."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from aot_runtime.device.drivers import open_driver
from aot_runtime.device.drivers.gpu import GpuDriver
from aot_runtime.errors import DeviceError, DriverCallError
from tests.support.driver_contract import CHECKS, allocated, from_device
from tests.support.launch_contract import LAUNCH_CHECKS, loaded

pytestmark = pytest.mark.gpu

# What a compiler would make of two kernels, as PTX: the driver's own assembler takes it from there.
# scale: out[i] = in[i] * factor, i < n.
# mirror: each thread of a workgroup leaves its number at the far end of the dynamic shared memory, and fetches that of
# its mirror image.
PTX = b"""
.version 7.0
.target sm_80
.address_size 64

.visible .entry scale(.param .u64 out, .param .u64 in, .param .f32 factor, .param .u32 n)
{
    .reg .pred %p; .reg .b32 %i, %t, %count; .reg .b64 %at, %to, %from; .reg .f32 %x, %f;
    ld.param.u64 %to, [out]; ld.param.u64 %from, [in]; ld.param.f32 %f, [factor]; ld.param.u32 %count, [n];
    mov.u32 %i, %ctaid.x; mov.u32 %t, %ntid.x; mul.lo.u32 %i, %i, %t; mov.u32 %t, %tid.x; add.u32 %i, %i, %t;
    setp.ge.u32 %p, %i, %count;
    @%p ret;
    mul.wide.u32 %at, %i, 4;
    cvta.to.global.u64 %to, %to; cvta.to.global.u64 %from, %from;
    add.u64 %to, %to, %at; add.u64 %from, %from, %at;
    ld.global.f32 %x, [%from]; mul.rn.f32 %x, %x, %f; st.global.f32 [%to], %x;
    ret;
}

.extern .shared .align 16 .b8 dynamic[];

.visible .entry mirror(.param .u64 out, .param .u32 nbytes)
{
    .reg .b32 %t, %size, %end, %base, %mine, %other; .reg .b64 %to, %at;
    ld.param.u64 %to, [out]; ld.param.u32 %end, [nbytes];
    mov.u32 %t, %tid.x; mov.u32 %size, %ntid.x; mov.u32 %base, dynamic; add.u32 %end, %end, %base;
    shl.b32 %mine, %t, 2; sub.u32 %mine, %end, %mine; sub.u32 %mine, %mine, 4;
    st.shared.u32 [%mine], %t;
    bar.sync 0;
    sub.u32 %other, %size, %t; shl.b32 %other, %other, 2; sub.u32 %other, %end, %other;
    ld.shared.u32 %other, [%other];
    mul.wide.u32 %at, %t, 4; cvta.to.global.u64 %to, %to; add.u64 %to, %to, %at;
    st.global.u32 [%to], %other;
    ret;
}
\0"""


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
    """For tests that launch: PTX is CUDA's. (On HIP, code objects are launched by the tests of whole bundles.)"""
    return driver_with_device("cuda")


@pytest.mark.parametrize("name", CHECKS)
def test_contract(driver: GpuDriver, name: str):
    CHECKS[name](driver)


@pytest.mark.parametrize("name", LAUNCH_CHECKS)
def test_launches(cuda: GpuDriver, name: str):
    LAUNCH_CHECKS[name](cuda, PTX)


def test_dynamic_shared_memory(cuda: GpuDriver):
    """A little, the default's most, all there is; and the limit is never lowered."""
    most, module = cuda.properties(0).lds_bytes, cuda.load_module(0, PTX)
    for lds_bytes in (1024, 48 << 10, most):
        function = cuda.get_function(0, module, "mirror", lds_bytes)
        assert cuda.get_function(0, module, "mirror", lds_bytes - 512) == function
        with allocated(cuda, 4 * 128) as out:
            cuda.prepare(0, function, (1, 1, 1), 128, lds_bytes, struct.pack("<QI", out, lds_bytes)).run(0)
            assert (from_device(cuda, out, 4 * 128).view(np.uint32) == np.arange(128)[::-1]).all()
    with pytest.raises(DriverCallError, match="cuFuncSetAttribute"):
        loaded(cuda, PTX, "mirror", most + 4)
