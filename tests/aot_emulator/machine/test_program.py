"""Programs: loading code objects, ends of basic blocks, instructions that only wait, split barriers."""

from __future__ import annotations

import numpy as np
import pytest

from aot_emulator.errors import EmulationError, UnsupportedInstructionError
from aot_emulator.isa.decoding import decode
from aot_emulator.isa.operands import Registers
from aot_emulator.machine.launch_records import Launch
from aot_emulator.machine.loader import Kernel, Module
from aot_emulator.machine.program import Program
from aot_emulator.state.device_memory import Memory
from aot_emulator.state.float_mode import FloatMode
from aot_emulator.state.wavefronts import Batch
from tests.support.emulation.assembled import POINTER, data, link, run
from tests.support.emulation.machine import ACCUMULATION, Machine, assemble, every_rdna, every_width
from tests.support.emulation.values import arch_of


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
    with pytest.raises(EmulationError, match="without having signalled"):
        run.steps[1][1](machine.waves)
    assert program_of("gfx1100", "s_barrier")[1].run_at(0).exit.kind == "barrier"
    for line in ("s_barrier_signal 2", "s_barrier_signal m0", "s_barrier_wait 2"):
        with pytest.raises(UnsupportedInstructionError, match="a barrier other than the workgroup's"):
            program_of("gfx1201", line)[1].run_at(0)


@every_width
def test_branches_look_at_masks(arch: str):
    machine, program = program_of(arch, "s_branch 1", "s_nop 0")
    assert (program.run_at(0).exit.kind, program.run_at(0).exit.target) == ("jump", 8)
    machine.s[106], machine.s[107] = [0, 1, 0, 1 << 31], [8, 0, 0, 1]
    machine.s[126], machine.s[127] = [1 << 31, 0, 0, 5], [0, 4, 0, 0]
    masks = {first: machine.pair(first) if machine.arch.lanes == 64 else machine.s[first] for first in (106, 126)}
    machine.scc[:] = [True, False, True, False]
    wanted = {
        "s_cbranch_vccz": masks[106] == 0, "s_cbranch_vccnz": masks[106] != 0,
        "s_cbranch_execz": masks[126] == 0, "s_cbranch_execnz": masks[126] != 0,
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


def loaded(arch: str) -> Kernel:
    return Module(link("s_nop 0", arch), arch_of(arch), Memory(1 << 20, 1 << 24)).kernel("kernel")


@every_width
def test_the_descriptor(arch: str):
    """It gives the registers and the float mode, of which gfx12 has a part; nothing is preloaded."""
    kernel, descriptor = loaded(arch), loaded(arch).descriptor
    assert descriptor.vector_registers == 128
    assert kernel.program.layout.accumulation == kernel.program.layout.total == descriptor.vector_registers
    mode = FloatMode(keep_in32=False, keep_out32=False)  # as the assembler sets it by default
    assert FloatMode.from_register(descriptor.mode) == mode
    assert descriptor.preload == (0, 0) and kernel.entry(preload=True) == 0


@every_width
def test_where_a_workgroup_finds_its_place(arch: str):
    kernel, lanes = loaded(arch), arch_of(arch).lanes
    batch = Batch(kernel.program.layout.total, 256 // lanes, lanes)
    workgroups = np.repeat([[5, 3, 2], [6, 3, 2]], 128 // lanes, axis=0)
    kernel.start(batch, workgroups, Launch(kernel, (7, 4, 3), 128, 0, b""), 1 << 32 | 64, b"", preload=True)
    assert (batch.scalars[0] == 64).all() and (batch.scalars[1] == 1).all()
    assert batch.vectors[0, -1].tolist() == list(range(128 - lanes, 128))
    assert (batch.scalars[126 : 126 + lanes // 32] == 0xFFFFFFFF).all()
    if arch == "gfx1201":
        assert batch.scalars[108 + 9].tolist() == workgroups[:, 0].tolist()
        assert (batch.scalars[108 + 7] == (3 | 2 << 16)).all()
        assert batch.scalars[108 + 8].tolist() == [wave << 25 for wave in (0, 1, 2, 3) * 2]
    else:
        np.testing.assert_array_equal(batch.scalars[kernel.descriptor.user_sgprs], workgroups[:, 0])


def test_start_of_a_kernel_with_scratch_on_gfx90a():
    """The resource of scratch is in the first user SGPRs, and the wavefront's offset in the last of the system's."""
    body = """s_add_u32 s0, s0, s9
s_addc_u32 s1, s1, 0
s_load_dwordx2 s[10:11], s[4:5], 0x0
v_lshlrev_b32 v1, 2, v0
buffer_store_dword v1, off, s[0:3], 0 offset:60
s_waitcnt vmcnt(0)
buffer_load_dword v2, off, s[0:3], 0 offset:60
s_waitcnt vmcnt(0) lgkmcnt(0)
global_store_dword v1, v2, s[10:11]"""
    after = run(body, np.zeros(128, np.uint32), wavefronts=2, arch="gfx90a")
    np.testing.assert_array_equal(after, 4 * np.arange(128))


def test_ordinary_registers_run_on_into_the_accumulation_registers():
    """The kernel has 64 ordinary registers, and 128 in all: v64 is a0. Hand-written kernels rely on it."""
    body = f"{POINTER}v_mov_b32 v64, 9\nv_accvgpr_read_b32 v3, a0\nglobal_store_dword v1, v3, s[4:5]\n"
    assert (run(body, data())[:64] == 9).all()
    with pytest.raises(UnsupportedInstructionError, match="register v128: the kernel has 128 of them"):
        run(f"{POINTER}v_mov_b32 v128, 9\n", data())
