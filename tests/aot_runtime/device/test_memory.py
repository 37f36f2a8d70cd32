"""Stream-ordered memory, and the streams, events and graphs that it waits for, over the double of libamdhip64."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pytest

from aot_runtime import ArgumentError, CaptureError, DeviceMemoryError, DriverCallError, get_device
from aot_runtime.device.memory import GRANULE, KEPT_BLOCK, KEPT_TOTAL
from tests.support.hip_double.double import Double, in_double

MIB = 1 << 20


@in_double()
def test_streams_and_events_are_destroyed():
    device, double = get_device("hip:0"), Double()
    streams = [device.stream() for _ in range(3)]
    event = streams[0].record()
    streams[1].wait(event)
    later = device.event(streams[1])
    assert later.elapsed_ms(event) >= 0
    streams[2].synchronize()
    device.synchronize(streams[1])
    device.synchronize()
    assert (double.alive("stream"), double.alive("event")) == (3, 2)
    del streams, event, later
    gc.collect()
    assert (double.alive("stream"), double.alive("event")) == (0, 0)


@in_double()
def test_a_stream_outlives_its_own_arrays_and_no_others():
    """Memory is freed on the stream that it was allocated on. For another that used it, the default stream waits."""
    device, double = get_device("hip:0"), Double()
    stream, other = device.stream(), device.stream()
    own, used = device.empty(MIB, "float32", stream=stream), device.empty(MIB, "float32")
    for user in (stream, other):
        used.owner.used_on(user.handle)
    waits = double.calls("hipStreamWaitEvent")
    del stream, other, user
    gc.collect()
    assert double.alive("stream") == 1
    assert double.calls("hipStreamWaitEvent") == waits + 1, "the default stream, for what was destroyed"
    del own
    gc.collect()
    assert (double.alive("stream"), double.calls("hipStreamWaitEvent")) == (0, waits + 3), "its own frees, then it goes"
    del used
    gc.collect()
    assert (double.calls("hipStreamWaitEvent"), double.alive("event"), double.allocated()) == (waits + 3, 0, 0)


@in_double()
def test_an_array_forgets_streams_that_are_destroyed():
    """Weights that are used on a new stream by each request do not keep the streams alive."""
    device, double = get_device("hip:0"), Double()
    weights, kept = device.empty(100, "int8"), device.stream()
    for _ in range(100):
        stream = device.stream()
        weights.owner.used_on(stream.handle)
        weights.owner.used_on(kept.handle)
        del stream
    assert double.alive("stream") == 1
    assert len(weights.owner.others) <= 2 and kept.handle in weights.owner.others


@in_double()
def test_streams_and_arrays_in_one_cycle():
    """The collector finalises them in any order: memory is freed after the work of the streams that used it."""
    device, double = get_device("hip:0"), Double()
    for first in (True, False):
        stream, x = device.stream(), device.empty(MIB, "float32")
        x.owner.used_on(stream.handle)
        cycle = [x, stream] if first else [stream, x]
        cycle.append(cycle)
        waits = double.calls("hipStreamWaitEvent")
        del stream, x, cycle
        gc.collect()
        assert double.calls("hipStreamWaitEvent") > waits
        assert (double.alive("stream"), double.alive("event"), double.allocated()) == (0, 0, 0)


@in_double()
def test_memory_of_a_stream_in_one_cycle_with_it():
    """If the stream is destroyed first, memory is freed on the default stream, which has waited for it."""
    device, double = get_device("hip:0"), Double()
    for nbytes, first in product((100, 2 * KEPT_BLOCK), (True, False)):
        stream = device.stream()
        arrays = [device.empty(nbytes, "int8", stream=stream) for _ in range(2)]
        arrays[0].owner.used_on(0)
        cycle: list[Any] = [stream, *arrays] if first else [*arrays, stream]
        cycle.append(cycle)
        freed = double.calls("hipFreeAsync")
        del stream, arrays, cycle
        gc.collect()
        device.trim()
        assert double.calls("hipFreeAsync") == freed + 2, "none on a stream that is gone"
        assert (double.alive("stream"), double.alive("event"), double.allocated()) == (0, 0, 0)


@in_double()
def test_a_stream_that_is_dropped_during_a_capture_is_destroyed_after_it():
    device, double = get_device("hip:0"), Double()
    stream, other = device.stream(), device.stream()
    with device.capture(stream):
        del other
        gc.collect()
        assert double.alive("stream") == 2
    assert double.alive("stream") == 1


@in_double()
def test_a_destroyed_foreign_stream_does_no_harm():
    """A stream of another library may be destroyed before an array that it used, and its handle reused."""
    device, double = get_device("hip:0"), Double()
    handle = device.driver.create_stream(0)
    device.empty(100, "int8", stream=handle)  # dropped at once
    assert double.allocated() == 0, "its block is not kept"
    x = device.empty(MIB, "float32")
    x.owner.used_on(handle)
    device.driver.destroy_stream(0, handle)
    del x
    gc.collect()
    assert double.alive("event") == 0


@in_double()
def test_small_blocks_are_kept_for_their_stream():
    device, double = get_device("hip:0"), Double()
    stream = device.stream()
    x = device.empty(100, "int8")
    address = x.ptr
    del x
    calls = double.calls("hipMallocFromPoolAsync")
    x = device.empty(GRANULE, "int8")  # another size of the same granule
    assert x.ptr == address and double.calls("hipMallocFromPoolAsync") == calls
    del x
    y = device.empty(100, "int8", stream=stream)
    assert y.ptr != address
    del y
    z = device.empty(100, "int8", stream=stream)
    assert double.calls("hipMallocFromPoolAsync") == calls + 1
    del z, stream
    gc.collect()
    assert double.alive("stream") == 0 and double.allocated() == GRANULE, "the default stream's block"
    blocks = device.memory._shelves[GRANULE].free
    device.memory.trim()
    assert double.allocated() == 0
    assert not blocks, "a thread that has looked at the kept blocks takes none that was freed meanwhile"


@in_double()
def test_large_blocks_are_not_kept_and_small_ones_have_a_limit():
    device, double = get_device("hip:0"), Double()
    device.empty(KEPT_BLOCK + 1, "int8")  # dropped at once
    assert double.allocated() == 0
    blocks = [device.empty(KEPT_BLOCK, "int8") for _ in range(KEPT_TOTAL // KEPT_BLOCK + 5)]
    blocks.clear()
    gc.collect()
    assert double.allocated() == KEPT_TOTAL


@in_double(HIP_DOUBLE_MEMORY=4 * MIB)
def test_kept_blocks_are_given_up_when_memory_runs_out():
    device, double = get_device("hip:0"), Double()
    blocks = [device.empty(MIB, "int8") for _ in range(4)]
    with pytest.raises(DeviceMemoryError) as raised:
        device.empty(MIB, "int8")
    assert isinstance(raised.value, MemoryError) and raised.value.code == "hipErrorOutOfMemory"
    blocks.clear()
    gc.collect()
    assert double.allocated() == 4 * MIB
    large = device.empty(3 * MIB, "int8")
    assert double.allocated() == large.nbytes
    with pytest.raises(DeviceMemoryError):
        device.empty(2 * MIB, "int8")


@in_double(HIP_DOUBLE_MEMORY=64 * MIB)
def test_memory_that_nothing_uses_can_be_given_back():
    """The driver's pool holds as much as was once in use, and counts blocks kept here as used."""
    device, double = get_device("hip:0"), Double()
    stream = device.stream()
    arrays = [device.empty(size, "int8", stream=where) for size in (100, MIB, 20 * MIB) for where in (None, stream)]
    used = arrays.pop()
    arrays.clear()
    gc.collect()
    assert double.kept() == 20 * MIB and double.allocated() == 20 * MIB + 2 * MIB + 2 * GRANULE
    device.synchronize()
    assert device.memory_stats() == (40 * MIB + 2 * MIB + 2 * GRANULE, 20 * MIB)
    device.trim(25 * MIB)
    assert double.allocated() == used.nbytes and double.kept() == 5 * MIB
    device.trim()
    assert double.allocated() == used.nbytes and double.kept() == 0
    del used
    gc.collect()
    assert double.kept() == 20 * MIB
    device.trim()
    assert double.kept() == 0
    with pytest.raises(ArgumentError, match="keep is -1"):
        device.trim(-1)
    with device.capture(stream), pytest.raises(CaptureError, match="cannot be given back"):
        device.trim()


@in_double(HIP_DOUBLE_MEMORY=4 * MIB)
def test_too_little_memory_is_an_error_after_the_second_try():
    device, double = get_device("hip:0"), Double()
    device.empty(100, "int8")
    double.fail("hipMallocFromPoolAsync", 2)
    device.empty(200 * GRANULE, "int8")
    assert double.calls("hipMemPoolTrimTo") == 1 and double.allocated() == 200 * GRANULE, "the first block went"
    stream, calls = device.stream(), double.calls("hipMallocFromPoolAsync")
    with pytest.raises(DeviceMemoryError):
        device.empty(5 * MIB, "int8")
    assert double.calls("hipMallocFromPoolAsync") == calls + 2
    with device.capture(stream), pytest.raises(DeviceMemoryError):
        device.memory.workspace(5 * MIB, stream.handle)


@in_double()
def test_a_block_is_given_to_one_thread():
    """Allocating, releasing and trimming at once: no address is in two arrays, and nothing is lost."""
    device, double = get_device("hip:0"), Double()
    held: set[int] = set()
    lock = threading.Lock()

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for turn in range(400):
            x = device.empty(int(random.integers(1, 4)) * GRANULE, "int8")
            with lock:
                assert x.ptr not in held
                held.add(x.ptr)
            if turn % 16 == seed:
                device.memory.trim()
            with lock:
                held.discard(x.ptr)
            del x

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, seed) for seed in range(8)]:
            done.result()
    device.memory.trim()
    assert double.allocated() == 0


@in_double()
def test_memory_is_released_wherever_garbage_is_collected():
    """The collector may run while a thread allocates; what dies then must not wait for that thread's lock."""
    device, double = get_device("hip:0"), Double()

    def collect_while_allocating() -> None:
        cycle: list[Any] = [device.empty(1, "int8")]
        cycle.append(cycle)
        del cycle
        with device.memory._lock:
            gc.collect()

    thread = threading.Thread(target=collect_while_allocating, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "deadlock"
    device.memory.trim()
    assert double.allocated() == 0


@in_double()
def test_what_is_dropped_during_a_capture_is_freed_after_it():
    device, double = get_device("hip:0"), Double()
    stream, other = device.stream(), device.stream()
    arrays, target = [device.empty(2 * MIB, "int8", stream=s) for s in (None, stream, other)], device.empty(16, "int8")
    arrays[0].owner.used_on(other.handle)
    del other
    with device.capture(stream) as graph:
        target.fill(7, stream)
        arrays.clear()
        gc.collect()
        assert double.allocated() >= 6 * MIB
    gc.collect()
    assert double.allocated() < MIB
    graph.launch(stream)
    assert (target.numpy() == 7).all()
    del graph, stream
    gc.collect()
    assert (double.alive("executable"), double.alive("graph"), double.alive("stream")) == (0, 0, 0)


@in_double(HIP_DOUBLE_DEVICES=2)
def test_a_capture_that_fails_leaves_the_device_as_it_was():
    device, double = get_device("hip:0"), Double()
    stream = device.stream()
    with pytest.raises((ArgumentError, DriverCallError)), device.capture(get_device("hip:1").stream()):
        pytest.fail("the capture of another device's stream began")
    x = device.empty(2 * MIB, "int8")
    with pytest.raises(DriverCallError) as raised, device.capture(stream) as graph:
        del x
        stream.synchronize()  # which no capture survives
    assert raised.value.call in ("hipStreamEndCapture", "hipStreamSynchronize")
    gc.collect()
    assert double.allocated() == 0 and not device.holdings.captures
    with pytest.raises(CaptureError, match="was not captured to its end"):
        graph.launch()
    with pytest.raises(KeyError), device.capture(stream):
        raise KeyError("the caller's")
    assert not device.holdings.captures and not device.driver.is_capturing(0, stream.handle)
    with device.capture(stream) as again:
        pass
    again.launch(stream)
