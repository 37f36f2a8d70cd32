"""Copies between host and device, through pinned memory if there is other work, over the double of libamdhip64.

With HIP_DOUBLE_DEFERS, the double does work only when something waits for it. A copy that reads its source too late, or
from a reused buffer, transfers wrong bytes.
"""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from aot_runtime import CaptureError, get_device
from aot_runtime.device.drivers.hip import HipDriver
from aot_runtime.device.drivers.staging import PIECE, PIECE_BUFFERS, SMALL, SMALL_BUFFERS
from aot_runtime.errors import DriverCallError
from tests.support.driver_contract import allocated, from_device, new_stream, to_device
from tests.support.hip_double.double import Double, in_double

WAITS = ("hipStreamSynchronize", "hipEventSynchronize")


def numbered(nbytes: int, seed: int) -> np.ndarray:
    """Return bytes whose words all differ; they are quicker to make than noise."""
    return np.arange(seed, seed + nbytes // 4 + 1, dtype=np.uint32).view(np.uint8)[:nbytes].copy()


def waits(double: Double) -> tuple[int, ...]:
    return tuple(map(double.calls, WAITS))


def behind_work(driver: HipDriver, address: int, data: np.ndarray, stream: int = 0) -> None:
    """Copy to the device behind work that has not ended."""
    driver.fill(0, address, 1, 4, stream)
    to_device(driver, address, data, stream)


@in_double(HIP_DOUBLE_DEFERS=1)
def test_behind_work_small_copies_wait_for_buffers_only():
    double, driver = Double(), HipDriver()
    count = 3 * SMALL_BUFFERS
    with new_stream(driver) as stream, allocated(driver, count * SMALL, stream) as address:
        sent, source = [], np.empty(SMALL, np.uint8)
        for number in range(count):
            sent.append(numbered(SMALL, number))
            source[:] = sent[-1]
            behind_work(driver, address + number * SMALL, source, stream)
            source[:] = 0
        assert double.calls("hipHostMalloc") == 1 and waits(double) == (0, count - SMALL_BUFFERS)
        assert (from_device(driver, address, count * SMALL, stream) == np.concatenate(sent)).all()


@in_double(HIP_DOUBLE_DEFERS=1)
def test_behind_work_large_copies_go_in_pieces():
    double, driver = Double(), HipDriver()
    for nbytes in (SMALL + 1, PIECE, PIECE + 1, (PIECE_BUFFERS + 2) * PIECE + 12345):
        copies, pieces = double.calls("hipMemcpyHtoDAsync"), -(-nbytes // PIECE)
        with new_stream(driver) as stream, allocated(driver, nbytes, stream) as address:
            data = numbered(nbytes, 0)
            source = data.copy()
            behind_work(driver, address, source, stream)
            source[:] = 0
            assert double.calls("hipMemcpyHtoDAsync") == copies + pieces
            assert (from_device(driver, address, nbytes, stream) == data).all()
    assert double.calls("hipHostMalloc") == PIECE_BUFFERS


@in_double(HIP_DOUBLE_DEFERS=1)
def test_an_idle_stream_is_copied_to_and_waited_for():
    double, driver = Double(), HipDriver()
    with new_stream(driver) as stream, new_stream(driver) as busy, allocated(driver, SMALL) as address:
        driver.synchronize(0, stream)
        driver.fill(0, address, 1, 4, busy)
        data = numbered(SMALL, 0)
        before = waits(double)
        to_device(driver, address, data, stream)
        assert (double.calls("hipHostMalloc"), waits(double)) == (0, (before[0] + 1, before[1]))
        assert (from_device(driver, address, SMALL, stream) == data).all()


@in_double(HIP_DOUBLE_DEFERS=1)
def test_a_read_waits_once():
    double, driver = Double(), HipDriver()
    with new_stream(driver) as stream, allocated(driver, SMALL) as address:
        for byte in range(3):
            driver.fill(0, address, byte, SMALL, stream)
            assert (from_device(driver, address, SMALL, stream) == byte).all()
            assert waits(double) == (byte + 1, 0)


@in_double(HIP_DOUBLE_DEFERS=1)
def test_failed_calls_lose_no_buffer_and_no_bytes():
    double, driver = Double(), HipDriver()
    nbytes = 2 * PIECE
    with allocated(driver, nbytes) as address:
        for turn in range(2 * SMALL_BUFFERS):
            for function in ("hipMemcpyHtoDAsync", "hipEventRecord", "hipStreamQuery", "hipMemcpyDtoHAsync"):
                for size in (100, nbytes if turn < 2 * PIECE_BUFFERS else 200):
                    double.fail(function, 999)
                    with pytest.raises(DriverCallError, match=function):
                        behind_work(driver, address, numbered(size, turn))
                        from_device(driver, address, size)
                        pytest.fail(f"{function} did not fail")
        data = numbered(nbytes, 0)
        behind_work(driver, address, data)
        assert (from_device(driver, address, nbytes) == data).all()
    assert double.calls("hipHostMalloc") <= 1 + PIECE_BUFFERS


@in_double(HIP_DOUBLE_DEFERS=1)
def test_a_buffer_with_no_event_behind_its_copy_is_not_used_again_before_that():
    """If the copy's call fails before its event, a later copy's bytes could overwrite those still on the way."""
    double, driver = Double(), HipDriver()
    with new_stream(driver) as stream, allocated(driver, SMALL) as first, allocated(driver, SMALL) as second:
        sent = [numbered(SMALL, 0), numbered(SMALL, 1)]
        double.fail("hipEventRecord", 999)
        with pytest.raises(DriverCallError, match="hipEventRecord"):
            behind_work(driver, first, sent[0], stream)
        behind_work(driver, second, sent[1], stream)
        for address, data in zip((first, second), sent, strict=True):
            assert (from_device(driver, address, SMALL, stream) == data).all()


@in_double(HIP_DOUBLE_DEFERS=1)
def test_threads_share_the_buffers():
    double, driver = Double(), HipDriver()

    def work(seed: int) -> None:
        with new_stream(driver) as stream:
            for size in (3 * PIECE + seed, SMALL - seed):
                with allocated(driver, size, stream) as address:
                    data = numbered(size, seed)
                    behind_work(driver, address, data, stream)
                    assert (from_device(driver, address, size, stream) == data).all()

    count = 3 * PIECE_BUFFERS
    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(work, seed) for seed in range(count)]:
            done.result()
    assert 1 <= double.calls("hipHostMalloc") <= 1 + PIECE_BUFFERS


@in_double(HIP_DOUBLE_DEFERS=1)
def test_buffers_go_with_the_driver():
    double, driver = Double(), HipDriver()
    with allocated(driver, 2 * SMALL) as address:
        behind_work(driver, address, numbered(2 * SMALL, 0))
        behind_work(driver, address, numbered(SMALL, 0))
    assert (double.alive("host_memory"), double.alive("event")) == (2, SMALL_BUFFERS + 1)
    del driver
    gc.collect()
    assert (double.alive("host_memory"), double.alive("event")) == (0, 0)


@in_double()
def test_a_stream_that_is_captured_takes_no_copies():
    device = get_device("hip:0")
    stream, array = device.stream(), device.array(np.arange(4))
    with device.capture(stream) as graph:
        for copy in (lambda: array.copy_from(np.zeros(4, int), stream), lambda: array.numpy(stream)):
            with pytest.raises(CaptureError, match="host memory cannot be copied"):
                copy()
        array.fill(0, stream)
    assert (array.numpy() == np.arange(4)).all()
    graph.launch(stream)
    assert (array.numpy() == 0).all()
