"""Costs of instructions, and errors for unknown costs."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from enum import Enum

import pytest
import tinygrad.runtime.autogen.amd.cdna.enum as cdna

from aot_emulator.errors import UnsupportedInstructionError
from aot_emulator.isa.archs import ARCHS
from aot_emulator.isa.matrix.matrix_op import matrix_ops
from aot_emulator.profile.counters import matrix_flops
from aot_emulator.timing.constants import CONSTANTS, Machine, machine_of
from aot_emulator.timing.costs import ISSUE, Cost, Unit, cost_of
from aot_runtime.errors import DeviceError
from tests.support.emulation.machine import decoded


def cost(text: str, arch: str = "gfx942") -> Cost:
    return cost_of(decoded(text, arch), machine_of(arch))


def test_what_an_instruction_occupies():
    assert (cost("v_add_f32 v0, v1, v2").unit, cost("v_add_f32 v0, v1, v2").cycles) == (Unit.VECTOR, 4)
    assert cost("v_exp_f32 v0, v1").cycles == 16
    assert cost("s_nop 5").cycles == 24 and cost("s_sleep 2").cycles == 128
    assert cost("s_setprio 3").priority == 3 and cost("s_mov_b32 s0, s1").priority == -1
    product = cost("v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]")
    assert (product.unit, product.cycles) == (Unit.MATRIX, 32)
    assert product.writes == tuple(range(256, 272)) and product.reads == (0, 1, 2, 3, *range(256, 272))


def test_what_counts_and_what_is_waited_for():
    load, read = cost("global_load_dword v0, v[2:3], off"), cost("ds_read_b128 v[0:3], v4")
    assert (load.unit, load.counts_vm, load.counts_lgkm) == (Unit.LOAD, True, False)
    assert (read.unit, read.counts_vm, read.counts_lgkm) == (Unit.LDS, False, True)
    assert cost("s_load_dwordx2 s[4:5], s[0:1], 0x0").counts_lgkm
    wait = cost("s_waitcnt vmcnt(3) lgkmcnt(1)")
    assert (wait.unit, wait.vm, wait.lgkm) == (Unit.WAIT, 3, 1)
    assert cost("s_waitcnt lgkmcnt(0)").vm == -1
    assert cost("scratch_load_dword v0, v1, off").near and not load.near


@pytest.mark.parametrize("arch", CONSTANTS)
def test_passes_are_those_of_the_peak_rates(arch: str):
    """LLVM's passes agree with the data sheets' rates, two independent sources.

    Instructions of 4 x 4 blocks do not reach the peak.
    """
    spelled = "8f16" if arch == "gfx90a" else "8_f16"
    template = decoded(f"v_mfma_f32_32x32x{spelled} a[0:15], v[0:1], v[2:3], a[0:15]", arch)
    peaks, compared = ARCHS[arch].peaks.matrix, 0
    for name in matrix_ops(arch):
        instruction = replace(template, mnemonic=name)
        if not name.startswith("v_mfma") or "_4x4x" in name:
            continue
        kind, flops = matrix_flops(instruction) or ("", 0)
        try:
            found = cost_of(instruction, machine_of(arch)).cycles
        except UnsupportedInstructionError:
            continue
        if kind not in peaks:
            continue
        assert found * peaks[kind] / 4 >= flops, name
        compared += found * peaks[kind] / 4 == flops
    assert compared >= 8


def test_an_instruction_without_a_cost_is_refused_by_name():
    instruction = replace(decoded("v_add_f32 v0, v1, v2"), mnemonic="v_bogus_f32")
    with pytest.raises(UnsupportedInstructionError, match=r"v_bogus_f32.*does not know its cost on gfx942") as error:
        cost_of(instruction, machine_of("gfx942"))
    assert error.value.mnemonic == "v_bogus_f32"
    for name in ("s_bogus", "v_mfma_f32_64x64x1_f16"):
        with pytest.raises(UnsupportedInstructionError, match=name):
            cost_of(replace(instruction, mnemonic=name, encoding="SOPP"), machine_of("gfx942"))


def test_an_architecture_without_constants_is_refused():
    with pytest.raises(DeviceError, match=r"does not support gfx1100; supported: gfx942, gfx90a, gfx950"):
        machine_of("gfx1100")


def test_each_figure_has_a_source():
    for table in CONSTANTS.values():
        assert set(table) == {item.name for item in fields(Machine)}
        for figure in table.values():
            assert figure.value > 0 and re.match(
                r"fitted|assumed|that of|data sheet|AMD |CDNA |LLVM|Chips", figure.source
            )
    assert machine_of("gfx942").clock_ghz * 1e9 == ARCHS["gfx942"].peaks.clock
    assert machine_of("gfx950").hbm * 1e9 == ARCHS["gfx950"].peaks.bandwidth
    assert ARCHS["gfx942"].peaks.valu_cycles == ISSUE


def test_every_vector_instruction_has_a_cost_but_for_those_that_kernels_do_not_use():
    names = {
        re.sub(r"_e(32|64)$", "", member.name.lower())
        for table in vars(cdna).values()
        if isinstance(table, type) and issubclass(table, Enum)
        for member in table
        if member.name.startswith("V_") and not re.match("V_S?MFMA", member.name)
    }
    template = decoded("v_add_f32 v0, v1, v2")
    refused = set()
    for name in names:
        try:
            assert cost_of(replace(template, mnemonic=name), machine_of("gfx942")).unit is Unit.VECTOR
        except UnsupportedInstructionError:
            refused.add(name)
    assert len(names) > 500
    assert {re.split("[_0-9]", name)[1] for name in refused} == {"clrexcp", "cubeid", "cubema", "cubesc", "cubetc", "lerp",
                                                           "mqsad", "msad", "qsad", "screen", "trig"}  # fmt: skip
