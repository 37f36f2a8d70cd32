"""Concurrent calls from many threads: every launch has its own arguments, also with shared plans."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np

from tests.support.hip_double.double import in_double
from tests.support.reference_launches import open_over_double

THREADS, CALLS = 8, 100


def together(work: Callable[[int], None]) -> None:
    """Run `work(i)` in THREADS threads that start at once."""
    barrier = Barrier(THREADS)

    def start(i: int) -> None:
        barrier.wait(30)
        work(i)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(start, i) for i in range(THREADS)]:
            done.result()


@in_double(HIP_DOUBLE_DEVICES=2)
def test_one_plan_on_two_devices_and_several_streams(small_bundle: Path):
    """The current device is each thread's own: every thread uses both."""
    bundles = [open_over_double(small_bundle, f"hip:{i}")[0] for i in range(2)]
    _, launches = open_over_double(small_bundle)
    x = np.ones((2, 40), np.float32)
    arrays = [[bundle.device.array(x * i) for i in range(THREADS)] for bundle in bundles]
    streams = [[bundle.device.stream() if i % 2 else None for i in range(THREADS)] for bundle in bundles]

    def work(i: int) -> None:
        for call in range(CALLS):
            which = (i + call) % 2
            out = bundles[which].affine(arrays[which][i], scale=1000.0 * i, shift=call, stream=streams[which][i])
            assert out.device is bundles[which].device
            assert (out.numpy(streams[which][i]) == 1000 * i * i + call).all()

    together(work)
    # Kernargs as they were launched: each thread's own input with its own scalars, each call once.
    owners = {array.ptr: i for group in arrays for i, array in enumerate(group)}
    seen = [(owners[item.values["x"]], item.values["scale"], item.values["shift"]) for item in launches.launches]
    assert sorted(seen) == [(i, 1000.0 * i, call) for i in range(THREADS) for call in range(CALLS)]
    devices = [item.launch.device for item in launches.launches]
    assert devices.count(0) == devices.count(1)
    handles = {stream.handle for group in streams for stream in group if stream}
    assert {item.launch.stream for item in launches.launches} == {0} | handles
    streams.clear(), arrays.clear()
    gc.collect()
    for number, bundle in enumerate(bundles):
        bundle.device.memory.trim()
        assert launches.double.allocated(number) == 0


@in_double()
def test_new_plans_and_first_loads(small_bundle: Path):
    """All threads meet the same new plans and unloaded code at the same time."""
    small, launches = open_over_double(small_bundle)

    def work(i: int) -> None:
        for call in range(CALLS):
            x = np.full((1 + call % 25, 3 + call % 3), i + 1, np.float32 if call % 2 else np.float16)
            bias = np.full((1, x.shape[1]), call, x.dtype) if call % 4 < 2 else None
            negated = call % 4 == 3
            out = small.affine(x, bias, scale=2.0, mode="negated" if negated else "plain")
            expected = 2 * (i + 1) + (call if bias is not None else 0)
            assert (out == (-expected if negated else expected)).all()

    together(work)
    codes = {item.variant.code for item in launches.launches}
    assert launches.double.alive("module") == len(codes), "each is loaded once"
    assert launches.count == THREADS * CALLS
