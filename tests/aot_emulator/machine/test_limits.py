"""Configurable limits of a launch (kinds of faults, a time limit, hostcalls), and the progress of a long one on a
terminal.
"""

from __future__ import annotations

import io
import sys
from contextlib import nullcontext

import numpy as np
import pytest

from aot_emulator import EmulatorDriver, Options
from aot_emulator.errors import EmulationError, InstructionBudgetError, MemoryAccessError, SanitizerError
from aot_emulator.machine.launch_options import FAULTS
from aot_emulator.progress import TerminalProgress
from aot_runtime.errors import DeviceError
from tests.support.emulation.assembled import POINTER, WAVE, data, run
from tests.support.emulation.launching import compile_kernel, launch

WRONG = {
    "bounds": (POINTER + "ds_write_b32 v1, v1 offset:3844", {}),
    "alignment": (POINTER + "ds_write_b32 v1, v1 offset:2", {}),
    "uninitialised": (POINTER + "ds_read_b32 v2, v1", {}),
    "half": (POINTER + "global_load_short_d16 v2, v1, s[4:5]\ns_waitcnt vmcnt(0)\nv_mov_b32 v3, v2", {}),
    "hazard": ("v_exp_f32 v1, v0\nv_add_f32 v2, v1, v1", {}),
    "wait": (POINTER + "global_load_dword v2, v1, s[4:5]\nv_mov_b32 v3, v2\ns_waitcnt vmcnt(0)", {}),
    "race": (POINTER + "v_mov_b32 v2, s2\nglobal_store_dword v1, v2, s[4:5]\n", {"workgroups": 2}),
    "barrier": (WAVE + "s_cmp_eq_u32 s6, 0\ns_cbranch_scc1 past\ns_barrier\npast:", {"wavefronts": 2}),
}
"""A kernel with each kind of fault, which the hardware would run to its end."""


@pytest.mark.parametrize("kind", FAULTS)
def test_each_kind_of_fault_can_be_ignored(kind: str):
    body, launch = WRONG[kind]
    with pytest.raises(SanitizerError) as raised:
        run(body, data(), **launch, ignored=frozenset(FAULTS) - {kind})
    assert raised.value.kind == kind
    # What is outside of everything cannot be reached, whatever is ignored.
    with pytest.raises(MemoryAccessError) if kind == "bounds" else nullcontext():
        run(body, data(), **launch, ignored=frozenset({kind}))


def test_kinds_that_there_are_not():
    with pytest.raises(ValueError, match="unknown kinds of faults: races; known: bounds, alignment"):
        Options(ignored=frozenset({"races"}))


@pytest.mark.parametrize(
    "access", ("global_load_dword v2, v1, s[4:5] offset:2", "global_store_dwordx4 v1, v[4:7], s[4:5] offset:2")
)
def test_memory_takes_any_address(access: str):
    """The hardware of amdhsa splits it; Triton merges stores of halves to dwords that are aligned to 2 bytes."""
    run(
        POINTER
        + "v_min_u32 v1, 8, v1\nv_mov_b32 v4, 0\nv_mov_b32 v5, 0\nv_mov_b32 v6, 0\nv_mov_b32 v7, 0\n"
        + access
        + "\ns_waitcnt vmcnt(0)",
        data(),
    )
    with pytest.raises(SanitizerError, match="not a multiple of 4"):
        run(POINTER + "global_atomic_add v1, v1, s[4:5] offset:2", data())


def test_an_endless_loop_is_stopped_by_time():
    with pytest.raises(InstructionBudgetError, match="exceeds its time limit"):
        run("forever: s_branch forever", time_limit_s=0.2, strict=False)


def test_a_kernel_that_calls_the_host_is_refused_by_name():
    """Many kernels take the buffer of hostcalls; only one that prints uses it."""
    kernel = compile_kernel("printing", (("x", "*fp32"),), (("BLOCK", 64),))
    with pytest.raises(EmulationError, match="the kernel prints or asserts"):
        launch(kernel, (1,), {"x": np.zeros(64, np.float32)})


def test_options_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AOTBUILD_EMULATOR_STRICT", "1")
    monkeypatch.setenv("AOTBUILD_EMULATOR_IGNORE", "race, wait")
    monkeypatch.setenv("AOTBUILD_EMULATOR_TIME_LIMIT", "2.5")
    wanted = Options(strict=True, ignored=frozenset({"race", "wait"}), time_limit_s=2.5)
    assert EmulatorDriver().options == wanted
    for name, value in (("IGNORE", "rain"), ("TIME_LIMIT", "soon")):
        with monkeypatch.context() as patch, pytest.raises(DeviceError, match=value):
            patch.setenv(f"AOTBUILD_EMULATOR_{name}", value)
            EmulatorDriver()


def test_a_terminal_shows_how_far_a_long_launch_is(monkeypatch: pytest.MonkeyPatch):
    now, shown = [0.0], io.StringIO()
    monkeypatch.setattr("aot_emulator.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", shown)
    progress = TerminalProgress("softmax_rows")
    for seconds, done in ((1.0, 2), (4.0, 5), (4.1, 6), (8.0, 10)):
        now[0] = seconds
        progress(done, 10)
    line = "emulating softmax_rows: 5 of 10 workgroups, 4 s left"
    erase = "\r\x1b[K"  # to the line's end, however long it was
    assert shown.getvalue() == f"{erase}{line}{erase}"


def test_a_fault_does_not_stand_behind_the_line(monkeypatch: pytest.MonkeyPatch):
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr("aot_emulator.progress._FIRST_S", 0)
    monkeypatch.setattr(sys, "stderr", shown)
    wild = POINTER + "s_cmp_eq_u32 s2, 0\ns_cbranch_scc1 good\nglobal_load_dword v2, v1, s[0:1] offset:2048\ngood:"
    with pytest.raises(MemoryAccessError):
        run(wild, data(), workgroups=2, strict=False, batch_wavefronts=1)
    assert "1 of 2 workgroups" in shown.getvalue() and shown.getvalue().endswith("\r\x1b[K")
