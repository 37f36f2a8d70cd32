"""The vector unit of RDNA. What CDNA has too is compared with CDNA's, which is tested against independent values; what
is new is tested against those here."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from aot_emulator.isa.archs import ARCHS
from aot_emulator.isa.decoding import decode
from aot_emulator.isa.vector.arch_ops import RDNA_OPS
from aot_emulator.isa.vector.cross_lane import CROSS_LANE
from aot_emulator.isa.vector.lane_mask_ops import WITH_LANE_MASKS
from aot_emulator.isa.vector.vector_alu import OPS

from aot_runtime.errors import UnsupportedInstructionError
from tests.support.emulation.exact_floats import low_minimum
from tests.support.emulation.machine import DEFAULT_MODE, Machine, edge_floats, integers
from tests.support.emulation.registers import (
    RDNA,
    SHAPE,
    assert_same,
    bits_of,
    dtype_of,
    get,
    mnemonics,
    put,
    sources_of,
    spelled,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

FLUSHED, UPWARD = DEFAULT_MODE & ~0xF0, DEFAULT_MODE | 0b0101
SHARED = [
    (arch, name)
    for arch in RDNA
    for name in OPS.keys() - RDNA_OPS.keys()
    if name in mnemonics(arch) and name in mnemonics("gfx942")
]
SHARED.sort()
LITERAL = tuple(f"v_fma{form}k_f{bits}" for form in "ma" for bits in (16, 32))


def run(
    arch: str, name: str, kinds: tuple[str, ...], sources: list[np.ndarray], half: int | None, mode: int = DEFAULT_MODE
) -> Machine:
    """Sources in v8, v12, …, the result in v2; where RDNA's operands are halves, all in the same."""
    machine = Machine(SHAPE[0] * SHAPE[1] // ARCHS[arch].lanes, mode=mode, arch=arch)
    lanes = machine.v.shape[1:]
    machine.v[2:4] = 0x55555555
    texts = []
    for i, (kind, source) in enumerate(zip(kinds[1:], sources, strict=True)):
        number = 2 if kind.startswith("=") else 8 + 4 * i
        put(machine, number, source.reshape(lanes), half or 0)
        if not kind.startswith("="):
            texts.append(spelled(kind, number, half))
    if name in LITERAL:
        texts[1 if "amk" in name else 2] = "0x4248"
    return machine.execute(f"{name} {spelled(kinds[0], 2, half)}, {', '.join(texts)}")


@pytest.mark.parametrize("arch,operation", SHARED)
def test_what_cdna_has_too(arch: str, operation: str):
    """In each half, where there are halves; with denormals flushed, and rounding up."""
    kinds = OPS[operation].kinds
    sources, name = sources_of(kinds[1:]), mnemonics(arch)[operation]
    has_halves = any(bits_of(kind) == 16 for kind in kinds)
    modes = (DEFAULT_MODE, FLUSHED, UPWARD) if OPS[operation].is_float else (DEFAULT_MODE,)
    dtype = dtype_of(kinds[0])
    for mode in modes:
        want = get(run("gfx942", mnemonics("gfx942")[operation], kinds, sources, None, mode), 2, dtype)
        for half in (0, 1) if has_halves else (0,):
            machine = run(arch, name, kinds, sources, half, mode)
            assert_same(get(machine, 2, dtype, half), want.reshape(SHAPE), (name, hex(mode), half))
            if dtype.itemsize == 2 and not kinds[-1].startswith("="):
                assert (get(machine, 2, dtype, 1 - half).view(np.uint16) == 0x5555).all(), "the other half is kept"


def low(*values):
    return low_minimum(*values) if len(values) == 2 else low_minimum(low(*values[:-1]), values[-1])


def high(*values):
    return -low(*(-value for value in values))


def nan_or(function):
    return lambda *values: np.nan if any(np.isnan(value) for value in values) else function(*values)


def fused(a, b, c):
    if not np.isfinite([a, b, c]).all() or not (a and b and c):
        return np.float64(a) * np.float64(b) + np.float64(c)
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    return float(exact)  # what is left of 53 bits is far from a tie of 11


SAME, LIMITS = (lambda a: a), {"i16": (-0x8000, 0x7FFF), "u16": (0, 0xFFFF)}


def both_within(kind: str):
    def one(x):
        return 0 if np.isnan(x) else int(np.clip(np.trunc(np.float64(x)), *LIMITS[kind])) & 0xFFFF

    return lambda a, b: one(a) | one(b) << 16


THIRD = float(np.uint16(0x4248).view(np.float16))
NEW = {
    **{f"v_{name}_f{bits}": function for bits in (16, 32) for name, function in (
        ("minmax", lambda a, b, c: high(low(a, b), c)),
        ("maxmin", lambda a, b, c: low(high(a, b), c)),
        ("minimum3", nan_or(low)),
        ("maximum3", nan_or(high)),
        ("minimummaximum", nan_or(lambda a, b, c: high(low(a, b), c))),
        ("maximumminimum", nan_or(lambda a, b, c: low(high(a, b), c))),
    )},
    **{f"v_minimum_f{bits}": nan_or(low) for bits in (16, 32, 64)},
    **{f"v_maximum_f{bits}": nan_or(high) for bits in (16, 32, 64)},
    **{f"v_minmax_{kind}": lambda a, b, c: max(min(a, b), c) for kind in ("i32", "u32")},
    **{f"v_maxmin_{kind}": lambda a, b, c: min(max(a, b), c) for kind in ("i32", "u32")},
    "v_and_b16": lambda a, b: a & b,
    "v_or_b16": lambda a, b: a | b,
    "v_xor_b16": lambda a, b: a ^ b,
    "v_not_b16": lambda a: a ^ 0xFFFF,
    "v_mov_b16": SAME,
    "v_xor3_b32": lambda a, b, c: a ^ b ^ c,
    "v_cvt_u32_u16": SAME,
    "v_cvt_i32_i16": SAME,
    "v_cvt_pk_i16_f32": both_within("i16"),
    "v_cvt_pk_u16_f32": both_within("u16"),
    "v_fmac_f16": fused,
    "v_fmamk_f16": lambda a, _, c: fused(a, THIRD, c),
    "v_fmaak_f16": lambda a, b, _: fused(a, b, THIRD),
}  # fmt: skip
ELSEWHERE = {"v_dot2c_f32_bf16", "v_trig_preop_f64"}


def test_every_new_instruction_has_a_case():
    assert set(RDNA_OPS) <= {*NEW, *ELSEWHERE}
    missing = {name for arch in RDNA for name in (*OPS, *WITH_LANE_MASKS, *CROSS_LANE) if name in mnemonics(arch)} - {
        name for _, name in SHARED
    }
    assert missing <= {*NEW, *ELSEWHERE, *SPECIAL_CASES}


SPECIAL_CASES = {
    "v_cndmask_b32", "v_cndmask_b16", "v_mbcnt_lo_u32_b32", "v_mbcnt_hi_u32_b32", "v_mad_u64_u32", "v_mad_i64_i32",
    "v_add_co_u32", "v_sub_co_u32", "v_subrev_co_u32", "v_addc_co_u32", "v_subb_co_u32", "v_subbrev_co_u32",
    "v_div_scale_f32", "v_div_scale_f64", "v_div_fmas_f32", "v_div_fmas_f64",
    "v_cvt_f32_fp8", "v_cvt_f32_bf8", "v_cvt_pk_f32_fp8", "v_cvt_pk_f32_bf8", "v_cvt_pk_fp8_f32", "v_cvt_pk_bf8_f32",
    "v_cvt_sr_fp8_f32", "v_cvt_sr_bf8_f32", "v_readfirstlane_b32", "v_readlane_b32", "v_writelane_b32", "v_swap_b32",
    "v_swap_b16", "v_permlane16_b32", "v_permlanex16_b32",
}  # fmt: skip
"""Tested below, or with other instructions."""


@pytest.mark.parametrize("arch,operation", [(arch, name) for arch in RDNA for name in NEW if name in mnemonics(arch)])
def test_what_cdna_has_not(arch: str, operation: str):
    kinds = OPS[operation].kinds
    sources, dtype = sources_of(kinds[1:]), dtype_of(kinds[0])
    if operation.startswith("v_fma"):
        sources = [np.random.default_rng(i).standard_normal(SHAPE).astype(np.float16) for i in range(3)]
    values = [source.ravel().tolist() if source.dtype.kind != "f" else source.ravel() for source in sources]
    want = np.array([NEW[operation](*one) for one in zip(*values, strict=True)]).astype(dtype).reshape(SHAPE)
    for half in (0, 1):
        machine = run(arch, mnemonics(arch)[operation], kinds, sources, half)
        assert_same(get(machine, 2, dtype, half), want, operation)
        if dtype.itemsize == 2 and not kinds[-1].startswith("="):
            assert (get(machine, 2, dtype, 1 - half).view(np.uint16) == 0x5555).all(), "the other half is kept"


@pytest.mark.parametrize("arch", RDNA)
def test_halves_of_any_register(arch: str):
    """Short encodings reach halves of the first 128 registers, VOP3 those of all; sources may be of different halves."""
    machine = Machine(arch=arch)
    a, b = (np.random.default_rng(i).standard_normal((4, 64)).astype(np.float16) for i in range(2))
    machine.v[8], machine.v[9], machine.v[2:4] = a.view(np.uint32), b.view(np.uint32), 0
    machine.execute("v_add_f16 v2.h, v8.l, v9.h", "v_add_f16_e64 v3.l, v8.h, -v9.l", "v_cmp_lt_f16 vcc_lo, v8.h, v9.l",
                    "v_cmp_lt_f16_e64 s4, v8.l, v9.h", "v_cvt_f32_f16 v4, v8.h", "v_mov_b16 v3.h, 0x1234",
                    "v_cmp_class_f16 s5, v8.h, 0x3c0")  # fmt: skip
    (al, ah), (bl, bh) = ((x[:, ::2], x[:, 1::2]) for x in (a, b))
    np.testing.assert_array_equal(get(machine, 2, np.dtype(np.float16), 1), al + bh)
    np.testing.assert_array_equal(get(machine, 2, np.dtype(np.float16), 0), 0)
    np.testing.assert_array_equal(get(machine, 3, np.dtype(np.float16), 0), ah - bl)
    np.testing.assert_array_equal(get(machine, 3, np.dtype(np.uint16), 1), 0x1234)
    np.testing.assert_array_equal(machine.lanes(106), ah < bl)
    np.testing.assert_array_equal(machine.lanes(4), al < bh)
    np.testing.assert_array_equal(machine.lanes(5), ah >= 0)
    np.testing.assert_array_equal(machine.v[4].view(np.float32), ah.astype(np.float32))


def test_numbers_win_over_signalling_nans_without_an_ieee_mode():
    """gfx11 has the mode, in which they are quieted and win; gfx12 has not."""
    signalling = np.full((4, 32), 0x7F800001, np.uint32)
    for arch, name, quieted in (("gfx1100", "v_min_f32", True), ("gfx1201", "v_min_num_f32", False)):
        machine = Machine(arch=arch)
        machine.v[8], machine.v[9] = signalling, np.float32(3).view(np.uint32)
        got = machine.execute(f"{name} v2, v8, v9").v[2]
        assert (got == (0x7FC00001 if quieted else np.float32(3).view(np.uint32))).all()


def test_output_modifiers_without_an_ieee_mode():
    machine = Machine(mode=DEFAULT_MODE & ~0x30, arch="gfx1201")
    machine.v[8] = np.float32(3).view(np.uint32)
    assert (machine.execute("v_mul_f32_e64 v2, v8, v8 mul:2").v[2].view(np.float32) == 18).all()


# The first 240 bits of 2 / pi, as tables of argument reductions print them.
TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBB


@pytest.mark.parametrize("arch", RDNA)
def test_bits_of_two_over_pi(arch: str):
    machine = Machine(1, arch=arch)
    for segment in range(4):
        for number, x in ((8, 1.0), (10, 2.0**60)):
            put(machine, number, np.full((1, 32), x))
        machine.execute(f"v_trig_preop_f64 v[2:3], v[8:9], {segment}", f"v_trig_preop_f64 v[4:5], v[10:11], {segment}")
        for number, shift in ((2, 53 * segment), (4, 53 * segment + 1083 - 1077)):
            want = Fraction(TWO_OVER_PI >> 240 - 53 - shift & (1 << 53) - 1, 1 << 53 + shift)
            assert Fraction(float(get(machine, number, np.dtype(np.float64))[0, 0])) == want
    put(machine, 8, np.full((1, 32), 2.0**1000))  # the result of so large a number is scaled
    machine.execute("v_trig_preop_f64 v[2:3], v[8:9], 0")
    far = float(get(machine, 2, np.dtype(np.float64))[0, 0])
    assert 0 < far < 2.0 ** (128 - (1000 + 1023 - 1077))


def test_packed_minimum_and_maximum_of_gfx12():
    machine = Machine(arch="gfx1201")
    a, b = (edge_floats(i, (4, 64), np.float16) for i in range(2))
    machine.v[8], machine.v[9] = a.view(np.uint32), b.view(np.uint32)
    machine.execute("v_pk_minimum_f16 v2, v8, v9", "v_pk_maximum_f16 v3, v8, v9")
    assert_same(machine.v[2].view(np.float16), nan_wins(low, a, b))
    assert_same(machine.v[3].view(np.float16), nan_wins(high, a, b))


# 8-bit floats


@pytest.mark.parametrize("name", ("fp8", "bf8"))
def test_8_bit_floats_are_those_of_the_ocp(name: str):
    dtype = ml_dtypes.float8_e4m3fn if name == "fp8" else ml_dtypes.float8_e5m2
    codes = np.arange(256, dtype=np.uint8)
    machine = Machine(2, arch="gfx1201")
    machine.v[8] = codes.view(np.uint32).reshape(2, 32)
    by_byte = codes.view(dtype).astype(np.float32).reshape(2, 32, 4)
    machine.execute(*(f"v_cvt_f32_{name} v{2 + byte}, v8 byte_sel:{byte}" for byte in range(4)),
                    f"v_cvt_pk_f32_{name} v[10:11], v8.h", f"v_cvt_pk_f32_{name} v[12:13], v8.l")  # fmt: skip
    for byte in range(4):
        assert_same(machine.v[2 + byte].view(np.float32), by_byte[..., byte], f"byte {byte}")
    for row, byte in ((10, 2), (11, 3), (12, 0), (13, 1)):
        assert_same(machine.v[row].view(np.float32), by_byte[..., byte], f"half {row}")
    x = (np.random.default_rng(0).standard_normal((2, 2, 32)) * 30).astype(np.float32)
    machine.v[8:10] = x.view(np.uint32)
    machine.v[2:4] = 0x77777777
    machine.execute(f"v_cvt_pk_{name}_f32 v2.h, v8, v9", "v_mov_b32 v4, 0",
                    f"v_cvt_sr_{name}_f32 v3, v8, v4 byte_sel:2")  # fmt: skip
    want = x.astype(dtype).view(np.uint8).astype(np.uint32)
    np.testing.assert_array_equal(machine.v[2], want[0] << 16 | want[1] << 24 | 0x7777)
    # With nothing random added the value is cut.
    cut = (machine.v[3] >> 16).astype(np.uint8).view(dtype).astype(np.float32)
    step = np.abs(want[0].astype(np.uint8).view(dtype).astype(np.float32)) / 4
    assert ((np.abs(cut) <= np.abs(x[0])) & (np.abs(x[0]) - np.abs(cut) <= step + 2.0**-9)).all()
    np.testing.assert_array_equal(machine.v[3] & 0xFF00FFFF, np.full((2, 32), 0x77007777))


# Packed


def nan_wins(function, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    pairs = zip(a.ravel(), b.ravel(), strict=True)
    return np.array([nan_or(function)(*pair) for pair in pairs], a.dtype).reshape(a.shape)


def test_disassembly_of_pairs_and_halves():
    from aot_emulator.isa.disassembly import disassemble

    from tests.support.emulation.machine import assemble

    for text in ("v_dual_add_f32 v2, v8, v9 :: v_dual_mov_b32 v3, v10", "v_add_f16 v2.h, v8.l, v9.h",
                 "v_fma_f16 v2.h, v8.l, v200.h, v9.l", "v_cvt_f32_f16 v4, v8.h"):  # fmt: skip
        found = decode(assemble(text, "gfx1100"), ARCHS["gfx1100"])[0]
        assert disassemble(found) == text


@pytest.mark.parametrize("arch", RDNA)
def test_halves_are_exchanged(arch: str):
    machine = Machine(arch=arch)
    machine.v[8], machine.v[9] = 0x11112222, 0x33334444
    machine.set_exec(0xFFFF)
    machine.execute("v_swap_b16 v8.h, v9.l", "v_swap_b32 v8, v9")
    assert (machine.v[9, :, :16] == 0x44442222).all() and (machine.v[8, :, :16] == 0x33331111).all()
    assert (machine.v[8, :, 16:] == 0x11112222).all()


@pytest.mark.parametrize("arch", RDNA)
@pytest.mark.parametrize("name,bits", [("v_dot4_i32_iu8", 8), ("v_dot8_i32_iu4", 4)])
def test_dot_products_of_either_sign(name: str, bits: int, arch: str):
    machine = Machine(arch=arch)
    a, b, c = machine.v[8], machine.v[9], machine.v[10] = integers(0, (3, 4, 32))
    for signs in range(4):
        machine.execute(f"{name} v2, v8, v9, v10 neg_lo:[{signs & 1},{signs >> 1},0]")
        total = c.view(np.int32).astype(np.int64)
        for position in range(0, 32, bits):
            x, y = (value.astype(np.int64) >> position & (1 << bits) - 1 for value in (a, b))
            x, y = (v - (v >> bits - 1 << bits) if signs >> i & 1 else v for i, v in enumerate((x, y)))
            total = total + x * y
        np.testing.assert_array_equal(machine.v[2], total.astype(np.uint32))
    with pytest.raises(UnsupportedInstructionError, match="unsigned products"):
        machine.execute(f"{name} v2, v8, v9, v10 clamp")


@pytest.mark.parametrize("arch", RDNA)
def test_float_dot_products(arch: str):
    machine = Machine(arch=arch)
    small = (np.random.default_rng(0).integers(-9, 9, (2, 4, 64)) / 4).astype(np.float32)
    for number, dtype in ((8, np.float16), (10, ml_dtypes.bfloat16)):
        machine.v[number : number + 2] = np.ascontiguousarray(small.astype(dtype)).view(np.uint32)
    machine.v[12] = np.float32(0.25).view(np.uint32)
    machine.execute("v_dot2_f32_f16 v2, v8, v9, v12", "v_dot2_f32_bf16 v3, v10, v11, v12")
    products = small[0] * small[1]
    for number in (2, 3):
        np.testing.assert_array_equal(machine.v[number].view(np.float32), 0.25 + products[:, ::2] + products[:, 1::2])
