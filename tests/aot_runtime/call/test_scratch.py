"""Scratch memory of calls: workspaces over the double of libamdhip64, scratch of code objects over that of libcuda."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import pytest

from aot_runtime import DriverCallError, open_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.records import GLOBAL_SCRATCH
from aot_runtime.device import memory
from tests.support.contracts import normal
from tests.support.cuda_double.double import CudaDouble, in_cuda_double
from tests.support.hip_double.double import in_double
from tests.support.reference_launches import open_over_double
from tests.support.session_builds import build_once


@pytest.fixture(scope="session")
def scratch_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an op of a Gluon kernel for sm_90 that makes tensor maps in scratch memory. Read only."""
    folder = build_once(tmp_path_factory, "tests/support/gluon/manifest.yaml", "op=scale,dtype=float16", "sm_90")
    return folder / "gluon-sm_90"


@in_double()
def test_calls_on_the_default_stream_take_turns(small_bundle: Path):
    """They share one block, except that a call that begins before another's launches are enqueued gets its own."""
    small, launches = open_over_double(small_bundle)
    device, double, stream = small.device, launches.double, small.device.stream()
    x, total = device.array(normal(4, 200)), device.empty(4, "float32")

    def block(**options: object) -> int:
        small.row_sums(x, total=total, **options)
        first, second = launches.launches[-2:]
        assert first.values["partial"] == second.values["partial"] != 0
        return int(first.values["partial"])

    own = block()
    before, taken, in_use = double.allocated(), double.calls("hipMallocFromPoolAsync"), device.memory_stats().in_use
    assert [block(), block(offset=3)] == [own, own]
    small.row_sums(device.array(normal(3, 130)), total=device.empty(3, "float32"))  # of about the same size
    assert launches.last.values["partial"] == own
    double.fail("hipModuleLaunchKernel", 719)
    with pytest.raises(DriverCallError):
        block()
    assert block() == own, "it was given back"
    free = device.memory.scratch(memory.GRANULE)
    assert [space.address for space in free] == [own]
    held = free.pop()  # as another thread's call has it
    other = block()
    free.append(held)
    del held
    assert other not in (0, own)
    assert block(stream=stream) not in (own, other) and launches.last.launch.stream == stream.handle
    assert block() == own and launches.last.launch.stream == 0
    assert double.calls("hipMallocFromPoolAsync") <= taken + 6 and device.memory_stats().in_use == in_use
    device.memory.trim()
    assert double.allocated() < before and free == [] and block() == free[0].address


@in_double()
def test_scratch_memory_has_a_limit(small_bundle: Path):
    """The limit is on all sizes together and on a block; larger blocks are freed after each call."""
    memory.SCRATCH_BLOCK, memory.SCRATCH_TOTAL = 4096, 6144
    small, launches = open_over_double(small_bundle)
    device, double = small.device, launches.double
    for rows in (100, 200, 400, 800, 400, 1600, 100):  # a float a row
        x = device.array(normal(rows, 64))
        small.row_sums(x, total=device.empty(rows, "float32"))
        kept = sum(size * len(blocks) for size, blocks in device.memory._scratch.items())
        assert 0 < kept <= 6144 and len({len(blocks) for blocks in device.memory._scratch.values()} - {0, 1}) == 0
    assert device.memory.scratch(4097) is None
    del x
    device.memory.trim()
    assert double.allocated() == 0


@pytest.mark.slow
@in_cuda_double
def test_launches_that_may_run_at_once_share_none(scratch_bundle: Path):
    (variant,) = read_index(scratch_bundle).variants
    assert variant.global_scratch.bytes == 256 and variant.global_scratch.alignment == 128
    (at,) = (arg.offset for arg in variant.kernargs if arg.name == GLOBAL_SCRATCH)
    bundle, double = open_bundle(scratch_bundle, "cuda"), CudaDouble()
    x, out = (bundle.device.empty((640, 64), "float16") for _ in range(2))
    streams = [bundle.device.stream() for _ in range(4)]
    for _ in range(2):
        for stream in streams:
            bundle.scale(x, factor=2.0, out=out, stream=stream)
    found = [struct.unpack_from("<Q", launch.kernargs, at)[0] for launch in double.launches()]
    assert [launch.stream for launch in double.launches()] == 2 * [stream.handle for stream in streams]
    assert all(address and address % 128 == 0 for address in found)
    ends = sorted(found[:4])
    assert all(second - first >= 10 * 256 for first, second in pairwise(ends)), "10 programs each"
    assert found[4:] == found[:4], "on one stream they run one after the other"
