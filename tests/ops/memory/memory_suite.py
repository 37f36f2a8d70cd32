"""Copying, reading and writing memory: tests for any device, of which a test module gives the fixture `memory`."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray
from kernels.memory import reference

LENGTHS = (1, 3, 4095, 4096, 4097, 8192, 12289, 100_000)


def within(bundle: Bundle, host: np.ndarray, offset: int) -> tuple[DeviceArray, DeviceArray]:
    """(an array of -1, a view in it that begins `offset` elements in and holds `host`)."""
    whole = np.full(len(host) + offset + 50, -1, np.int32)
    whole[offset : offset + len(host)] = host
    array = bundle.device.array(whole)
    return array, array[offset : offset + len(host)]


def numbers(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(-(2**31), 2**31, n, dtype=np.int32)


def untouched(whole: DeviceArray, offset: int, n: int) -> bool:
    host = whole.numpy()
    return bool((host[:offset] == -1).all() and (host[offset + n :] == -1).all())


@pytest.mark.parametrize("offset", (64, 3))
@pytest.mark.parametrize("programs", (None, 1, 7))
@pytest.mark.parametrize("n", LENGTHS)
def test_copies_are_exact(memory: Bundle, n: int, programs: int | None, offset: int):
    x = numbers(n)
    _, source = within(memory, x, offset)
    whole, out = within(memory, np.zeros(n, np.int32), offset)
    memory.copy(source, out=out, **({} if programs is None else {"programs": programs}))
    assert np.array_equal(out.numpy(), x) and untouched(whole, offset, n)


@pytest.mark.parametrize("offset", (64, 3))
@pytest.mark.parametrize("programs", (1, 2, 7))
@pytest.mark.parametrize("n", LENGTHS)
def test_reads_see_each_element_once(memory: Bundle, n: int, programs: int, offset: int):
    x = numbers(n)
    _, source = within(memory, x, offset)
    sums = memory.read(source, programs=programs).numpy()
    assert np.array_equal(sums, reference.read(x, programs))
    assert (int(sums.sum(dtype=np.int64)) - int(x.sum(dtype=np.int64))) % 2**32 == 0


@pytest.mark.parametrize("offset", (64, 3))
@pytest.mark.parametrize("programs", (None, 7))
@pytest.mark.parametrize("n", LENGTHS)
def test_writes_reach_each_element_and_no_other(memory: Bundle, n: int, programs: int | None, offset: int):
    whole, out = within(memory, np.zeros(n, np.int32), offset)
    memory.write(out, value=-123456789, **({} if programs is None else {"programs": programs}))
    assert (out.numpy() == -123456789).all() and untouched(whole, offset, n)
