"""Copying, reading and writing memory, in arrays with any alignment and size."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray
from kernels.memory import reference

pytestmark = pytest.mark.sampled(7)

LENGTHS = (1, 3, 4095, 4096, 4097, 8192, 12289, 100_000)
NUMBERS = np.random.default_rng(0).integers(-(2**31), 2**31, LENGTHS[-1], dtype=np.int32)


def within(bundle: Bundle, host: np.ndarray, offset: int) -> tuple[DeviceArray, DeviceArray]:
    """Return (an array of -1, a view in it that begins `offset` elements in and holds `host`)."""
    whole = np.full(len(host) + offset + 50, -1, np.int32)
    whole[offset : offset + len(host)] = host
    array = bundle.device.array(whole)
    return array, array[offset : offset + len(host)]


@pytest.mark.parametrize("offset", (64, 3))
@pytest.mark.parametrize("programs", ({}, {"programs": 1}, {"programs": 7}), ids=str)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("op", ("copy", "write"))
def test_each_element_is_written_and_no_other(memory: Bundle, op: str, n: int, programs: dict[str, int], offset: int):
    wanted = NUMBERS[:n] if op == "copy" else np.full(n, -123456789, np.int32)
    whole, out = within(memory, np.zeros(n, np.int32), offset)
    if op == "copy":
        memory.copy(within(memory, wanted, offset)[1], out=out, **programs)
    else:
        memory.write(out, value=-123456789, **programs)
    around = whole.numpy()
    assert np.array_equal(around[offset : offset + n], wanted)
    assert (around[:offset] == -1).all() and (around[offset + n :] == -1).all()


@pytest.mark.parametrize("offset", (64, 3))
@pytest.mark.parametrize("programs", (1, 2, 7))
@pytest.mark.parametrize("n", LENGTHS)
def test_reads_see_each_element_once(memory: Bundle, n: int, programs: int, offset: int):
    x = NUMBERS[:n]
    _, source = within(memory, x, offset)
    sums = memory.read(source, programs=programs).numpy()
    assert np.array_equal(sums, reference.read(x, programs))
    assert (int(sums.sum(dtype=np.int64)) - int(x.sum(dtype=np.int64))) % 2**32 == 0


@pytest.mark.slow
@pytest.mark.on("gpu")
def test_beyond_4_gib(memory: Bundle):
    """Offsets pass 2**32 bytes, and the end is ragged."""
    device, n = memory.device, (1 << 30) + 5001
    x, out = device.empty((n,), np.int32), device.empty((n,), np.int32)
    memory.write(x, value=7)
    memory.write(x[-5000:], value=9)
    memory.copy(x, out=out)
    assert (out[-5001:].numpy() == np.array([7] + [9] * 5000)).all()
    assert int(memory.read(out).numpy().sum(dtype=np.int64)) % 2**32 == (7 * (n - 5000) + 9 * 5000) % 2**32
