"""The scalar unit of RDNA: integers against Python's own, floats against the vector unit's."""

from __future__ import annotations

import numpy as np
import pytest
from aot_emulator.isa.scalar.scalar_alu import SOP1, SOP2
from aot_emulator.isa.scalar.scalar_floats import _OPS
from aot_emulator.machine.program import Program

from aot_runtime.errors import EmulationError, UnsupportedInstructionError
from tests.aot_emulator.test_scalar import LOGIC, MASK, ONE, ORDER, TWO, carry, check, registers, s, value
from tests.support.emulation.machine import DEFAULT_MODE, Machine, edge_floats, integers
from tests.support.emulation.rdna import RDNA, assert_same, dtype_of, get, mnemonics, put, spelled

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def with_sources(arch: str, seed: int, wavefronts: int = 96) -> Machine:
    """s[4:5] and s[8:9] random, equal in places; SCC alternating."""
    machine = Machine(wavefronts, arch=arch)
    machine.s[[4, 5, 8, 9]] = integers(seed, (4, wavefronts))
    machine.s[8:10, ::7] = machine.s[4:6, ::7]
    machine.batch.scc[:] = np.arange(wavefronts) % 2
    return machine


def forms(table: dict) -> list[tuple[str, str]]:
    return [(arch, name) for arch in RDNA for name in table if name in mnemonics(arch)]


@pytest.mark.parametrize("arch,operation", forms(TWO))
def test_two_sources(arch: str, operation: str):
    machine = with_sources(arch, len(operation))
    kind, *kinds = SOP2[operation].kinds
    sources = [value(machine, number, source) for number, source in zip((4, 8), kinds, strict=True)]
    name = mnemonics(arch)[operation]
    machine.execute(f"{name} {registers(kind, 2)}, {registers(kinds[0], 4)}, {registers(kinds[1], 8)}")
    check(machine, kind, [TWO[operation](a, b) for a, b in zip(*sources, strict=True)])


@pytest.mark.parametrize("arch,operation", forms(ONE))
def test_one_source(arch: str, operation: str):
    machine = with_sources(arch, len(operation))
    kind, source = SOP1[operation].kinds
    values = value(machine, 4, source)
    machine.execute(f"{mnemonics(arch)[operation]} {registers(kind, 2)}, {registers(source, 4)}")
    check(machine, kind, [ONE[operation](a) for a in values])


@pytest.mark.parametrize("arch", RDNA)
def test_carry_chain(arch: str):
    machine = with_sources(arch, 7)
    a, b, c = machine.s[4].tolist(), machine.s[8].tolist(), machine.scc.tolist()
    add, subtract = ("s_add_co_ci_u32", "s_sub_co_ci_u32") if arch == "gfx1201" else ("s_addc_u32", "s_subb_u32")
    machine.execute(f"{add} s2, s4, s8")
    check(machine, "u32", [carry(x + y + z) for x, y, z in zip(a, b, c, strict=True)])
    c = machine.scc.tolist()
    machine.execute(f"{subtract} s2, s4, s8")
    check(machine, "u32", [carry(x - y - z) for x, y, z in zip(a, b, c, strict=True)])


@pytest.mark.parametrize("arch", RDNA)
def test_immediates(arch: str):
    machine = Machine(arch=arch)
    machine.s[2:6] = 10
    add = "s_addk_co_i32" if arch == "gfx1201" else "s_addk_i32"
    machine.execute("s_movk_i32 s2, 0x8000", "s_mulk_i32 s4, -3", f"{add} s3, -11")
    assert (machine.s[2].view(np.int32) == -0x8000).all() and (machine.s[3].view(np.int32) == -1).all()
    assert (machine.s[4].view(np.int32) == -30).all() and not machine.scc.any()
    machine.s[5] = 0x7FFFFFFF
    assert machine.execute(f"{add} s5, 1").scc.all()


@pytest.mark.parametrize("arch", RDNA)
@pytest.mark.parametrize("name", ORDER)
def test_integer_comparison(name: str, arch: str):
    machine = with_sources(arch, 5)
    for kind in ("i32", "u32"):
        sources = [[s(v) if kind == "i32" else v for v in value(machine, n, kind)] for n in (4, 8)]
        machine.execute(f"s_cmp_{name}_{kind} s4, s8")
        assert machine.scc.tolist() == [ORDER[name](a, b) for a, b in zip(*sources, strict=True)]
    machine.execute("s_cselect_b32 s2, s4, s8", "s_cmov_b32 s3, s4")
    np.testing.assert_array_equal(machine.s[2], np.where(machine.scc, machine.s[4], machine.s[8]))


@pytest.mark.parametrize("arch", RDNA)
@pytest.mark.parametrize("operation", LOGIC)
def test_exec_of_32_lanes_is_saved_and_combined(operation: str, arch: str):
    machine = with_sources(arch, 10)
    machine.set_exec(np.arange(96, dtype=np.uint64) * np.uint64(0x123456789AB) & np.uint64(0xFFFFFFFF))
    machine.s[[3, 127]] = 0x77777777
    old, source = machine.s[126].tolist(), machine.s[4].tolist()
    name = operation.replace("n2", "_not1").replace("n1", "_not0")
    machine.execute(f"s_{name}_saveexec_b32 s2, s4")
    wanted = [LOGIC[operation](a, b) & MASK[32] for a, b in zip(source, old, strict=True)]
    assert machine.s[2].tolist() == old and machine.s[126].tolist() == wanted
    assert machine.scc.tolist() == [value != 0 for value in wanted]
    assert (machine.s[[3, 127]] == 0x77777777).all(), "one register"
    if operation in ("andn1", "andn2"):
        machine.set_exec(0xFF00FF00)
        wanted = [LOGIC[operation](value, 0xFF00FF00) & MASK[32] for value in source]
        machine.execute(f"s_{name}_wrexec_b32 s2, s4")
        assert machine.s[2].tolist() == machine.s[126].tolist() == wanted


@pytest.mark.parametrize("arch", RDNA)
def test_null_reads_as_zero_and_takes_nothing(arch: str):
    machine = with_sources(arch, 11)
    machine.s[125] = 77
    add = "s_add_co_u32" if arch == "gfx1201" else "s_add_u32"
    machine.execute(f"{add} null, s4, s8", "s_mov_b64 null, s[4:5]", f"{add} s2, null, s4", "s_mov_b64 s[6:7], null",
                    "s_mov_b32 s10, m0", "s_mov_b32 m0, 5", "v_mov_b32 v2, null")  # fmt: skip
    np.testing.assert_array_equal(machine.s[2], machine.s[4])
    assert not machine.s[6:8].any() and not machine.s[124].any() and not machine.v[2].any()
    assert (machine.s[10] == 77).all() and (machine.s[125] == 5).all(), "M0 is another register than CDNA's"


@pytest.mark.parametrize("arch", RDNA)
def test_fields_of_mode(arch: str):
    machine = Machine(arch=arch)
    machine.execute("s_getreg_b32 s2, hwreg(HW_REG_MODE, 4, 4)", "s_round_mode 0xd", "s_denorm_mode 0x3",
                    "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1")  # fmt: skip
    assert (machine.s[2] == 15).all()
    assert (machine.batch.mode == DEFAULT_MODE & ~0xFF | 0x3D | 1 << 23).all()
    mode = machine.waves.mode
    assert (mode.round32, mode.round16_64, mode.keep_in32, mode.keep_in16_64, mode.fp16_ovfl) == (
        1,
        3,
        True,
        False,
        True,
    )


def test_what_only_waits_does_nothing():
    lines = {
        "gfx1100": ("s_nop 3", "s_waitcnt vmcnt(0) lgkmcnt(0)", "s_waitcnt_vscnt null, 0x0", "s_clause 0x3",
                    "s_waitcnt_depctr 0xfff", "s_delay_alu instid0(VALU_DEP_1)", "s_sleep 1", "s_wakeup",
                    "s_set_inst_prefetch_distance 0x1", "s_sendmsg sendmsg(MSG_DEALLOC_VGPRS)", "v_nop"),
        "gfx1201": ("s_wait_alu 0xfffe", "s_wait_loadcnt 0x0", "s_wait_storecnt 0x0", "s_wait_dscnt 0x0",
                    "s_wait_kmcnt 0x0", "s_wait_samplecnt 0x0", "s_wait_bvhcnt 0x0", "s_wait_expcnt 0x0",
                    "s_wait_loadcnt_dscnt 0x0", "s_wait_storecnt_dscnt 0x0", "s_sendmsg sendmsg(MSG_DEALLOC_VGPRS)"),
    }  # fmt: skip
    for arch, text in lines.items():
        machine = Machine(arch=arch)
        before = machine.v.copy(), machine.s.copy()
        machine.execute(*text)
        np.testing.assert_array_equal(machine.v, before[0])
        np.testing.assert_array_equal(machine.s, before[1])
        with pytest.raises(UnsupportedInstructionError, match="s_sendmsg"):
            machine.execute("s_sendmsg sendmsg(MSG_INTERRUPT)")


def program_of(arch: str, *lines: str) -> tuple[Machine, Program]:
    from aot_emulator.isa.decoding import decode
    from aot_emulator.isa.operands import Registers

    from tests.support.emulation.machine import ACCUMULATION, assemble

    machine = Machine(arch=arch)
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
    machine, program = program_of("gfx1100", "s_barrier")
    assert program.run_at(0).exit.kind == "barrier"
    for line in ("s_barrier_signal 2", "s_barrier_signal m0", "s_barrier_wait 2"):
        with pytest.raises(UnsupportedInstructionError, match="a barrier other than the workgroup's"):
            program_of("gfx1201", line)[1].run_at(0)


@pytest.mark.parametrize("arch", RDNA)
@pytest.mark.parametrize("bits", (32, 64))
def test_single_bits(bits: int, arch: str):
    machine = with_sources(arch, 6)
    values, positions = value(machine, 4, f"u{bits}"), value(machine, 8, "u32")
    source, target, cleared = (registers(f"u{bits}", number) for number in (4, 10, 12))
    for wanted in (0, 1):
        machine.execute(f"s_bitcmp{wanted}_b{bits} {source}, s8")
        assert machine.scc.tolist() == [(a >> (b % bits) & 1) == wanted for a, b in zip(values, positions, strict=True)]
    machine.execute(f"s_mov_b{bits} {target}, {source}", f"s_mov_b{bits} {cleared}, {source}",
                    f"s_bitset1_b{bits} {target}, s8", f"s_bitset0_b{bits} {cleared}, s8")  # fmt: skip
    pairs = list(zip(values, positions, strict=True))
    assert value(machine, 10, f"u{bits}") == [a | 1 << b % bits for a, b in pairs]
    assert value(machine, 12, f"u{bits}") == [a & ~(1 << b % bits) for a, b in pairs]


def test_comparison_with_an_immediate():
    """gfx11 alone has these."""
    for name, compare in ORDER.items():
        machine = with_sources("gfx1100", 7)
        machine.s[4, ::3] = 0xFFFF8001
        machine.s[4, 1::3] = 0x8001
        values = value(machine, 4, "u32")
        machine.execute(f"s_cmpk_{name}_u32 s4, 0x8001")
        assert machine.scc.tolist() == [compare(a, 0x8001) for a in values]
        machine.execute(f"s_cmpk_{name}_i32 s4, 0x8001")
        assert machine.scc.tolist() == [compare(s(a), s(0x8001, 16)) for a in values]


@pytest.mark.parametrize("arch", RDNA)
def test_branches_look_at_masks_of_32_lanes(arch: str):
    machine, _ = program_of(arch)
    machine.s[106], machine.s[107] = [0, 1, 0, 1 << 31], 0x77777777
    machine.s[126], machine.s[127] = [1 << 31, 0, 0, 5], 0x77777777
    machine.batch.scc[:] = [True, False, True, False]
    wanted = {
        "s_cbranch_vccz": machine.s[106] == 0, "s_cbranch_vccnz": machine.s[106] != 0,
        "s_cbranch_execz": machine.s[126] == 0, "s_cbranch_execnz": machine.s[126] != 0,
        "s_cbranch_scc0": ~machine.scc, "s_cbranch_scc1": machine.scc.copy(),
    }  # fmt: skip
    for name, taken in wanted.items():
        _, program = program_of(arch, f"{name} 2", "s_nop 0", "s_nop 0")
        exit_ = program.run_at(0).exit
        assert (exit_.kind, exit_.target, exit_.other) == ("branch", 12, 4) and exit_.condition is not None
        np.testing.assert_array_equal(exit_.condition(machine.waves), taken, name)
    _, program = program_of(arch, "s_branch 1", "s_nop 0")
    assert (program.run_at(0).exit.kind, program.run_at(0).exit.target) == ("jump", 8)


@pytest.mark.parametrize("arch", RDNA)
def test_calls(arch: str):
    machine, program = program_of(
        arch, "s_nop 0", "s_getpc_b64 s[4:5]", "s_swappc_b64 s[6:7], s[8:9]", "s_setpc_b64 s[6:7]"
    )
    machine.set_pair(8, 12)
    run = program.run_at(0)
    for _, step in run.steps:
        step(machine.waves)
    assert (machine.pair(4) == 8).all() and (machine.pair(6) == 12).all()
    assert run.exit.address is not None and (run.exit.address(machine.waves) == 12).all()
    assert program.run_at(12).exit.kind == "indirect"


# Floats of gfx12


def vector_name(operation: str) -> str:
    """What the vector unit calls the same."""
    plain = operation.replace("v_s_", "v_") if operation.startswith("v_s_") else f"v_{operation[2:]}"
    return mnemonics("gfx1201")[plain.replace("pk_rtz", "pkrtz")]


@pytest.mark.parametrize("mode", (DEFAULT_MODE, DEFAULT_MODE & ~0xF0, DEFAULT_MODE | 5), ids=("", "flushed", "upward"))
@pytest.mark.parametrize("operation", _OPS)
def test_scalar_floats(operation: str, mode: int):
    """A value a wavefront: what the vector unit gives for a value a lane."""
    result, *kinds = _OPS[operation].kinds
    name, literal = mnemonics("gfx1201")[operation], {"mk": 1, "ak": 2}.get(operation[5:7])
    reference, machine = Machine(mode=mode, arch="gfx1201"), Machine(128, mode=mode, arch="gfx1201")
    vectors, scalars = [], []
    for i, kind in enumerate(kinds):
        dtype = dtype_of(kind)
        source = edge_floats(i, (4, 32), dtype) if dtype.kind == "f" else integers(i, (4, 32)).view(dtype)
        number = 2 if kind.startswith("=") else 8 + i
        put(reference, number, source)
        machine.s[number] = source.ravel().view(f"u{dtype.itemsize}")
        if number != 2:
            vectors.append("0x40490fdb" if i == literal else spelled(kind, number, 0))
            scalars.append("0x40490fdb" if i == literal else f"s{number}")
    reference.execute(f"{vector_name(operation)} {spelled(result, 2, 0)}, {', '.join(vectors)}")
    machine.execute(f"{name} s2, {', '.join(scalars)}")
    dtype = dtype_of(result)
    if dtype.itemsize == 2:
        assert not (machine.s[2] >> 16).any(), "a half is a number of 32 bits"
    got = machine.s[2].astype(f"u{dtype.itemsize}").view(dtype)
    assert_same(got, get(reference, 2, dtype).ravel(), name)


def test_scalar_floats_in_numbers():
    machine = Machine(arch="gfx1201")
    for number, x in ((4, 1.5), (5, -2.25), (6, 7.9)):
        machine.s[number] = np.float32(x).view(np.uint32)
    machine.s[7] = int(np.float16(3).view(np.uint16)) << 16 | int(np.float16(-1).view(np.uint16))
    machine.s[20] = machine.s[4]
    machine.execute(
        "s_add_f32 s8, s4, s5", "s_mul_f32 s9, s4, s5", "s_min_num_f32 s10, s4, s5", "s_cvt_i32_f32 s11, s6",
        "s_cvt_hi_f32_f16 s12, s7", "s_cvt_f32_f16 s13, s7", "s_fmac_f32 s20, s4, s5", "s_trunc_f32 s14, s5",
        "v_s_rcp_f32 s15, -s4", "v_s_sqrt_f32 s16, |s5| clamp", "s_cvt_pk_rtz_f16_f32 s17, s4, s5",
        "s_maximum_f32 s18, s4, 0x7fc00000", "s_max_num_f32 s19, s4, 0x7fc00000",
    )  # fmt: skip
    got = {number: float(machine.s[number, 0].view(np.float32)) for number in range(8, 21)}
    assert (got[8], got[9], got[10]) == (-0.75, -3.375, -2.25) and (machine.s[11] == 7).all()
    assert (got[12], got[13], got[20], got[14]) == (3, -1, 1.5 * -2.25 + 1.5, -2)
    assert (got[15], got[16]) == (-float(np.float32(1) / np.float32(1.5)), 1)
    assert (
        machine.s[17] == (int(np.float16(-2.25).view(np.uint16)) << 16 | int(np.float16(1.5).view(np.uint16)))
    ).all()
    assert np.isnan(got[18]) and got[19] == 1.5


COMPARISONS = {
    "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "lg": lambda a, b: (a < b) | (a > b), "ge": lambda a, b: a >= b, "o": lambda a, b: (a == a) & (b == b),
    "u": lambda a, b: (a != a) | (b != b), "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b), "nle": lambda a, b: ~(a <= b), "neq": lambda a, b: a != b,
    "nlt": lambda a, b: ~(a < b),
}  # fmt: skip


@pytest.mark.parametrize("bits", (16, 32))
@pytest.mark.parametrize("name", COMPARISONS)
def test_scalar_float_comparison(name: str, bits: int):
    dtype, unsigned = np.dtype(f"f{bits // 8}"), np.dtype(f"u{bits // 8}")
    a, b = (edge_floats(i, (96,), dtype) for i in range(2))
    b[::5] = a[::5]
    machine = Machine(96, arch="gfx1201")
    machine.s[4], machine.s[8] = a.view(unsigned), b.view(unsigned)
    machine.execute(f"s_cmp_{name}_f{bits} s4, s8")
    np.testing.assert_array_equal(machine.scc, COMPARISONS[name](a, b))


def test_every_instruction_of_the_scalar_unit_has_a_case():
    for arch in RDNA:
        there = mnemonics(arch).keys()
        assert {*SOP1, *SOP2} & there <= {*ONE, *TWO}
    assert set(COMPARISONS) == {
        name[6:-4] for name in mnemonics("gfx1201") if name.startswith("s_cmp_") and "_f" in name
    }
