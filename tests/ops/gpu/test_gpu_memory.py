"""Copying, reading and writing memory on a real GPU."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from aot_runtime.command.bandwidth import MOVED, measure
from tests.ops.memory.memory_suite import *  # noqa: F403 -- its tests

pytestmark = pytest.mark.gpu


def test_bandwidth_is_that_of_a_gpu(memory: Bundle):
    """More than a host's memory has, and not more than any device's caches."""
    measured = measure(memory, (1 << 30,), 5)
    assert measured.meaningful and [result.op for result in measured.results] == list(MOVED)
    assert all(100 < result.gb_per_s < 100_000 for result in measured.results), measured


@pytest.mark.slow
def test_beyond_4_gib(memory: Bundle):
    """Offsets past 2**32 bytes, and a ragged end."""
    device, n = memory.device, (1 << 30) + 5001
    x, out = device.empty((n,), np.int32), device.empty((n,), np.int32)
    memory.write(x, value=7)
    memory.write(x[-5000:], value=9)
    memory.copy(x, out=out)
    assert (out[-5001:].numpy() == np.array([7] + [9] * 5000)).all()
    assert int(memory.read(out).numpy().sum(dtype=np.int64)) % 2**32 == (7 * (n - 5000) + 9 * 5000) % 2**32
