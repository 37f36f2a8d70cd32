"""The drivers on real GPUs. Each test skips where its API has no device."""

from __future__ import annotations

import struct
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from aot_runtime.device.drivers import open_driver
from aot_runtime.device.drivers.gpu import GpuDriver
from aot_runtime.errors import DeviceError, DriverCallError
from tests.support.driver_contract import CHECKS, allocated, from_device, new_stream, to_device

pytestmark = pytest.mark.on("gpu")

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


def loaded(cuda: GpuDriver, kernel: str = "scale", lds_bytes: int = 0, device: int = 0) -> int:
    return cuda.get_function(device, cuda.load_module(device, PTX), kernel, lds_bytes)


def scaling(cuda: GpuDriver, function: int, out: int, source: int, factor: float, n: int):
    kernargs = struct.pack("<QQfI", out, source, factor, n)
    return cuda.prepare(0, function, (-(-n // 128), 1, 1), 128, 0, kernargs)


def test_launch(cuda: GpuDriver):
    values = np.arange(1000, dtype=np.float32)
    with (
        new_stream(cuda) as stream,
        allocated(cuda, values.nbytes, stream) as source,
        allocated(cuda, values.nbytes, stream) as out,
    ):
        to_device(cuda, source, values, stream)
        cuda.fill(0, out, 0xFF, values.nbytes, stream)
        launch = scaling(cuda, loaded(cuda), out, source, 2.0, 999)
        launch.run(stream)
        found = from_device(cuda, out, values.nbytes, stream).view(np.float32)
        assert (found[:999] == 2 * values[:999]).all() and np.isnan(found[999])
        for factor in (3.0, 4.0):  # the same launch, other kernargs
            struct.pack_into("<f", launch.kernargs, 16, factor)
            launch.run(stream)
            assert (from_device(cuda, out, 4 * 999, stream).view(np.float32) == factor * values[:999]).all()


def test_kernargs_are_copied_by_run(cuda: GpuDriver):
    """Many launches at once, each with kernargs that the next one overwrites."""
    count, one = 500, np.ones(1, np.float32)
    with allocated(cuda, 4) as source, allocated(cuda, 4 * count) as out:
        to_device(cuda, source, one)
        launch = scaling(cuda, loaded(cuda), out, source, 0.0, 1)
        for index in range(count):
            struct.pack_into("<QQf", launch.kernargs, 0, out + 4 * index, source, index)
            launch.run(0)
        assert (from_device(cuda, out, 4 * count).view(np.float32) == np.arange(count)).all()


@pytest.mark.parametrize("amount", ["a little", "the default's most", "all there is"])
def test_dynamic_shared_memory(cuda: GpuDriver, amount: str):
    lds_bytes = {"a little": 1024, "the default's most": 48 << 10, "all there is": cuda.properties(0).lds_bytes}[amount]
    function = loaded(cuda, "mirror", lds_bytes)
    with allocated(cuda, 4 * 128) as out:
        cuda.prepare(0, function, (1, 1, 1), 128, lds_bytes, struct.pack("<QI", out, lds_bytes)).run(0)
        assert (from_device(cuda, out, 4 * 128).view(np.uint32) == np.arange(128)[::-1]).all()


def test_the_limit_of_shared_memory_is_never_lowered(cuda: GpuDriver):
    most = cuda.properties(0).lds_bytes
    module = cuda.load_module(0, PTX)
    function = cuda.get_function(0, module, "mirror", most)
    assert cuda.get_function(0, module, "mirror", most - 4096) == function
    with allocated(cuda, 4 * 32) as out:
        cuda.prepare(0, function, (1, 1, 1), 32, most, struct.pack("<QI", out, most)).run(0)
        assert (from_device(cuda, out, 4 * 32).view(np.uint32) == np.arange(32)[::-1]).all()


def test_too_much_shared_memory_is_an_error(cuda: GpuDriver):
    with pytest.raises(DriverCallError, match="cuFuncSetAttribute"):
        loaded(cuda, "mirror", cuda.properties(0).lds_bytes + 4)


def test_a_graph_of_a_fill_and_a_launch(cuda: GpuDriver):
    values = np.arange(256, dtype=np.float32)
    with (
        new_stream(cuda) as stream,
        allocated(cuda, values.nbytes, stream) as source,
        allocated(cuda, values.nbytes, stream) as out,
    ):
        to_device(cuda, source, values, stream)
        launch = scaling(cuda, loaded(cuda), out, source, 2.0, 100)
        cuda.begin_capture(0, stream)
        cuda.fill(0, out, 0, values.nbytes, stream)
        launch.run(stream)
        graph = cuda.end_capture(0, stream)
        struct.pack_into("<f", launch.kernargs, 16, 99.0)  # too late for the graph
        for factor in (1, 5):
            to_device(cuda, source, values * factor, stream)
            cuda.fill(0, out, 0xFF, values.nbytes, stream)
            cuda.launch_graph(0, graph, stream)
            found = from_device(cuda, out, values.nbytes, stream).view(np.float32)
            assert (found[:100] == 2 * factor * values[:100]).all() and (found[100:] == 0).all()
        cuda.destroy_graph(0, graph)


def test_a_module_is_loaded_during_a_strict_capture(cuda: GpuDriver):
    with new_stream(cuda) as stream, allocated(cuda, 4, stream) as source, allocated(cuda, 4, stream) as out:
        to_device(cuda, source, np.full(1, 3, np.float32), stream)
        cuda._call("StreamBeginCapture", stream, type(cuda.relaxed_capture)(0))
        scaling(cuda, loaded(cuda), out, source, 2.0, 1).run(stream)
        graph = cuda.end_capture(0, stream)
        cuda.launch_graph(0, graph, stream)
        assert from_device(cuda, out, 4, stream).view(np.float32) == 6
        cuda.destroy_graph(0, graph)


def test_threads_launch(cuda: GpuDriver):
    """Each thread's first call of the API is a launch, for which no context is current yet."""
    values = np.arange(4096, dtype=np.float32)
    function = loaded(cuda)
    outs = [cuda.allocate(0, values.nbytes, 0) for _ in range(8)]
    source = cuda.allocate(0, values.nbytes, 0)
    to_device(cuda, source, values)
    launches = [scaling(cuda, function, out, source, 0.0, 4096) for out in outs]

    def work(index: int) -> None:
        for step in range(100):
            struct.pack_into("<f", launches[index].kernargs, 16, index + step)
            launches[index].run(0)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    for index, out in enumerate(outs):
        assert (from_device(cuda, out, values.nbytes).view(np.float32) == (index + 99) * values).all()
        cuda.free(0, out, 0)
    cuda.free(0, source, 0)


def test_a_bad_launch_is_an_error_and_harms_nothing(cuda: GpuDriver):
    function = loaded(cuda)
    for grid, block, lds_bytes in (((0, 1, 1), 128, 0), ((1, 1, 1), 2048, 0), ((1, 1, 1), 128, 1 << 20)):
        with pytest.raises(DriverCallError, match="cuLaunchKernel") as raised:
            cuda.prepare(0, function, grid, block, lds_bytes, bytes(24)).run(0)
        assert raised.value.code == "CUDA_ERROR_INVALID_VALUE"
    test_launch(cuda)


def test_a_missing_kernel_is_an_error(cuda: GpuDriver):
    with pytest.raises(DriverCallError, match="cuModuleGetFunction failed: CUDA_ERROR_NOT_FOUND"):
        loaded(cuda, "scal")


def test_a_launch_goes_to_its_own_device(cuda: GpuDriver):
    if cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for device in (1, 0):
        out = cuda.allocate(device, 4 * 32, 0)
        function = loaded(cuda, "mirror", device=device)
        launch = cuda.prepare(device, function, (1, 1, 1), 32, 1024, struct.pack("<QI", out, 1024))
        cuda.activate(1 - device)
        launch.run(0)
        found = np.empty(32, np.uint32)
        cuda.copy_to_host(device, found.ctypes.data, out, found.nbytes, 0)
        assert (found == np.arange(32)[::-1]).all() and cuda.device_of(out) == device
        cuda.free(device, out, 0)


def test_a_launch_takes_microseconds(cuda: GpuDriver):
    """Most of it is libcuda's; a launch through the binding, or one that waited, would take several times as long."""
    with allocated(cuda, 8) as source:
        launch = scaling(cuda, loaded(cuda), source + 4, source, 1.0, 1)

        def seconds_per_launch(count: int = 200) -> float:
            cuda.synchronize(0, 0)
            start = time.perf_counter()
            for _ in range(count):
                launch.run(0)
            return (time.perf_counter() - start) / count

        best = min(seconds_per_launch() for _ in range(20))
        print(f"{best * 1e6:.2f} us a launch")
        assert best < 20e-6
