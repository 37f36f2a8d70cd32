"""Programs: what ends a straight run, what only waits, and the barrier in two parts."""

from __future__ import annotations

import numpy as np
import pytest
from aot_emulator.isa.decoding import decode
from aot_emulator.isa.operands import Registers
from aot_emulator.machine.program import Program

from aot_runtime.errors import EmulationError, UnsupportedInstructionError
from tests.support.emulation.machine import ACCUMULATION, Machine, assemble, every_rdna


def program_of(arch: str, *lines: str) -> tuple[Machine, Program]:
    machine = Machine(arch, wavefronts=4)
    instructions = decode(assemble("\n".join((*lines, "s_endpgm")), arch), machine.arch)
    return machine, Program("test", machine.arch, 0, instructions, Registers(2 * ACCUMULATION, 2 * ACCUMULATION))


def test_a_barrier_in_two_parts():
    machine, program = program_of("gfx1201", "s_barrier_signal -1", "s_nop 0", "s_barrier_wait 0xffff")
    run = program.run_at(0)
    assert run.exit.kind == "barrier" and run.exit.target == 12 and len(run.steps) == 2
    for _, step in run.steps:
        step(machine.waves)
    with pytest.raises(EmulationError, match="not signalled"):
        run.steps[1][1](machine.waves)
    assert program_of("gfx1100", "s_barrier")[1].run_at(0).exit.kind == "barrier"
    for line in ("s_barrier_signal 2", "s_barrier_signal m0", "s_barrier_wait 2"):
        with pytest.raises(UnsupportedInstructionError, match="a barrier other than the workgroup's"):
            program_of("gfx1201", line)[1].run_at(0)


@every_rdna
def test_branches_look_at_masks_of_32_lanes(arch: str):
    machine, program = program_of(arch, "s_branch 1", "s_nop 0")
    assert (program.run_at(0).exit.kind, program.run_at(0).exit.target) == ("jump", 8)
    machine.s[106], machine.s[107] = [0, 1, 0, 1 << 31], 0x77777777
    machine.s[126], machine.s[127] = [1 << 31, 0, 0, 5], 0x77777777
    machine.scc[:] = [True, False, True, False]
    wanted = {
        "s_cbranch_vccz": machine.s[106] == 0, "s_cbranch_vccnz": machine.s[106] != 0,
        "s_cbranch_execz": machine.s[126] == 0, "s_cbranch_execnz": machine.s[126] != 0,
        "s_cbranch_scc0": ~machine.scc, "s_cbranch_scc1": machine.scc.copy(),
    }  # fmt: skip
    for name, taken in wanted.items():
        exit_ = program_of(arch, f"{name} 2", "s_nop 0", "s_nop 0")[1].run_at(0).exit
        assert (exit_.kind, exit_.target, exit_.other) == ("branch", 12, 4) and exit_.condition is not None
        np.testing.assert_array_equal(exit_.condition(machine.waves), taken, name)


@every_rdna
def test_calls(arch: str):
    lines = ("s_nop 0", "s_getpc_b64 s[4:5]", "s_swappc_b64 s[6:7], s[8:9]", "s_setpc_b64 s[6:7]")
    machine, program = program_of(arch, *lines)
    machine.set_pair(8, 12)
    run = program.run_at(0)
    for _, step in run.steps:
        step(machine.waves)
    assert (machine.pair(4) == 8).all() and (machine.pair(6) == 12).all()
    assert run.exit.address is not None and (run.exit.address(machine.waves) == 12).all()
    assert program.run_at(12).exit.kind == "indirect"
