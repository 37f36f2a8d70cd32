"""Faults end a program as on hardware: HIP's own error or ROCr's abort, never a hang, with the emulator's message."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.building.tasks import wait_for
from tests.support.emulation.assembled import link
from tests.support.processes import children, command_line, descendants, gone, kill

from .programs import Done, emulate, emulation, environment, script
from .session import inside

pytestmark = pytest.mark.on("rocm")

LAUNCH = """
    import struct
    import sys
    from aot_runtime.device.drivers import open_driver
    from aot_runtime.errors import DeviceError
    driver = open_driver("hip")
    function = driver.get_function(0, driver.load_module(0, open(sys.argv[1], "rb").read()), "kernel", 0)
    driver.prepare(0, function, (1, 1, 1), 64, 0, struct.pack("<2Q", 0x123456000, 0)).run(0)
    print("launched", flush=True)
    try: driver.synchronize(0, 0)
    except DeviceError as error: print("error:", error)
    else: print("nothing wrong")
"""
WILD = """s_load_dwordx2 s[2:3], s[0:1], 0x0
s_waitcnt lgkmcnt(0)
v_mov_b32 v1, 0
global_load_dword v2, v1, s[2:3]
s_waitcnt vmcnt(0)"""
ENDLESS = "again:\nv_mov_b32 v1, 0\ns_branch again"
HANG = "GPU Hang"


def program(tmp_path: Path, body: str) -> list[str]:
    (tmp_path / "code").write_bytes(link(body))
    return script(LAUNCH, tmp_path / "code")


def ended(done: Done, aborted: str, status: str) -> None:
    """HIP 6.4.3 aborts with ROCr's text; 7.2.4 gives an error of the call."""
    assert "launched" in done.output and "nothing wrong" not in done.output, done.output + done.errors
    if inside().hip.name.endswith(".6"):
        assert done.status == 128 + signal.SIGABRT and aborted in done.errors, done.errors
    else:
        assert status in done.output, done.output + done.errors


def test_an_access_that_is_not_mapped(tmp_path: Path):
    done = emulate(program(tmp_path, WILD))
    assert re.search(
        r"GPU 0 \(AMD Instinct MI300X\), queue \d+, packet \d+: global_load_dword v2, v1, s\[2:3\] at pc 0x10 of "
        r"kernel, workgroup \(0, 0, 0\), wavefront 0, lane 0: 4 bytes at 0x123456000 are in no allocation",
        done.errors,
    )
    ended(done, "on address 0x123456000. Reason: Page not present", "hipErrorIllegalAddress (700)")


def test_an_illegal_instruction(tmp_path: Path):
    done = emulate(program(tmp_path, "v_mov_b32 v1, 0\n.long 0x7fffffff"))
    assert "at pc 0x4 of kernel: unknown instruction" in done.errors
    assert "HSA_STATUS_ERROR_ILLEGAL_INSTRUCTION" in done.errors
    ended(done, "code: 0x2a", "hipErrorLaunchFailure (719)")


def test_a_kernel_without_an_end(tmp_path: Path):
    done = emulate(program(tmp_path, ENDLESS), "--time-limit", "1")
    assert "of kernel: the launch exceeds its time limit: endless loop?" in done.errors
    ended(done, HANG, "hipErrorLaunchFailure (719)")


def test_the_gpus_process_is_killed(tmp_path: Path):
    running = subprocess.Popen(
        emulation(program(tmp_path, ENDLESS)), env=environment(), text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert running.stdout is not None and running.stdout.readline() == "launched\n"
    (server,) = (child for child in children(running.pid) if "aot_emulator.kfd.server" in command_line(child))
    wait_for(lambda: children(server), 20)
    kill(children(server)[0])
    output, errors = running.communicate(timeout=60)
    assert "the process that plays the GPU has ended" in errors
    ended(Done(running.returncode, "launched\n" + output, errors), HANG, "hipErrorLaunchFailure (719)")


def test_a_program_that_is_killed_leaves_nothing(tmp_path: Path):
    running = subprocess.Popen(emulation(program(tmp_path, ENDLESS)), env=environment(), stdout=subprocess.PIPE)
    assert running.stdout is not None and running.stdout.readline() == b"launched\n"
    below = descendants(running.pid)
    running.kill()
    running.wait()
    try:
        wait_for(lambda: all(map(gone, below)), 20)
    finally:
        for pid in below:
            kill(pid)
