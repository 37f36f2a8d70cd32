"""Kernels of a few lines of assembly in strict mode, and the faults that it finds in them."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from aot_emulator import ARCHS, EmulatorDriver, Options, Order

from aot_runtime.errors import MemoryAccessError, SanitizerError
from tests.support.emulation.assembled import link

POINTER = "s_load_dwordx2 s[4:5], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\nv_lshlrev_b32 v1, 2, v0\n"
"""The array in s[4:5], and the byte offset of the thread's dword in v1."""
WAVE = "v_readfirstlane_b32 s6, v0\ns_lshr_b32 s6, s6, 6\n"
"""The wavefront's number in s6."""
ORDERS = pytest.mark.parametrize("order", tuple(Order), ids=lambda order: order.value)


def data(count: int = 256) -> np.ndarray:
    return np.arange(count, dtype=np.uint32)


def run(
    body: str,
    array: np.ndarray | int = 4,
    wavefronts: int = 1,
    workgroups: int = 1,
    strict: bool = True,
    order: Order = Order.LOCKSTEP,
    arch: str = "gfx942",
    **options: int,
) -> np.ndarray | None:
    """Run a kernel's lines on an array; returns it as it is after that.

    An int stands for so many bytes that nothing has written. There are 4096 bytes of LDS, and 64 of scratch for a lane.
    """
    driver, device = EmulatorDriver(Options(strict=strict, order=order, **options)), list(ARCHS).index(arch)
    is_given = isinstance(array, np.ndarray)
    address = driver.allocate_now(device, array.nbytes if is_given else array)
    if is_given:
        driver.copy_to_device(device, address, array.ctypes.data, array.nbytes, 0)
    code = link(tuple(body.split("\n")), arch)
    function = driver.get_function(device, driver.load_module(device, code), "kernel", 0)
    kernargs = struct.pack("<2Q", address, 0)
    driver.prepare(device, function, (workgroups, 1, 1), ARCHS[arch].lanes * wavefronts, 0, kernargs).run(0)
    if not is_given:
        return None
    result = np.empty_like(array)
    driver.copy_to_host(device, result.ctypes.data, address, result.nbytes, 0)
    return result


def fault(kind: str, message: str, body: str, *array, **launch) -> SanitizerError:
    """The fault of a kernel, which without strict mode runs to its end, or leaves its bounds."""
    try:
        run(body, *array, strict=False, **launch)
    except MemoryAccessError as error:
        assert kind == "bounds", error
    else:
        assert kind != "bounds"
    with pytest.raises(SanitizerError, match=message) as raised:
        run(body, *array, **launch)
    assert raised.value.kind == kind, raised.value
    return raised.value
