"""Counters, by kernels whose counts are known by hand."""

from __future__ import annotations

import numpy as np
import pytest
from aot_emulator import ARCHS, Options, Order, Statistics
from aot_emulator.isa.decoding import Instruction
from aot_emulator.profile.counters import kind_of
from aot_emulator.profile.peaks import Work, lower_bounds, ridge
from aot_emulator.profile.traffic import AccessCount

from tests.support.emulation.assembled import counted

PROLOGUE = 2
"""Instructions that `counted` adds: a scalar load of 8 bytes, and a wait."""
GLOBAL_LOAD, GLOBAL_STORE = ("global", "load"), ("global", "store")


# Classes


CLASSES = {
    "salu": "s_mov_b32 s_getpc_b64 s_setreg_b32 s_cmp_eq_u32 s_cmovk_i32",
    "valu": "v_add_f32 v_cmp_eq_u32 v_accvgpr_read_b32 v_dot2_f32_f16 v_dual_fmac_f32 v_readlane_b32",
    "matrix": "v_mfma_f32_32x32x8_f16 v_smfmac_f32_16x16x32_f16 v_wmma_f32_16x16x16_f16",
    "lds_load": "ds_read_b128 ds_read2st64_b64 ds_load_b32 ds_read_u16_d16_hi ds_read_b64_tr_b16",
    "lds_store": "ds_write_b8 ds_write2_b32 ds_store_b128",
    "lds_atomic": "ds_add_u32 ds_add_rtn_u32 ds_cmpst_b32 ds_cmpstore_rtn_b32 ds_wrxchg_rtn_b32",
    "lds_exchange": "ds_bpermute_b32 ds_permute_b32 ds_swizzle_b32",
    "global_load": "global_load_dword buffer_load_dwordx4 flat_load_ubyte global_load_b128",
    "global_store": "global_store_dword buffer_store_short flat_store_b32",
    "global_atomic": "global_atomic_add buffer_atomic_pk_add_f16 flat_atomic_cmpswap",
    "scratch_load": "scratch_load_dword",
    "scratch_store": "scratch_store_b64",
    "scalar_memory": "s_load_dwordx4 s_buffer_load_dword s_dcache_inv s_load_b256",
    "branch": "s_branch s_cbranch_scc0 s_cbranch_execz s_setpc_b64 s_swappc_b64",
    "wait": "s_waitcnt s_waitcnt_vscnt s_wait_loadcnt s_wait_kmcnt",
    "barrier": "s_barrier s_barrier_signal s_barrier_wait",
    "other": "s_nop s_endpgm s_setprio s_delay_alu s_clause buffer_inv ds_nop",
}


@pytest.mark.parametrize("kind", CLASSES)
def test_classes(kind: str):
    sopp = ("s_nop", "s_endpgm", "s_setprio", "s_delay_alu", "s_clause")
    for name in CLASSES[kind].split():
        encoding = "SOPP" if name in sopp else "SOP1"
        assert kind_of(Instruction(ARCHS["gfx942"], 0, 4, name, encoding, {}, ())) == kind, name


def test_straight_code():
    found = counted(
        "v_mov_b32 v1, 0", "v_exp_f32 v2, v1", "v_add_f32 v3, v1, v2", "s_mov_b32 s4, 1", "s_nop 0", "s_barrier",
        "s_waitcnt lgkmcnt(0)", workgroups=3, wavefronts=2, profile=False,
    )  # fmt: skip
    total = found.summary
    assert total.instructions == found.instructions == (PROLOGUE + 8) * 6
    assert total.kinds == {"valu": 18, "salu": 6, "other": 12, "barrier": 6, "wait": 12, "scalar_memory": 6}
    assert total.mnemonics["v_exp_f32"] == 6 and total.transcendental == 6
    assert (found.workgroups, found.wavefronts) == (3, 6)
    assert found.traffic is None and total.accesses == {} and found.loops == ()


# Loops

NESTED = """s_mov_b32 s4, 0
outer: s_mov_b32 s5, 0
v_mov_b32 v1, 1
inner: v_add_u32 v1, v1, v1
v_add_u32 v1, v1, v1
s_add_u32 s5, s5, 1
s_cmp_lt_u32 s5, 5
s_cbranch_scc1 inner
s_add_u32 s4, s4, 1
s_cmp_lt_u32 s4, 3
s_cbranch_scc1 outer"""


@pytest.mark.parametrize("order", Order)
def test_nested_loops(order: Order):
    found, waves = counted(NESTED, workgroups=4, wavefronts=2, order=order), 8
    outer, inner = found.loops
    assert (outer.entered, outer.iterations, outer.trip_count) == (waves, 3 * waves, 3)
    assert (inner.entered, inner.iterations, inner.trip_count) == (3 * waves, 15 * waves, 5)
    assert inner.loop.parent == outer.loop.header and (outer.loop.depth, inner.loop.depth) == (1, 2)
    assert outer.own.kinds == {"salu": 3 * 3 * waves, "valu": 3 * waves, "branch": 3 * waves}
    assert inner.own.kinds == {"salu": 15 * 2 * waves, "valu": 15 * 2 * waves, "branch": 15 * waves}
    assert found.instructions == waves * (PROLOGUE + 1 + 3 * 5 + 15 * 5 + 1)
    rows = {item.instruction.pc: item for item in found.by_instruction}
    assert sum(item.executions for item in rows.values()) == found.instructions
    assert rows[inner.loop.header].executions == 15 * waves and rows[inner.loop.header].loop == inner.loop.header
    assert rows[0].loop is None


def test_trip_counts_that_differ_by_workgroup():
    lines = ("s_add_u32 s3, s2, 1", "s_mov_b32 s4, 0", "loop: s_add_u32 s4, s4, 1", "s_cmp_lt_u32 s4, s3",
             "s_cbranch_scc1 loop")  # fmt: skip
    (loop,) = counted(*lines, workgroups=4).loops
    assert (loop.entered, loop.iterations, loop.trip_count) == (4, 1 + 2 + 3 + 4, 2.5)


def test_a_called_function_has_its_loops():
    lines = """s_getpc_b64 s[6:7]
here: s_add_u32 s6, s6, function-here
s_addc_u32 s7, s7, 0
s_swappc_b64 s[8:9], s[6:7]
s_branch done
function: s_mov_b32 s4, 0
loop: s_add_u32 s4, s4, 1
s_cmp_lt_u32 s4, 7
s_cbranch_scc1 loop
s_setpc_b64 s[8:9]
done: s_nop 0"""
    found = counted(lines, workgroups=2)
    (loop,) = found.loops
    assert (loop.entered, loop.iterations) == (2, 14)


# Memory


@pytest.mark.parametrize(
    ("nbytes", "stride", "lines"),
    [(4, 4, 2), (4, 8, 4), (4, 64, 32), (4, 128, 64), (4, 256, 64), (4, 0, 1), (16, 16, 8), (16, 128, 64), (2, 2, 1),
     (1, 1, 1), (8, 8, 4), (12, 12, 6), (16, 136, 68)],
)  # fmt: skip
def test_lines_of_loads(nbytes: int, stride: int, lines: int):
    form = {1: "ubyte v4", 2: "ushort v4", 4: "dword v4", 8: "dwordx2 v[4:5]", 12: "dwordx3 v[4:6]",
            16: "dwordx4 v[4:7]"}[nbytes]  # fmt: skip
    found = counted(f"v_mul_u32_u24 v1, {stride}, v0", f"global_load_{form}, v1, s[0:1]", workgroups=2)
    access = found.summary.accesses[GLOBAL_LOAD]
    distinct = 64 * nbytes if stride else nbytes
    assert access == AccessCount(2, 128, 128 * nbytes, 2 * distinct, 2 * lines)
    assert access.efficiency(128) == pytest.approx(distinct / (128 * lines))
    assert found.traffic is not None and found.traffic.reached() == (distinct, 0)


def test_overlapping_lanes_and_unaligned_lines():
    """8 bytes every 4, from 4 bytes before the end of a line: 260 bytes of 4 lines."""
    found = counted("v_lshlrev_b32 v1, 2, v0", "global_load_dwordx2 v[4:5], v1, s[0:1] offset:124")
    access = found.summary.accesses[GLOBAL_LOAD]
    assert (access.bytes, access.distinct_bytes, access.lines) == (512, 260, 3)
    assert found.traffic is not None and found.traffic.reached() == (260, 0)


def test_lines_of_an_access_are_those_of_the_active_lanes():
    found = counted("s_mov_b64 exec, 0x5", "v_lshlrev_b32 v1, 8, v0", "global_store_dword v1, v0, s[0:1]",
                "s_mov_b64 exec, 0", "global_store_dword v1, v0, s[0:1]")  # fmt: skip
    assert found.summary.accesses[GLOBAL_STORE] == AccessCount(1, 2, 8, 8, 2)
    assert found.summary.kinds["global_store"] == 2
    assert found.traffic is not None and found.traffic.reached() == (0, 8)


def test_what_is_read_again_is_distinct_once():
    lines = ["v_lshlrev_b32 v1, 2, v0"] + ["global_load_dword v4, v1, s[0:1]"] * 5
    found = counted(*lines, "global_store_dword v1, v4, s[0:1] offset:512", workgroups=7)
    assert found.traffic is not None and found.traffic.reached() == (256, 256)
    assert found.summary.accesses[GLOBAL_LOAD].bytes == 7 * 5 * 256
    rows = [row for row in found.by_instruction if row.instruction.mnemonic.startswith("global")]
    assert [next(iter(row.accesses.values())).bytes for row in rows] == [7 * 256] * 6


def test_buffers_count_what_is_inside():
    lines = ("s_mov_b64 s[4:5], s[0:1]", "s_mov_b32 s6, 100", "s_mov_b32 s7, 0x27000", "v_lshlrev_b32 v1, 2, v0")
    found = counted(*lines, "buffer_load_dword v4, v1, s[4:7], 0 offen")
    assert found.summary.accesses[GLOBAL_LOAD] == AccessCount(1, 25, 100, 100, 1)
    # Of two wavefronts one is within.
    found = counted(
        *lines,
        "v_lshlrev_b32 v1, 4, v0",
        "s_mov_b32 s6, 1024",
        "buffer_load_dword v4, v1, s[4:7], 0 offen",
        wavefronts=2,
    )
    assert found.summary.accesses[GLOBAL_LOAD] == AccessCount(1, 64, 256, 256, 8)


def test_atomics_read_and_write():
    found = counted("v_mov_b32 v1, 0", "global_atomic_add v1, v0, s[0:1]", "v_lshlrev_b32 v1, 3, v0",
                "global_atomic_add_x2 v[4:5], v1, v[2:3], s[0:1] sc0")  # fmt: skip
    access = found.summary.accesses["global", "atomic"]
    assert (access.accesses, access.lanes, access.bytes) == (2, 128, 64 * 12)
    assert found.summary.kinds["global_atomic"] == 2
    assert found.traffic is not None and found.traffic.reached() == (512, 512)


def test_scratch_and_scalar_loads():
    lines = ("scratch_store_dwordx2 off, v[2:3], off offset:8", "scratch_load_dword v4, off, off offset:8",
             "s_load_dwordx8 s[8:15], s[0:1], 0x20", "s_load_dword s8, s[0:1], 0x0")  # fmt: skip
    found = counted(*lines, workgroups=2)
    assert found.summary.accesses == {
        ("scratch", "store"): AccessCount(2, 128, 1024, 1024),
        ("scratch", "load"): AccessCount(2, 128, 512, 512),
        ("scalar", "load"): AccessCount(6, 6, 72 + 16, 72 + 16),  # those of the kernarg segment too
    }
    assert found.traffic is not None and found.traffic.reached() == (36, 0)
    assert found.summary.kinds["scalar_memory"] == 6 and found.summary.kinds["scratch_store"] == 2


# Whole kernels


def matmul(options: Options) -> Statistics:
    """64 x 96 x 128, in blocks of 32."""
    pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")
    from tests.support.emulation import launching

    a, b = (np.random.default_rng(0).integers(-4, 5, shape).astype(np.float16) for shape in ((64, 128), (128, 96)))
    arguments = {"a": a, "b": b, "c": np.zeros((64, 96), np.float32), "m": 64, "n": 96, "k": 128}
    _, driver = launching.run(
        "matmul_blocks",
        (2, 3),
        arguments,
        {"num_warps": 1},
        options,
        ("m", "n", "k"),
        BLOCK_M=32,
        BLOCK_N=32,
        BLOCK_K=32,
    )
    return driver.last


def test_a_matmul():
    found, (m, n, k) = matmul(Options(profile=True)), (64, 96, 128)
    assert found.summary.flops == {"f16": 2 * m * n * k}
    assert found.summary.matrix["f16"] == found.summary.kinds["matrix"]
    assert found.traffic is not None and found.traffic.reached() == (2 * (m * k + k * n), 4 * m * n)
    # Each block of 32 by 32 loads its rows of a and its columns of b once.
    assert found.summary.accesses[GLOBAL_LOAD].bytes == 6 * 2 * (32 * k + k * 32)
    assert found.summary.accesses[GLOBAL_STORE].bytes == 4 * m * n
    (loop,) = found.loops
    assert loop.entered == found.wavefronts == 6 and loop.trip_count == k / 32
    assert loop.own.flops == found.summary.flops
    # Counts do not depend on the order, nor on profiling.
    for options in (
        Options(order=Order.SERIAL, profile=True),
        Options(batch_wavefronts=4, profile=True),
        Options(strict=True),
        Options(),
    ):
        other = matmul(options)
        assert (other.instructions, other.summary.mnemonics) == (found.instructions, found.summary.mnemonics)
        if options.profile:
            assert (other.loops[0].iterations, other.summary.accesses) == (loop.iterations, found.summary.accesses)


def test_integer_matrix_operations_are_of_their_type():
    total = counted("v_mfma_i32_16x16x32_i8 v[4:7], v[0:1], v[2:3], v[4:7]", "v_mfma_f64_16x16x4_f64 v[8:15], v[0:1], v[2:3], 0",
                "v_mfma_f32_4x4x4_16b_f16 v[4:7], v[0:1], v[2:3], 0", workgroups=2).summary  # fmt: skip
    assert total.flops == {"i8": 2 * 2 * 16 * 16 * 32, "f64": 2 * 2 * 16 * 16 * 4, "f16": 2 * 2 * 16 * 4 * 4 * 4}


# Bounds


def test_every_arch_has_peaks():
    for arch in ARCHS.values():
        peaks = arch.peaks
        assert peaks.lds_banks & (peaks.lds_banks - 1) == 0 and peaks.line_bytes in (64, 128)


@pytest.mark.parametrize(
    ("arch", "cus", "kind", "tflops"),
    [("gfx942", 304, "f16", 1307.4), ("gfx942", 304, "fp8", 2614.9), ("gfx942", 304, "xf32", 653.7),
     ("gfx942", 304, "f64", 163.4), ("gfx950", 256, "bf16", 2516.6), ("gfx950", 256, "fp4", 10066.3),
     ("gfx950", 256, "f64", 78.6), ("gfx90a", 110, "f16", 191.5), ("gfx1100", 96, "f16", 122.9),
     ("gfx1201", 64, "f16", 194.6), ("gfx1201", 64, "fp8", 389.3)],
)  # fmt: skip
def test_peaks_are_those_of_the_data_sheets(arch: str, cus: int, kind: str, tflops: float):
    found, peaks = ARCHS[arch], ARCHS[arch].peaks
    assert found.num_cus == cus
    assert peaks.matrix[kind] * cus * peaks.clock / 1e12 == pytest.approx(tflops, rel=1e-3)


def test_bounds():
    arch, peaks = ARCHS["gfx942"], ARCHS["gfx942"].peaks
    work = Work(10_000, {"f16": 2048 * 304, "fp8": 4096 * 304}, 4 * 304, 0, 0, 0)
    bounds = lower_bounds(arch, work)
    assert bounds.matrix == pytest.approx(2 / peaks.clock) and bounds.valu == pytest.approx(4 / peaks.clock)
    assert (bounds.lds, bounds.memory) == (0, 0) and bounds.limit == "valu" and bounds.seconds == bounds.valu
    one = lower_bounds(arch, Work(1, {"f16": 2048}, 0, 4, 5, 0))
    assert one.matrix == pytest.approx(1 / peaks.clock) and one.valu == pytest.approx(16 / peaks.clock)
    assert one.lds == pytest.approx(5 / peaks.clock) and one.limit == "valu"
    assert lower_bounds(arch, Work(1, {}, 0, 0, 0, int(5.3e12))).memory == pytest.approx(1)
    assert ridge(arch, "f16") == pytest.approx(246.7, abs=0.1)
