"""Counters, by kernels whose counts are known by hand."""

from __future__ import annotations

import numpy as np
import pytest

from aot_emulator import ARCHS, Options, Order, Statistics
from aot_emulator.isa.classes import kind_of
from aot_emulator.isa.decoding import Instruction
from aot_emulator.profile.peaks import Work, lower_bounds, ridge
from aot_emulator.profile.traffic import AccessCount
from tests.support.emulation.assembled import counted

PROLOGUE = 2
"""Instructions that `counted` adds: a scalar load of 8 bytes, and a wait."""
LOADS, STORES = ("global", "load"), ("global", "store")

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
    for name in CLASSES[kind].split():
        encoding = "SOPP" if kind == "other" and name.startswith("s_") else "SOP1"
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


@pytest.mark.parametrize(
    ("nbytes", "stride", "lines"),
    [(4, 4, 2), (4, 8, 4), (4, 64, 32), (4, 128, 64), (4, 256, 64), (4, 0, 1), (16, 16, 8), (16, 128, 64), (2, 2, 1),
     (1, 1, 1), (8, 8, 4), (12, 12, 6), (16, 136, 68)],
)  # fmt: skip
def test_lines_of_loads(nbytes: int, stride: int, lines: int):
    form = {1: "ubyte v4", 2: "ushort v4", 4: "dword v4", 8: "dwordx2 v[4:5]", 12: "dwordx3 v[4:6]",
            16: "dwordx4 v[4:7]"}[nbytes]  # fmt: skip
    found = counted(f"v_mul_u32_u24 v1, {stride}, v0", f"global_load_{form}, v1, s[0:1]", workgroups=2)
    access = found.summary.accesses[LOADS]
    distinct = 64 * nbytes if stride else nbytes
    assert access == AccessCount(2, 128, 128 * nbytes, 2 * distinct, 2 * lines)
    assert access.efficiency(128) == pytest.approx(distinct / (128 * lines))
    assert found.traffic is not None and found.traffic.reached() == (distinct, 0)


BUFFER = "s_mov_b64 s[4:5], s[0:1]\ns_mov_b32 s7, 0x27000\nbuffer_load_dword v4, v1, s[4:7], 0 offen"
BY_4, BY_8, BY_16, BY_256 = (f"v_lshlrev_b32 v1, {shift}, v0\n" for shift in (2, 3, 4, 8))
# What happens: text, wavefronts; what is counted of each kind of access, how many bytes are read and written
ACCESSES = {
    "lanes overlap, from 4 bytes before the end of a line": (
        BY_4 + "global_load_dwordx2 v[4:5], v1, s[0:1] offset:124", 1, {LOADS: AccessCount(1, 64, 512, 260, 3)}, (260, 0)),
    "only active lanes count": (
        BY_256 + "s_mov_b64 exec, 5\nglobal_store_dword v1, v0, s[0:1]\ns_mov_b64 exec, 0\nglobal_store_dword v1, v0, s[0:1]",
        1, {STORES: AccessCount(1, 2, 8, 8, 2)}, (0, 8)),
    "what is read again is distinct once": (
        BY_4 + "global_load_dword v4, v1, s[0:1]\n" * 5 + "global_store_dword v1, v4, s[0:1]", 1,
        {LOADS: AccessCount(5, 320, 1280, 1280, 10), STORES: AccessCount(1, 64, 256, 256, 2)}, (256, 256)),
    "a buffer ends": (BY_4 + "s_mov_b32 s6, 100\n" + BUFFER, 1, {LOADS: AccessCount(1, 25, 100, 100, 1)}, (100, 0)),
    "a buffer ends with the first wavefront": (
        BY_16 + "s_mov_b32 s6, 1024\n" + BUFFER, 2, {LOADS: AccessCount(1, 64, 256, 256, 8)}, (256, 0)),
    "atomics read and write": (
        "v_mov_b32 v1, 0\nglobal_atomic_add v1, v0, s[0:1]\n" + BY_8 + "global_atomic_add_x2 v[4:5], v1, v[2:3], s[0:1] sc0",
        1, {("global", "atomic"): AccessCount(2, 128, 768, 516, 5)}, (512, 512)),
    "scratch": (
        "scratch_store_dwordx2 off, v[2:3], off offset:8\nscratch_load_dword v4, off, off offset:8", 2,
        {("scratch", "store"): AccessCount(2, 128, 1024, 1024), ("scratch", "load"): AccessCount(2, 128, 512, 512)}, (0, 0)),
    "scalars": (
        "s_load_dwordx8 s[8:15], s[0:1], 0x20\ns_load_dword s8, s[0:1], 0x0", 1,
        {("scalar", "load"): AccessCount(3, 3, 8 + 36, 8 + 36)}, (36, 0)),
}  # fmt: skip


@pytest.mark.parametrize("what", ACCESSES)
def test_accesses(what: str):
    text, wavefronts, accesses, reached = ACCESSES[what]
    found = counted(text, wavefronts=wavefronts)
    of_kernarg = AccessCount(wavefronts, wavefronts, 8 * wavefronts, 8 * wavefronts)
    assert found.summary.accesses == {("scalar", "load"): of_kernarg} | accesses
    assert found.traffic is not None and found.traffic.reached() == reached
    by_instruction = [access for row in found.by_instruction for access in row.accesses.items()]
    for kind, access in accesses.items():
        assert sum(one.bytes for found, one in by_instruction if found == kind) == access.bytes


def matmul(options: Options) -> Statistics:
    """Multiply 64 x 96 x 128 in blocks of 32."""
    pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")
    from tests.support.emulation import launching

    a, b, c = np.zeros((64, 128), np.float16), np.zeros((128, 96), np.float16), np.zeros((64, 96), np.float32)
    arguments, sizes = {"a": a, "b": b, "c": c, "m": 64, "n": 96, "k": 128}, ("m", "n", "k")
    blocks = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}
    return launching.run("matmul_blocks", (2, 3), arguments, {"num_warps": 1}, options, sizes, **blocks)[1].last


def test_a_matmul():
    found, (m, n, k) = matmul(Options(profile=True)), (64, 96, 128)
    assert found.summary.flops == {"f16": 2 * m * n * k}
    assert found.summary.matrix["f16"] == found.summary.kinds["matrix"]
    assert found.traffic is not None and found.traffic.reached() == (2 * (m * k + k * n), 4 * m * n)
    # Each block of 32 by 32 loads its rows of a and its columns of b once.
    assert found.summary.accesses[LOADS].bytes == 6 * 2 * (32 * k + k * 32)
    assert found.summary.accesses[STORES].bytes == 4 * m * n
    (loop,) = found.loops
    assert loop.entered == found.wavefronts == 6 and loop.trip_count == k / 32
    assert loop.own.flops == found.summary.flops
    # Counts do not depend on the order, nor on profiling.
    for options in (
        {"order": Order.SERIAL, "profile": True},
        {"batch_wavefronts": 4, "profile": True},
        {"strict": True},
    ):
        other = matmul(Options(**options))
        assert (other.instructions, other.summary.mnemonics) == (found.instructions, found.summary.mnemonics)
        if options.get("profile"):
            assert (other.loops[0].iterations, other.summary.accesses) == (loop.iterations, found.summary.accesses)


FLOPS = (
    ("gfx942", "v_mfma_i32_16x16x32_i8 v[4:7], v[0:1], v[2:3], v[4:7]", "i8", 2 * 16 * 16 * 32),
    ("gfx942", "v_mfma_f64_16x16x4_f64 v[8:15], v[0:1], v[2:3], 0", "f64", 2 * 16 * 16 * 4),
    ("gfx942", "v_mfma_f32_4x4x4_16b_f16 v[4:7], v[0:1], v[2:3], 0", "f16", 2 * 16 * 4 * 4 * 4),
    ("gfx950", "v_mfma_f32_16x16x128_f8f6f4 v[4:7], v[8:11], v[16:19], 0 cbsz:4 blgp:4", "fp4", 2 * 16 * 16 * 128),
)  # fmt: skip


@pytest.mark.parametrize("arch, text, kind, flops", FLOPS)
def test_matrix_operations_are_of_their_type(arch: str, text: str, kind: str, flops: int):
    assert counted(text, workgroups=2, arch=arch).summary.flops == {kind: 2 * flops}


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
