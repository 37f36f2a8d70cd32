"""Calls from many threads at once: every launch has its own arguments, whoever made or shares its plan."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np

from tests.support.reference_launches import open_over_double, with_bundles

THREADS, CALLS = 8, 200


def together(work: Callable[[int], None]) -> None:
    """Run `work(i)` in THREADS threads that start at once."""
    barrier = Barrier(THREADS)

    def start(i: int) -> None:
        barrier.wait(30)
        work(i)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(start, i) for i in range(THREADS)]:
            done.result()


@with_bundles()
def test_one_plan(folder: str):
    small, launches = open_over_double(folder)
    x = np.ones((2, 40), np.float32)
    arrays = [small.device.array(x * i) for i in range(THREADS)]

    def work(i: int) -> None:
        for call in range(CALLS):
            out = small.affine(arrays[i], scale=1000.0 * i, shift=call)
            assert (out.numpy() == 1000 * i * i + call).all()

    together(work)
    # Kernargs as they were launched: each thread's own input with its own scalars, each call once.
    owners = {array.ptr: i for i, array in enumerate(arrays)}
    seen = [(owners[item.values["x"]], item.values["scale"], item.values["shift"]) for item in launches.launches]
    assert sorted(seen) == [(i, 1000.0 * i, call) for i in range(THREADS) for call in range(CALLS)]


@with_bundles()
def test_new_plans_and_first_loads(folder: str):
    """All threads meet the same new plans and unloaded code at the same time."""
    small, launches = open_over_double(folder)

    def work(i: int) -> None:
        for call in range(CALLS):
            x = np.full((1 + call % 25, 3 + call % 3), i + 1, np.float32 if call % 2 else np.float16)
            bias = np.full((1, x.shape[1]), call, x.dtype) if call % 4 < 2 else None
            out = small.affine(x, bias, scale=2.0, mode="negated" if call % 8 < 4 else "plain")
            expected = 2 * (i + 1) + (call if bias is not None else 0)
            assert (out == (-expected if call % 8 < 4 else expected)).all()

    together(work)
    variants = {(item.variant.code, item.variant.symbol) for item in launches.launches}
    assert launches.double.alive("module") == len({code for code, _ in variants})  # each loaded once
    assert launches.count == THREADS * CALLS


@with_bundles()
def test_several_launches_and_streams(folder: str):
    small, launches = open_over_double(folder)
    device, double = small.device, launches.double
    streams = [device.stream() if i % 2 else None for i in range(THREADS)]

    def work(i: int) -> None:
        x = device.array(np.full((3, 130), i, np.float32))
        for call in range(CALLS // 4):
            total, largest = small.row_sums(x, offset=call, return_largest=True, stream=streams[i])
            assert (total.numpy(streams[i]) == 130 * i + call).all() and (largest.numpy(streams[i]) == i).all()

    together(work)
    by_stream = {item.launch.stream for item in launches.launches}
    assert by_stream == {0} | {stream.handle for stream in streams if stream}
    streams.clear()
    gc.collect()
    device.memory.trim()
    assert double.allocated() == 0


@with_bundles(HIP_DOUBLE_DEVICES=2)
def test_two_devices(folder: str):
    """The current device is each thread's own: every thread uses both."""
    bundles = [open_over_double(folder, device=f"hip:{i}")[0] for i in range(2)]
    _, launches = open_over_double(folder)

    def work(i: int) -> None:
        arrays = [bundle.device.array(np.full((2, 5), i, np.float32)) for bundle in bundles]
        for call in range(CALLS // 4):
            which = (i + call) % 2
            out = bundles[which].affine(arrays[which], scale=1.0, shift=call)
            assert out.device is bundles[which].device and (out.numpy() == i + call).all()

    together(work)
    devices = [item.launch.device for item in launches.launches]
    assert devices.count(0) == devices.count(1) == THREADS * CALLS // 8
