"""Tests for all GPU drivers, as functions of a driver with at least one device.

They run on real GPUs (`test_gpu.py`) and with the double of libamdhip64 (`test_hip.py`). `launch_contract` has the
tests of launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from aot_runtime.device.drivers.gpu import GpuDriver
from aot_runtime.errors import DeviceError, DeviceMemoryError, DriverCallError

MANY = 3 << 18  # bytes; not a power of two


def large(driver: GpuDriver) -> int:
    """Return bytes that keep a GPU busy for a while: 256 MiB, and little where there is little."""
    return min(256 << 20, driver.properties(0).memory_bytes >> 8)


@contextmanager
def allocated(driver: GpuDriver, nbytes: int, stream: int = 0) -> Iterator[int]:
    address = driver.allocate(0, nbytes, stream)
    yield address
    driver.free(0, address, stream)


@contextmanager
def new_stream(driver: GpuDriver) -> Iterator[int]:
    stream = driver.create_stream(0)
    yield stream
    driver.destroy_stream(0, stream)


def to_device(driver: GpuDriver, address: int, array: np.ndarray, stream: int = 0) -> None:
    driver.copy_to_device(0, address, array.ctypes.data, array.nbytes, stream)


def from_device(driver: GpuDriver, address: int, nbytes: int, stream: int = 0) -> np.ndarray:
    array = np.empty(nbytes, np.uint8)
    driver.copy_to_host(0, array.ctypes.data, address, nbytes, stream)
    return array


def noise(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def properties_are_filled_in(driver: GpuDriver) -> None:
    found = driver.properties(0)
    assert driver.device_count() >= 1
    assert found.name
    assert found.arch.startswith({"hip": "gfx", "cuda": "sm_"}[driver.name]) and ":" not in found.arch
    assert found.num_cus > 0 and found.warp_size in (32, 64)
    assert found.lds_bytes >= 48 << 10 and found.memory_bytes >= 1 << 30
    major, minor = found.driver_version.split(".")[:2]
    assert int(major) >= 5 and int(minor) >= 0


def memory_round_trip(driver: GpuDriver) -> None:
    with new_stream(driver) as stream:
        for where in (0, stream):
            with allocated(driver, MANY, where) as address:
                assert address % 256 == 0
                data = noise(MANY, seed=where != 0)
                to_device(driver, address, data, where)
                assert (from_device(driver, address, MANY, where) == data).all()
                assert (from_device(driver, address + 7, 100, where) == data[7:107]).all()


def allocations_do_not_overlap(driver: GpuDriver) -> None:
    addresses = [driver.allocate(0, 1000, 0) for _ in range(8)]
    for byte, address in enumerate(addresses):
        driver.fill(0, address, byte, 1000, 0)
    for byte, address in enumerate(addresses):
        assert address % 256 == 0
        assert (from_device(driver, address, 1000) == byte).all()
        driver.free(0, address, 0)


def immediate_memory(driver: GpuDriver) -> None:
    address = driver.allocate_now(0, MANY)
    assert address % 256 == 0 and driver.device_of(address) == 0
    data = noise(MANY)
    to_device(driver, address, data)
    assert (from_device(driver, address, MANY) == data).all()
    driver.free_now(0, address)


def copies_and_fills_are_exact(driver: GpuDriver) -> None:
    with new_stream(driver) as stream, allocated(driver, MANY, stream) as a, allocated(driver, MANY, stream) as b:
        data = noise(MANY)
        to_device(driver, a, data, stream)
        to_device(driver, b, data, stream)
        driver.fill(0, b + 11, 0xA5, 1001, stream)
        expected = data.copy()
        expected[11:1012] = 0xA5
        assert (from_device(driver, b, MANY, stream) == expected).all()
        assert (from_device(driver, a, MANY, stream) == data).all()


def host_memory_may_be_reused_after_a_copy(driver: GpuDriver) -> None:
    """This includes page-locked memory, from which the device copies by itself."""
    nbytes = large(driver) // 4
    allocate_host = {"hip": "hipHostMalloc", "cuda": "cuMemHostAlloc"}[driver.name]
    free_host = {"hip": "hipHostFree", "cuda": "cuMemFreeHost"}[driver.name]
    driver.activate(0)
    status, host = getattr(driver._binding, allocate_host)(nbytes, 0)
    assert int(status) == 0
    pinned = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_uint8 * nbytes).from_address(int(host)))
    with new_stream(driver) as stream, allocated(driver, nbytes, stream) as address:
        for source in (pinned, np.empty(nbytes, np.uint8)):
            source[:] = 1
            driver.copy_to_device(0, address, source.ctypes.data, nbytes, stream)
            source[:] = 2
            assert (from_device(driver, address, nbytes, stream) == 1).all()
    assert int(getattr(driver._binding, free_host)(int(host))[0]) == 0


def pointers_know_their_device(driver: GpuDriver) -> None:
    host = np.zeros(64, np.uint8)
    with allocated(driver, 4096) as address:
        assert driver.device_of(address) == 0
        assert driver.device_of(address + 4095) == 0
    with pytest.raises(DriverCallError) as raised:
        driver.device_of(host.ctypes.data)
    assert raised.value.status == 1
    assert "PointerGetAttribute" in str(raised.value)


def streams_are_ordered_with_the_default_stream(driver: GpuDriver) -> None:
    nbytes = large(driver)
    with new_stream(driver) as stream, allocated(driver, nbytes) as address:
        for byte in range(1, 5):
            for filling, reading in ((0, stream), (stream, 0)):
                driver.fill(0, address, byte + 4 * (filling == 0), nbytes, filling)
                found = from_device(driver, address + nbytes - 64, 64, reading)
                assert (found == byte + 4 * (filling == 0)).all()


def streams_and_events(driver: GpuDriver) -> None:
    with new_stream(driver) as first, new_stream(driver) as second, allocated(driver, MANY, first) as address:
        assert first != second
        start, end = driver.create_event(0), driver.create_event(0)
        driver.record_event(0, start, first)
        driver.fill(0, address, 9, MANY, first)
        driver.record_event(0, end, first)
        driver.wait_event(0, second, end)
        assert (from_device(driver, address, MANY, second) == 9).all()
        driver.synchronize_event(0, end)
        assert 0 <= driver.elapsed_ms(0, start, end) < 10_000
        driver.destroy_event(0, start)
        driver.destroy_event(0, end)
        driver.synchronize(0, first)


def an_event_without_a_time_is_an_error(driver: GpuDriver) -> None:
    start, end = driver.create_event(0), driver.create_event(0)
    with pytest.raises(DriverCallError, match="EventElapsedTime"):
        driver.elapsed_ms(0, start, end)


def memory_in_use_is_what_was_allocated(driver: GpuDriver) -> None:
    before = driver.memory_in_use(0)
    with allocated(driver, MANY):
        held, used = driver.memory_in_use(0)
        assert held >= used >= before[1] + MANY
    driver.synchronize(0, 0)
    assert driver.memory_in_use(0)[1] == before[1]


def free_memory_is_what_is_left(driver: GpuDriver) -> None:
    before = driver.free_memory(0)
    assert 0 < before <= driver.properties(0).memory_bytes
    large, own = 96 << 20, 32 << 20  # meanwhile HIP may take or give back some memory of its own
    address = driver.allocate_now(0, large)
    left = driver.free_memory(0)
    driver.free_now(0, address)
    after = driver.free_memory(0)
    assert before - left >= large - own and after - left >= large - own, (before, left, after)


def capture_records_and_replays(driver: GpuDriver) -> None:
    with new_stream(driver) as stream, allocated(driver, 1024, stream) as address:
        driver.fill(0, address, 1, 1024, stream)
        assert not driver.is_capturing(0, stream) and not driver.is_capturing(0, 0)
        driver.begin_capture(0, stream)
        assert driver.is_capturing(0, stream)
        driver.fill(0, address, 7, 512, stream)
        graph = driver.end_capture(0, stream)
        assert not driver.is_capturing(0, stream)
        assert (from_device(driver, address, 1024, stream) == 1).all(), "captured work ran"
        for before in (3, 4):
            driver.fill(0, address, before, 1024, stream)
            driver.launch_graph(0, graph, stream)
            found = from_device(driver, address, 1024, stream)
            assert (found[:512] == 7).all() and (found[512:] == before).all()
        driver.destroy_graph(0, graph)


def a_stream_is_of_use_after_a_capture_that_failed(driver: GpuDriver) -> None:
    with new_stream(driver) as stream, allocated(driver, 1024, stream) as address:
        driver.synchronize(0, stream)
        driver.begin_capture(0, stream)
        with pytest.raises(DriverCallError, match="StreamSynchronize"):
            driver.synchronize(0, stream)
        with pytest.raises(DriverCallError, match="StreamEndCapture"):
            driver.end_capture(0, stream)
        assert not driver.is_capturing(0, stream)
        driver.fill(0, address, 3, 1024, stream)
        assert (from_device(driver, address, 1024, stream) == 3).all()


def memory_can_be_had_during_any_capture(driver: GpuDriver) -> None:
    """Captures are the driver's own, and a strict one that another library may have begun in this or another thread."""
    relaxed = driver.relaxed_capture
    strict = type(relaxed)(0)

    def take_and_give() -> None:
        driver.free_now(0, driver.allocate_now(0, 4096))

    with new_stream(driver) as stream, ThreadPoolExecutor(1) as other:
        for mode in (relaxed, strict):
            driver.activate(0)
            driver._call("StreamBeginCapture", stream, mode)
            take_and_give()
            other.submit(take_and_give).result()
            assert driver.is_capturing(0, stream)
            driver.destroy_graph(0, driver.end_capture(0, stream))


def too_much_memory_is_a_memory_error(driver: GpuDriver) -> None:
    for allocate in (lambda: driver.allocate(0, 1 << 50, 0), lambda: driver.allocate_now(0, 1 << 50)):
        with pytest.raises(DeviceMemoryError) as raised:
            allocate()
        assert isinstance(raised.value, MemoryError) and raised.value.status == 2
    memory_round_trip(driver)


def a_bad_image_fails_every_time(driver: GpuDriver) -> None:
    for _ in range(2):
        with pytest.raises(DriverCallError, match="ModuleLoadData") as raised:
            driver.load_module(0, b"this is no code object" + bytes(64))
        assert raised.value.status != 0 and raised.value.code in str(raised.value)


def a_device_that_is_not_there(driver: GpuDriver) -> None:
    for device in (driver.device_count(), -1):
        with pytest.raises(DriverCallError) as raised:
            driver.allocate(device, 1024, 0)
        assert raised.value.status == 101


def a_null_function_is_never_prepared(driver: GpuDriver) -> None:
    with pytest.raises(DeviceError, match="null function"):
        driver.prepare(0, 0, (1, 1, 1), 64, 0, bytes(16))


def fresh_threads_need_no_preparation(driver: GpuDriver) -> None:
    """Each thread begins with whatever the API makes current; every method must do."""

    def use() -> None:
        memory_round_trip(driver)
        pointers_know_their_device(driver)
        streams_and_events(driver)
        properties_are_filled_in(driver)

    for _ in range(4):  # one after another: HIP 7.2 crashes where a thread destroys a stream while another allocates
        with ThreadPoolExecutor(1) as thread:
            thread.submit(use).result()


def a_fresh_thread_may_begin_with_any_call(driver: GpuDriver) -> None:
    def in_a_thread(call: Callable[..., object], *arguments: int) -> object:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(call, *arguments).result()

    with new_stream(driver) as stream, allocated(driver, 4096) as address:
        assert in_a_thread(driver.device_of, address) == 0
        assert not in_a_thread(driver.is_capturing, 0, stream)
        in_a_thread(driver.synchronize, 0, stream)


CHECKS: dict[str, Callable[[GpuDriver], None]] = {
    check.__name__: check
    for check in (
        properties_are_filled_in,
        memory_round_trip,
        allocations_do_not_overlap,
        immediate_memory,
        copies_and_fills_are_exact,
        host_memory_may_be_reused_after_a_copy,
        pointers_know_their_device,
        streams_are_ordered_with_the_default_stream,
        streams_and_events,
        an_event_without_a_time_is_an_error,
        memory_in_use_is_what_was_allocated,
        free_memory_is_what_is_left,
        capture_records_and_replays,
        a_stream_is_of_use_after_a_capture_that_failed,
        memory_can_be_had_during_any_capture,
        too_much_memory_is_a_memory_error,
        a_bad_image_fails_every_time,
        a_device_that_is_not_there,
        a_null_function_is_never_prepared,
        fresh_threads_need_no_preparation,
        a_fresh_thread_may_begin_with_any_call,
    )
}
