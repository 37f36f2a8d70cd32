"""Matrix instructions from their assembly text, against naive loops over the layouts of the ISA documents."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from aot_emulator import Arithmetic
from aot_emulator.errors import UnsupportedInstructionError
from aot_emulator.isa.matrix import matrix_op, matrix_product
from tests.support.emulation.machine import DEFAULT_MODE
from tests.support.emulation.naive_matrix import (
    EVERY,
    F8F6F4_TYPES,
    FLOATS,
    INTEGERS,
    PLAIN,
    A,
    B,
    Case,
    ops_of,
    unpack_d,
)


def op_of(arch: str, name: str) -> matrix_op.MatrixOp:
    return ops_of(arch)[name]


def among(forms: list[tuple[str, str]], *parts: str) -> Any:
    """Return parameters `arch` and `name` of the instructions whose names contain one of some parts."""
    return pytest.mark.parametrize("arch,name", [(a, n) for a, n in forms if any(part in n for part in parts or ("",))])


def low_of(name: str) -> int:
    return 0 if "_iu" in name else -3  # these are unsigned without neg_lo


@among(PLAIN)
def test_every_instruction(arch: str, name: str):
    case = Case(arch, name, low=low_of(name))
    assert (case.run() == case.want()).all()
    constants = {"0": 0}
    if case.op.d.bits == 32:
        constants |= {"-4.0": -4, "1.0": 1} if case.op.d.fmt else {"-7": -7, "64": 64}
    for text, value in constants.items():
        case.c[...] = value
        assert (case.run(text) == case.want()).all(), text


@pytest.mark.parametrize("target", (48, A, B + 1), ids=("apart", "on A", "across B"))
@among(EVERY, "v_wmma")
def test_results_may_go_anywhere(arch: str, name: str, target: int):
    case = Case(arch, name, low=low_of(name))
    assert (case.run(target=target) == case.want()).all()


@among(PLAIN, "16x16x4_f32", "16x16x4f32")
def test_a_result_over_an_operand(arch: str, name: str):
    case = Case(arch, name)
    assert (case.run(target=B) == case.want()).all()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("cbsz,blgp", [*itertools.product(F8F6F4_TYPES, repeat=2)])
@among(EVERY, "v_mfma_f32_32x32x64_f8f6f4", "v_mfma_f32_16x16x128_f8f6f4")
def test_f8f6f4_in_every_pair_of_types(arch: str, name: str, cbsz: int, blgp: int):
    case = Case(arch, name, (F8F6F4_TYPES[cbsz], F8F6F4_TYPES[blgp]), cbsz=cbsz, blgp=blgp, waves=1)
    assert (case.op.a_registers, case.op.b_registers) == (F8F6F4_TYPES[cbsz][0], F8F6F4_TYPES[blgp][0])
    assert (case.run() == case.want()).all()


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "cbsz,blgp,byte", [(*pair, byte) for pair in ((0, 0), (4, 4), (0, 4), (2, 1)) for byte in range(4)]
)
@among(EVERY, "v_mfma_scale")
def test_block_scales(arch: str, name: str, cbsz: int, blgp: int, byte: int):
    """Byte `byte` of lane g * rows + row scales elements 32 g to 32 g + 31 of that row. An exponent of 255 is NaN."""
    other = 3 - byte
    chosen = {
        "cbsz": cbsz,
        "blgp": blgp,
        "opsel": byte & 1 | (other & 1) << 1,
        "opsel_hi": byte >> 1 | (other >> 1) << 1,
    }
    case = Case(arch, name, (F8F6F4_TYPES[cbsz], F8F6F4_TYPES[blgp]), waves=2, **chosen)
    rng = np.random.default_rng(byte)
    scales = rng.integers(0x7E, 0x81, (2, 2, 64), endpoint=True).astype(np.uint32)
    scales[0, 1, 5] = 0xFF
    shift = np.array([8 * byte, 8 * other], np.uint32).reshape(2, 1, 1)
    noise = rng.integers(0, 2**32, scales.shape, dtype=np.uint32) & ~(np.uint32(0xFF) << shift)
    operands = []
    for values, size, exponents in zip((case.a, case.b), (case.op.m, case.op.n), scales, strict=True):
        lanes = np.arange(size)[:, None] + np.arange(case.op.k) // 32 * size
        factors = np.ldexp(1.0, exponents.astype(int) - 127)
        factors[exponents == 0xFF] = np.nan
        operands.append(values * factors[:, None, lanes])
    np.testing.assert_array_equal(case.run(scales=noise | scales << shift), case.want(*operands))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("arch,name,cbsz,abid", [
    (a, n, cbsz, abid) for a, n in PLAIN if "cbsz" in op_of(a, n).allowed
    for cbsz in range(1, op_of(a, n).blocks.bit_length()) for abid in sorted({0, 1, (1 << cbsz) - 1})])  # fmt: skip
def test_broadcast_of_a_block_of_a(arch: str, name: str, cbsz: int, abid: int):
    case = Case(arch, name, cbsz=cbsz, abid=abid, waves=1)
    a = np.stack([case.a[:, block // 2**cbsz * 2**cbsz + abid] for block in range(case.op.blocks)], axis=1)
    assert (case.run() == case.want(a)).all()


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    "arch,name,blgp", [(a, n, x) for a, n in PLAIN if op_of(a, n).blgp == "lanes" for x in range(1, 8)]
)
def test_permutation_of_the_lanes_of_b(arch: str, name: str, blgp: int):
    case, lane = Case(arch, name, blgp=blgp, waves=1), np.arange(64)
    a, b, c = case.registers()
    moved = b[:, :, {1: lane % 32, 2: 32 + lane % 32, 3: (lane + 16) % 64}.get(blgp, 16 * (blgp - 4) + lane % 16)]
    want = unpack_d(case.op, matrix_product.execute(case.entry, a, moved, c), case.d_type)
    assert (case.run() == want).all() and (want != case.want()).any()


@pytest.mark.parametrize("blgp", range(8))
@pytest.mark.parametrize("name", ("v_mfma_f64_16x16x4_f64", "v_mfma_f64_4x4x4_4b_f64"))
def test_signs_of_fp64(name: str, blgp: int):
    case = Case("gfx942", name, blgp=blgp, waves=1)
    a, b, c = (-values if blgp >> i & 1 else values for i, values in enumerate((case.a, case.b, case.c)))
    assert (case.run() == case.want(a, b, c)).all()


@pytest.mark.parametrize("neg,neg_hi", [(1, 0), (0, 1), (2, 2), (7, 3), (0, 4), (4, 4)])
@among(FLOATS, "wmma_f32_16x16x16_f16", "wmma_f32_16x16x16_bf16", "wmma_f16", "wmma_bf16")
def test_signs_of_wmma(arch: str, name: str, neg: int, neg_hi: int):
    """neg_lo negates elements of even k, neg_hi of odd; for C they are the sign and the absolute value."""
    case = Case(arch, name, neg=neg, neg_hi=neg_hi, waves=1)
    a, b, c = case.a.copy(), case.b.copy(), np.abs(case.c) if neg_hi & 4 else case.c
    for bit, values in ((1, a), (2, b)):
        values[..., 0::2] *= -1 if neg & bit else 1
        values[..., 1::2] *= -1 if neg_hi & bit else 1
    assert (case.run() == case.want(a, b, -c if neg & 4 else c)).all()


@pytest.mark.parametrize("neg", range(4))
@among(INTEGERS, "_iu")
def test_signedness_and_saturation_of_wmma_integers(arch: str, name: str, neg: int):
    case = Case(arch, name, neg=neg, clmp=1)
    bits, rng = int(name[-1]), np.random.default_rng(neg)
    for which, values in enumerate((case.a, case.b)):
        low = -(1 << bits - 1) if neg >> which & 1 else 0
        values[...] = rng.integers(low, low + (1 << bits), values.shape)
    case.c[0], case.c[1] = 2**31 - 5, -(2**31) + 5
    assert (case.want() > 2**31 - 1).any() or neg == 3
    assert (case.run() == np.clip(case.want(), -(2**31), 2**31 - 1)).all()


@among([form for form in INTEGERS if form[0].startswith("gfx11")])
def test_a_sign_of_an_integer_addend_has_no_meaning_on_gfx11(arch: str, name: str):
    """hipBLASLt's kernels set it; the assembler refuses it for gfx12."""
    case = Case(arch, name, neg=7)
    assert (case.run() == case.want()).all()


@among(INTEGERS)
def test_integer_extremes_wrap(arch: str, name: str):
    case = Case(arch, name, waves=1)
    least = (1 << case.op.a.bits) - 1 if "_iu" in name else -(1 << case.op.a.bits - 1)
    case.a[...] = case.b[...] = least
    for start in (2**31 - 1, 2**31 - least**2 * case.op.k, -(2**31)):
        case.c[...] = start
        assert (case.run() == (case.want() + 2**31) % 2**32 - 2**31).all()


@pytest.mark.parametrize("high", (False, True))
@among([form for form in EVERY if form[0] != "gfx1201"], "v_wmma_f16_16x16x16_f16", "v_wmma_bf16_16x16x16_bf16")
def test_op_sel_names_a_half_of_gfx11s_results(arch: str, name: str, high: bool):
    case = Case(arch, name, opsel=4 * high)
    found = case.execute("0", target=48)
    other = found & 0xFFFF if high else found >> 16
    assert (other == other[0, 0, 0]).all() and other[0, 0, 0] != 0, "the other half stays"
    case.c[...] = 0
    assert (unpack_d(case.op, found, case.d_type, high) == case.want()).all()


FP16_OVFL, MAX = 1 << 23, float(np.finfo(np.float32).max)


@pytest.mark.parametrize("values,plain,saturated", [
    ((1e30, 1e30, 0), np.inf, MAX), ((1e30, -1e30, 0), -np.inf, -MAX), ((1e19, 1e19, 3e38), np.inf, MAX),
    ((np.inf, 1, 0), np.inf, np.inf), ((1, 1, -np.inf), -np.inf, -np.inf),
])  # fmt: skip
def test_overflow_of_sums(values: tuple[float, float, float], plain: float, saturated: float):
    """With FP16_OVFL, a sum is infinite only if an operand is."""
    case = Case("gfx942", "v_mfma_f32_32x32x2_f32", waves=1)
    case.a[...], case.b[...], case.c[...] = values
    assert (case.run() == plain).all() and (case.run(mode=DEFAULT_MODE | FP16_OVFL) == saturated).all()


def test_overflow_of_integer_sums():
    case = Case("gfx942", "v_mfma_i32_32x32x16_i8")
    case.a[...], case.b[...], case.c[...] = 127, 127, 2**31 - 1
    assert (case.run(mode=DEFAULT_MODE | FP16_OVFL) == 2**31 - 1).all()


def test_denormals_of_fp32_follow_mode():
    """Denormals of C and D are kept."""
    case = Case("gfx942", "v_mfma_f32_32x32x2_f32", waves=1)
    for values, kept in (((2.0**-130, 2.0**100, 0), False), ((0, 0, 2.0**-130), True)):
        case.a[...], case.b[...], case.c[...] = values
        assert (case.run() == case.want()).all()
        assert (case.run(mode=DEFAULT_MODE & ~0x30) == case.want() * kept).all()


@among(FLOATS)
def test_infinities_and_nan_stay_in_their_row_and_column(arch: str, name: str):
    case = Case(arch, name, waves=1)
    if case.op.a.bits == 8:
        case.b[0, 0, 3, 2] = np.nan
        got = case.run()
        assert np.isnan(got[0, 0, :, 3]).all() and np.isnan(got).sum() == case.op.m
        return
    case.a[...], case.b[...] = 1, 1
    case.a[0, 0, 1, 0], case.a[0, 0, 2, 0], case.b[0, 0, 3, 0], case.c[0, 0, 0, 0] = np.inf, np.nan, 0, -np.inf
    got = case.run()
    np.testing.assert_array_equal(got, case.want())
    assert np.isnan(got[0, 0, 1, 3]) and got[0, 0, 1, 0] == np.inf and np.isnan(got[0, 0, 2]).all()


@among([(a, n) for a, n in FLOATS if op_of(a, n).a.bits == 16])
def test_denormal_operands(arch: str, name: str):
    """They are kept, except on gfx90a, which flushes them."""
    case = Case(arch, name, waves=1)
    is_half = case.op.a.name == "f16"
    case.a[...], case.b[...], case.c[...] = 2.0 ** (-24 if is_half else -133), 2.0 ** (15 if is_half else 120), 0
    if case.op.d.name == "f16":
        case.b[...] = 1
    assert (case.run() == (0 if arch == "gfx90a" else case.want())).all()


def test_xf32_drops_low_bits():
    case = Case("gfx942", "v_mfma_f32_16x16x8_xf32", waves=1)
    case.a[...], case.b[...], case.c[...] = 1 + 2.0**-10 + 2.0**-11, -(1 + 2.0**-13), 0
    assert (case.run() == -8 * (1 + 2.0**-10)).all()


@among(EVERY, "v_wmma_f16_16x16x16_f16", "v_wmma_bf16_16x16x16_bf16")
def test_results_of_16_bits_are_rounded_to_even(arch: str, name: str):
    case, step = Case(arch, name, waves=1), 2.0**-7 if "bf16" in name else 2.0**-10
    case.a[...] = case.b[...] = 0
    for start in (1, 1 + step):
        case.a[..., 0], case.b[..., 0], case.c[...] = step / 2, 1, start
        assert (case.run() == (1 if start == 1 else 1 + 2 * step)).all()


def test_a_model_of_the_hardware_that_is_not_known_is_refused():
    with pytest.raises(UnsupportedInstructionError, match=r"Arithmetic\.HARDWARE without a known hardware model"):
        Case("gfx950", "v_mfma_f32_16x16x32_f16").run(arithmetic=Arithmetic.HARDWARE)


def test_operands_of_many_wavefronts_are_taken_in_parts():
    case = Case("gfx942", "v_mfma_f32_32x32x8_f16", waves=2)
    a, b, c = (np.tile(registers, (1, 150, 1)) for registers in case.registers())
    a[:, 7], b[:, 299] = b[:, 1], a[:, 0]
    together = matrix_product.execute(case.entry, a, b, c)
    for wave in (0, 1, 7, 255, 256, 299):
        one = slice(wave, wave + 1)
        assert (matrix_product.execute(case.entry, a[:, one], b[:, one], c[:, one]) == together[:, one]).all()
