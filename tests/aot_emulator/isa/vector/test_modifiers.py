"""Effects of MODE and of an encoding's modifiers: signs, clamp, omod, halves of registers, SDWA."""

from __future__ import annotations

import numpy as np
import pytest

from aot_emulator.state.float_mode import Rounding
from tests.support.emulation.exact import NEAREST, exactly, flushed
from tests.support.emulation.machine import DEFAULT_MODE, OLD, Machine, every_rdna
from tests.support.emulation.values import assert_same, edge_floats, integers


def test_signs_clamp_and_output_modifiers():
    a, b = (edge_floats(seed, np.float32) for seed in range(2))
    machine, clamp = Machine().fill({8: a, 9: b}), "v_add_f32_e64 v3, -|v8|, v9 clamp"
    machine.execute("v_add_f32_e64 v2, -v8, |v9|", clamp, "v_mul_f32_e64 v4, v8, v9 mul:4")
    total = -np.abs(a) + b
    clamped = np.where(total > 0, np.minimum(total, 1), np.float32(0))  # NaN and -0 become 0
    machine.expect({2: -a + np.abs(b), 3: clamped, 4: a * b})  # omod does nothing while denormals are kept
    without_dx10 = Machine(mode=DEFAULT_MODE & ~0x100).fill({8: a, 9: b}).execute(clamp)
    without_dx10.expect({3: np.where(np.isnan(total), total, clamped)})


@pytest.mark.parametrize(
    "arch,cleared,works", (("gfx942", 0x230, True), ("gfx942", 0x30, False), ("gfx1201", 0x30, True))
)
def test_output_modifiers_without_denormals(arch: str, cleared: int, works: bool):
    """In IEEE mode, which gfx12 does not have, they do nothing either."""
    machine = Machine(arch, mode=DEFAULT_MODE & ~cleared).fill({8: np.full(256, 3, np.float32)})
    machine.execute(*(f"v_mul_f32_e64 v{i}, v8, v8 {omod}" for i, omod in enumerate(("mul:2", "mul:4", "div:2"))))
    assert machine.get(0, np.float32, count=3)[0].tolist() == ([18, 36, 4.5] if works else [9, 9, 9])


@pytest.mark.parametrize("rounding", (Rounding.UP, Rounding.DOWN, Rounding.ZERO))
def test_rounding_is_of_fp32_and_of_the_others(rounding: Rounding):
    a, b = (np.random.default_rng(i).standard_normal(256).astype(np.float16) for i in range(2))
    wide, more = a.astype(np.float32) / 3, b.astype(np.float32) / 3
    for mode, ways in ((rounding, (rounding, NEAREST)), (rounding << 2, (NEAREST, rounding))):
        machine = Machine(mode=DEFAULT_MODE | mode).fill({8: wide, 9: more, 10: a, 11: b})
        machine.execute("v_mul_f32 v2, v8, v9", "v_mul_f16_e64 v3, v10, v11")
        for number, x, y, way in ((2, wide, more, ways[0]), (3, a, b, ways[1])):
            product = exactly(lambda u, v: u * v, x.dtype, way)
            assert_same(machine.get(number, x.dtype), np.array([*map(product, x, y)]))


@pytest.mark.parametrize("bit", (4, 5, 6, 7))
def test_denormals_are_flushed_of_sources_or_results(bit: int):
    """Two fields of MODE decide for fp32, two others for fp16."""
    values = np.resize(np.array([2.0**-130, -(2.0**-130), 1, 0, 2.0**-126], np.float32), 256)
    halves = np.resize(np.array([2.0**-15, -(2.0**-24), 1, 0, 2.0**-14], np.float16), 256)
    machine = Machine(mode=DEFAULT_MODE & ~(1 << bit)).fill({8: values})
    machine.put(9, halves)
    machine.execute("v_mul_f32 v2, 0.5, v8", "v_max_f32 v3, v8, v8", "v_mul_f16 v4, 0.5, v9", "v_cmp_eq_f32 vcc, 0, v8")
    seen, short = flushed(values) if bit == 4 else values, flushed(halves) if bit == 6 else halves
    results = {2: seen * np.float32(0.5), 3: seen}
    machine.expect({n: flushed(x) if bit == 5 else x for n, x in results.items()}, {106: seen == 0})
    product = short * np.float16(0.5)
    assert_same(machine.get(4, np.float16), flushed(product) if bit == 7 else product)


def test_overflow_to_the_largest_half():
    values = np.resize(np.array([120000, np.inf, -120000], np.float32), 256)
    machine = Machine(mode=DEFAULT_MODE | 1 << 23).fill({8: values, 9: values / 2})
    machine.execute("v_cvt_f16_f32 v2, v8", "v_cvt_f16_f32 v3, v9", "v_add_f16 v3, v3, v3")
    for number in (2, 3):
        assert machine.get(number, np.float16)[:3].tolist() == [65504, np.inf, -65504]


def test_numbers_win_over_signalling_nans_without_an_ieee_mode():
    """gfx11 has the mode, in which they are quieted and win; gfx12 has not."""
    three = int(np.float32(3).view(np.uint32))
    cases = ("gfx1100", "min", 0, 0x7FC00001), ("gfx1100", "min", 0x200, three), ("gfx1201", "min_num", 0, three)
    for arch, name, mode, want in cases:
        machine = Machine(arch, mode=DEFAULT_MODE & ~mode).fill({8: 0x7F800001, 9: three})
        assert (machine.execute(f"v_{name}_f32 v2, v8, v9").v[2] == want).all(), arch


@every_rdna
def test_halves_of_any_register(arch: str):
    """Short encodings reach halves of the first 128 registers, VOP3 those of all; sources may be of different halves."""
    a, b = (np.random.default_rng(seed).standard_normal((256, 2)).astype(np.float16) for seed in range(2))
    machine = Machine(arch).fill({8: a, 9: b})
    machine.execute("v_add_f16 v2.h, v8.l, v9.h", "v_add_f16_e64 v3.l, v8.h, -v9.l", "v_cmp_lt_f16 vcc_lo, v8.h, v9.l",
                    "v_cmp_lt_f16_e64 s4, v8.l, v9.h", "v_cvt_f32_f16 v4, v8.h", "v_mov_b16 v3.h, 0x1234",
                    "v_cmp_class_f16 s5, v8.h, 0x3c0")  # fmt: skip
    assert_same(machine.get(2, np.float16, 1), a[:, 0] + b[:, 1])
    assert_same(machine.get(3, np.float16), a[:, 1] - b[:, 0])
    assert (machine.get(2) & 0xFFFF == OLD & 0xFFFF).all() and (machine.get(3) >> 16 == 0x1234).all()
    machine.expect({4: a[:, 1].astype(np.float32)}, {106: a[:, 1] < b[:, 0], 4: a[:, 0] < b[:, 1], 5: a[:, 1] >= 0})


SELECT = {**{f"BYTE_{i}": (8 * i, 8) for i in range(4)}, "WORD_0": (0, 16), "WORD_1": (16, 16), "DWORD": (0, 32)}


def pick(values: np.ndarray, select: str, extend: bool) -> np.ndarray:
    shift, width = SELECT[select]
    found = values.astype(np.int64) >> shift & (1 << width) - 1
    return found - (found >> width - 1 << width) if extend else found


@pytest.mark.parametrize("unused", ("PAD", "SEXT", "PRESERVE"))
@pytest.mark.parametrize("target", SELECT)
@pytest.mark.parametrize("selects", ("BYTE_3 WORD_1", "WORD_0 DWORD", "BYTE_0 BYTE_2", "WORD_1 BYTE_1"))
def test_sdwa(selects: str, target: str, unused: str):
    a, b, (first, second) = integers(0), integers(1), selects.split()
    tail = f"dst_sel:{target} dst_unused:UNUSED_{unused} src0_sel:{first} src1_sel:{second}"
    machine = Machine().fill({2: a, 3: b}).execute(f"v_add_u32_sdwa v4, sext(v2), v3 {tail}")
    shift, width = SELECT[target]
    total = pick(a, first, True) + pick(b, second, False) & (1 << width) - 1
    if unused == "SEXT":
        total -= total >> width - 1 << width
    kept = OLD & ~((1 << width) - 1 << shift) if unused == "PRESERVE" else 0
    machine.expect({4: total << shift | kept})


def test_sdwa_with_scalars_floats_and_comparisons():
    halves, x = edge_floats(0, np.float16, 256, 2), integers(1)
    machine = Machine().fill({2: halves, 3: x})
    machine.s[6] = 0x00AB00CD
    machine.execute(
        "v_cvt_f32_f16_sdwa v4, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1",
        "v_and_b32_sdwa v5, s6, v3 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:BYTE_1",
        "v_cmp_lt_u32_sdwa s[8:9], v3, s6 src0_sel:BYTE_0 src1_sel:WORD_0",
        "v_cmp_lt_u32_sdwa vcc, v3, s6 src0_sel:BYTE_0 src1_sel:WORD_1",
        "v_mul_f16_sdwa v6, -v2, |v2| dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:WORD_0 src1_sel:WORD_1",
        "v_add_u32_sdwa v7, v3, v3 clamp dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD",
    )
    low, high = halves.T
    sums = np.minimum(2 * x.astype(np.int64), 0xFFFFFFFF)
    machine.expect({4: high.astype(np.float32), 5: x >> 8 & 0xAB, 7: sums}, {8: x & 0xFF < 0xCD, 106: x & 0xFF < 0xAB})
    assert_same(machine.get(6, np.float16, 1), -low * np.abs(high))
    assert not machine.get(6, np.uint16).any()
