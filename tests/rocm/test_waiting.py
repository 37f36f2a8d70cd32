"""Kernels that wait for another queue or for the program, since queues of one device run concurrently."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.emulation.assembled import link

from .programs import emulate, script
from .session import inside
from .test_faults import HANG, ended

pytestmark = pytest.mark.on("rocm")

POLL = """s_load_dwordx4 s[4:7], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_mov_b32 v1, 0
again:
global_load_dword v2, v1, s[4:5] sc0 sc1
s_waitcnt vmcnt(0)
v_readfirstlane_b32 s8, v2
s_cmp_eq_u32 s8, 0
s_cbranch_scc1 again
global_store_dword v1, v2, s[6:7]
s_waitcnt vmcnt(0)"""
"""Waits until the number that the first argument points to is not 0, and stores it where the second one points."""
COMMON = """
    import ctypes as c
    import struct
    import sys
    import numpy as np
    hip = c.CDLL(sys.argv[1])
    n = c.c_size_t
    def check(status): assert status == 0, status
    def made(create, *arguments):
        found = c.c_void_p()
        check(create(c.byref(found), *arguments))
        return found
    def zeros():
        found = made(hip.hipMalloc, n(4096))
        check(hip.hipMemset(found, 0, n(4096)))
        check(hip.hipDeviceSynchronize())
        return found
    def number(there):
        found = c.c_uint32()
        check(hip.hipMemcpy(c.byref(found), there, n(4), 2))
        return found.value
    module = made(hip.hipModuleLoadData, open(sys.argv[2], "rb").read())
    kernel = made(hip.hipModuleGetFunction, module, b"kernel")
    def poll(stream, flag, out):
        given = c.create_string_buffer(struct.pack("<2Q", flag.value, out.value))
        size = n(16)
        extra = (c.c_void_p * 5)(1, c.addressof(given), 2, c.addressof(size), 3)
        check(hip.hipModuleLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, stream, None, extra))
    first, second, third = (made(hip.hipStreamCreateWithFlags, 1) for _ in range(3))
"""


def done(tmp_path: Path, text: str, *options: str):
    (tmp_path / "code").write_bytes(link(POLL))
    return emulate(script(COMMON + text, inside().hip, tmp_path / "code"), *options)


@pytest.mark.parametrize("options", [(), ("--strict",)])
def test_a_kernel_waits_for_later_ones(tmp_path: Path, options: tuple[str, ...]):
    """A chain, of which each link waits for the next one's; the last is a value that the program sets."""
    text = """
    flags = [zeros() for _ in range(3)]
    host = made(hip.hipHostMalloc, n(4096), 0)
    c.memset(host, 0, 4096)
    poll(first, flags[0], flags[2])
    poll(second, flags[1], flags[0])
    poll(third, host, flags[1])
    assert hip.hipStreamQuery(first) == 600  # hipErrorNotReady
    c.c_uint32.from_address(host.value).value = 7
    check(hip.hipDeviceSynchronize())
    print([number(flag) for flag in flags])
    """
    found = done(tmp_path, text, *options)
    assert found.output == "[7, 7, 7]\n", found.output + found.errors


def test_values_between_streams(tmp_path: Path):
    text = """
    flag, out = zeros(), zeros()
    check(hip.hipStreamWaitValue32(first, flag, c.c_uint32(5), 0, c.c_uint32(0xFFFFFFFF)))  # at least
    check(hip.hipMemsetD32Async(out, 3, n(1), first))
    check(hip.hipMemsetD32Async(out, 4, n(1), second))
    check(hip.hipStreamWriteValue32(second, flag, c.c_uint32(6), 0))
    check(hip.hipStreamSynchronize(first))
    print(number(out))
    """
    found = done(tmp_path, text)
    assert found.output == "3\n", found.output + found.errors


def test_the_program_changes_its_registered_memory(tmp_path: Path):
    text = """
    lent, out = np.zeros(1024, np.uint32), zeros()
    check(hip.hipHostRegister(c.c_void_p(lent.ctypes.data), n(lent.nbytes), 0))
    device = made(hip.hipHostGetDevicePointer, c.c_void_p(lent.ctypes.data), 0)
    poll(first, device, out)
    assert hip.hipStreamQuery(first) == 600
    lent[0] = 9
    check(hip.hipStreamSynchronize(first))
    print(number(out))
    """
    found = done(tmp_path, text)
    assert found.output == "9\n", found.output + found.errors


def test_a_wait_for_what_never_comes(tmp_path: Path):
    """Meanwhile another queue works on."""
    text = """
    flag, out, other = zeros(), zeros(), zeros()
    poll(first, flag, out)
    check(hip.hipMemsetD32Async(other, 4, n(1), second))
    check(hip.hipStreamSynchronize(second))
    print("launched", flush=True)
    status = hip.hipStreamSynchronize(first)
    print("nothing wrong" if status == 0 else f"hipErrorLaunchFailure ({status})", flush=True)
    """
    found = done(tmp_path, text, "--time-limit", "3")
    assert re.search(r"global_load_dword .* of kernel.*: the launch exceeds its time limit", found.errors)
    ended(found, HANG, "hipErrorLaunchFailure (719)")
