"""Many calls over the double of libamdhip64, whose launches do nothing, must not leak.

Most calls repeat an earlier one. Between them are calls of new shapes, calls that are refused or that the driver fails,
and arrays, views, streams, events and exports that are made and dropped. After a start in which caches fill, neither
memory nor the number of objects that the driver knows may grow.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from aot_runtime import Bundle, DeviceArray, open_bundle
from aot_runtime.call import op as op_module
from aot_runtime.errors import ArgumentError, DeviceError
from tests.support.hip_double.double import Double
from tests.support.producers import Exported, Versioned

from .bundle_inputs import SEEDS

KINDS = ("memory", "host_memory", "pool", "module", "function", "stream", "event", "graph", "executable")
REPEATED = 1000
"""Calls of a known plan between two turns of everything else."""
EPOCHS, WARM_EPOCHS = 20, 5
PLANS, SHAPES = 256, 512
"""Plans that are kept here, so that they are dropped and made anew many times, and the shapes that ask for them."""
ALLOWED_BYTES = {"heap": 64 << 10, "allocated": 0, "resident": 4 << 20}
"""Growth that is none: caches differ a little in what they hold, and heaps in how it lies."""
_OUT_OF_MEMORY, _LAUNCH_FAILURE = 2, 719


@dataclass(frozen=True)
class Sample:
    """Measurements at the end of an epoch."""

    resident: int
    """Bytes of the process that are in memory, those that allocators hold free too, less what the double keeps."""
    heap: int
    """Bytes of C's heap in use, without what the double keeps of its dead."""
    blocks: int
    """Python's own allocations, which are not of that heap."""
    alive: dict[str, int]
    allocated: int


@dataclass
class Growth:
    """The result of many calls."""

    calls: int = 0
    samples: list[Sample] = field(default_factory=list)

    def faults(self) -> list[str]:
        """Return faults: measurements that grew after the start."""
        first, last = self._halves()
        found = []
        for name, allowed in ALLOWED_BYTES.items():
            before, after = (max(getattr(sample, name) for sample in half) for half in (first, last))
            if after > before + allowed:
                found.append(f"{name} grew from {before:,} to {after:,} bytes")
        before, after = (max(sample.blocks for sample in half) for half in (first, last))
        if after > before * 1.02 + 1000:
            found.append(f"Python's allocations grew from {before:,} to {after:,}")
        for kind in KINDS:
            before, after = (max(sample.alive[kind] for sample in half) for half in (first, last))
            if after > before:
                found.append(f"objects of kind {kind} grew from {before} to {after}")
        return found

    def _halves(self) -> tuple[list[Sample], list[Sample]]:
        warm = self.samples[WARM_EPOCHS:]
        return warm[: len(warm) // 2], warm[len(warm) // 2 :]


def unpack_seed(name: str, folder: Path) -> Path:
    """Unpack a seed's bundle into a folder."""
    with zipfile.ZipFile(SEEDS / f"{name}.zip") as archive:
        archive.extractall(folder / name)
    return folder / name


def make_calls(folder: Path, total: int) -> Growth:
    """Make `total` calls in this process, which runs over the double."""
    double, growth = Double(), Growth()
    bundle = open_bundle(unpack_seed("affine", folder), "hip")
    device = bundle.device
    x, bias, out = (device.array(np.ones((4, 96), np.float32)) for _ in range(3))
    affine, numbers, epoch = bundle.affine, count(), max(REPEATED, total // EPOCHS // REPEATED * REPEATED)
    with mock.patch.object(op_module, "MAX_PLANS", PLANS):
        while growth.calls < total:
            for scale in range(REPEATED // 2):
                affine(x, bias, mode="negated", out=out, scale=scale)
                affine(x, bias, mode="negated", scale=0.5)
            growth.calls += REPEATED
            _everything_else(bundle, double, x, bias, next(numbers))
            if growth.calls % epoch == 0:
                gc.collect()  # what is found only now comes back to the shelves that are trimmed
                device.memory.trim()  # small blocks are kept for the next call
                growth.samples.append(_sample(double))
    return growth


def _everything_else(bundle: Bundle, double: Double, x: DeviceArray, bias: DeviceArray, number: int) -> None:
    """Do everything but repeated calls once."""
    device, affine = bundle.device, bundle.affine
    for cols in range(8):  # new shapes: a plan each
        shape = _shape(8 * number + cols)
        affine(device.empty(shape, np.float32), device.empty(shape, np.float32), mode="negated", scale=1.0)
    small = np.ones((2, 20), np.float32)
    affine(small, small, mode="negated", scale=1.0)  # in and out of host memory
    for wrong in (x[0], x.reshape(2, 192), np.ones((4, 96), np.int8), "text", None):
        with suppress(ArgumentError):
            affine(wrong, bias, mode="negated")
    with suppress(ArgumentError):
        affine(x, bias, mode=f"mode {number}")
    for function, status in (("hipModuleLaunchKernel", _LAUNCH_FAILURE), ("hipMallocFromPoolAsync", _OUT_OF_MEMORY)):
        double.fail(function, status)
        with suppress(DeviceError):
            affine(x, bias, mode="negated", scale=1.0)
            device.empty(2 << 20, np.uint8)
        double.fail(function, 0, 0)
    stream, other = device.stream(), device.stream()
    result = affine(x[1:, :], bias[:1], mode="negated", stream=stream)
    other.wait(stream.record())
    affine(result.T.T[::2], bias[:1], mode="negated", stream=other, scale=2.0)
    device.event(other).elapsed_ms(device.event(stream))
    with device.capture(stream) as graph:
        affine(x[1:], bias[:1], mode="negated", out=result, stream=stream)
    graph.launch(stream)
    for producer in (Exported, Versioned):
        device.wrap(producer(x[:2])).T[3].numpy()
    x.__dlpack__()  # a capsule that nobody takes
    cycle: list[Any] = [device.empty(100 + number % 50, np.float32)]
    cycle.append(cycle)  # what only the garbage collector finds


def _shape(number: int) -> tuple[int, int]:
    rows, cols = divmod(number % SHAPES, 64)
    return 1 + rows, 1 + 3 * cols


def _sample(double: Double) -> Sample:
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * resource.getpagesize()
    alive = {kind: double.alive(kind) for kind in KINDS}
    dead = double.dead_bytes()
    return Sample(resident - dead, _heap_bytes() - dead, sys.getallocatedblocks(), alive, double.allocated())


class _Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                     "fsmblks", "uordblks", "fordblks", "keepcost")]  # fmt: skip


def _heap_bytes() -> int:
    """Return the bytes that C's heap has given out, with those of large blocks, which are mapped."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)
