"""Instructions that gfx950 has and gfx942 has not; MFMA is in `test_mfma`."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from aot_emulator.isa.vector.arch_ops import CDNA_OPS

from aot_runtime.errors import UnsupportedInstructionError
from tests.support.emulation.gfx950_machine import OLD, gfx950
from tests.support.emulation.machine import DEFAULT_MODE, edge_floats, integers

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
BF16 = ml_dtypes.bfloat16


def halves(words: np.ndarray, dtype: type) -> np.ndarray:
    """The two 16-bit numbers of each register: [..., 2]."""
    return np.ascontiguousarray(words)[..., None].view(dtype)


HERE = {
    *(f"v_ashr_pk_{kind}_i32" for kind in ("i8", "u8")), "v_prng_b32", "v_dot2c_f32_bf16",
    *(f"v_cvt_{form}_{kind}_f32" for form in ("pk", "sr") for kind in ("f16", "bf16")),
}  # fmt: skip
ELSEWHERE = {"v_mad_f32", "v_mac_f32", "v_madmk_f32", "v_madak_f32", "v_trig_preop_f64"}
"""In `test_gfx90a` and `test_rdna_vector`."""


def test_every_instruction_is_tested():
    assert set(CDNA_OPS) == HERE | ELSEWHERE


# Bits and integers


@pytest.mark.parametrize(
    "table", (0x00, 0xFF, 0xE4, 0x96, 0xCA, 0x17, 0x01, 0x80, 0x3C, 0x55, 0x5A, *range(7, 256, 31))
)
def test_any_function_of_three_bits(table: int):
    machine = gfx950()
    sources = machine.v[8:11] = integers(table, (3, 4, 64))
    machine.s[4] = 0x0F0F_1234
    machine.execute(
        f"v_bitop3_b32 v2, v8, v9, v10 bitop3:{table:#x}",
        f"v_bitop3_b32 v3, s4, v9, 3 bitop3:{table:#x}",
        f"v_bitop3_b16 v4, v8, v9, v10 bitop3:{table:#x} op_sel:[1,0,1,1]",
    )

    def by_bits(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        result = np.zeros_like(a)
        for bit in range(32):
            index = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | c >> bit & 1
            result |= (np.uint32(table) >> index & 1) << np.uint32(bit)
        return result

    a, b, c = sources
    np.testing.assert_array_equal(machine.v[2], by_bits(a, b, c))
    np.testing.assert_array_equal(machine.v[3], by_bits(np.full_like(b, 0x0F0F_1234), b, np.full_like(b, 3)))
    half = by_bits(a >> np.uint32(16), b, c >> np.uint32(16))
    np.testing.assert_array_equal(machine.v[4], half << np.uint32(16) | OLD & 0xFFFF)


@pytest.mark.parametrize("name,low,high", (("i8", -128, 127), ("u8", 0, 255)))
def test_shifts_to_bytes(name: str, low: int, high: int):
    machine = gfx950()
    machine.v[8:11] = integers(0, (3, 4, 64))
    machine.v[8, 0, :6] = np.array([-128, -129, 127, 128, 255, 256]).astype(np.uint32)
    machine.v[10, 0, :6] = 0
    machine.execute(f"v_ashr_pk_{name}_i32 v2, v8, v9, v10", f"v_ashr_pk_{name}_i32 v3, v8, v9, v10 op_sel:[0,0,0,1]")
    a, b = machine.v[8:10].view(np.int32).astype(np.int64) >> (machine.v[10] & 31).astype(np.int64)
    first, second = (np.clip(x, low, high) & 255 for x in (a, b))
    np.testing.assert_array_equal(machine.v[2], OLD & 0xFFFF0000 | first | second << 8)
    np.testing.assert_array_equal(machine.v[3], OLD & 0xFFFF | (first | second << 8) << 16)


def test_random_numbers():
    machine = gfx950()
    machine.v[8] = integers(0, (4, 64))
    machine.execute("v_prng_b32 v2, v8")
    want = [(x << 1 & 0xFFFFFFFF) ^ (197 if x >> 31 else 0) for x in machine.v[8].ravel().tolist()]
    assert machine.v[2].ravel().tolist() == want


# Between lanes


@pytest.mark.parametrize("width", (16, 32))
@pytest.mark.parametrize("form", ("", "_e64"))
def test_swap_of_rows(width: int, form: str):
    machine = gfx950()
    first, second = machine.v[2:4] = integers(width, (2, 4, 64))
    first, second = first.copy(), second.copy()
    machine.execute(f"v_permlane{width}_swap_b32{form} v2, v3")
    for lane in range(64):
        if lane // width % 2:  # odd rows of the first with even rows of the second
            np.testing.assert_array_equal(machine.v[2, :, lane], second[:, lane - width])
            np.testing.assert_array_equal(machine.v[3, :, lane], second[:, lane])
        else:
            np.testing.assert_array_equal(machine.v[2, :, lane], first[:, lane])
            np.testing.assert_array_equal(machine.v[3, :, lane], first[:, lane + width])


@pytest.mark.parametrize("text", ("v_permlane16_swap_b32 v2, v3", "ds_read_b64_tr_b16 v[2:3], v8"))
def test_inactive_lanes_are_refused(text: str):
    machine = gfx950()
    machine.set_exec(0x7FFF_FFFF_FFFF_FFFF)
    with pytest.raises(UnsupportedInstructionError, match="inactive lanes"):
        machine.execute(text)


# Floats


@pytest.mark.parametrize("name,function", (("minimum3", np.minimum), ("maximum3", np.maximum)))
def test_nan_propagates(name: str, function: Callable[..., np.ndarray]):
    machine = gfx950()
    values = edge_floats(0, (3, 4, 64), np.float32)
    machine.v[8:11] = values.view(np.uint32)
    machine.execute(f"v_{name}_f32 v2, v8, |v9|, -v10")
    want = function(function(values[0], np.abs(values[1])), -values[2])
    np.testing.assert_array_equal(machine.v[2].view(np.float32), want)
    short = edge_floats(1, (3, 4, 64, 2), np.float16)
    machine.v[8:11] = np.ascontiguousarray(short).view(np.uint32)[..., 0]
    machine.execute(f"v_pk_{name}_f16 v3, v8, v9, v10")
    np.testing.assert_array_equal(halves(machine.v[3], np.float16), function(function(short[0], short[1]), short[2]))


@pytest.mark.parametrize("name,dtype", (("bf16", BF16), ("f16", np.float16)))
def test_pairs_are_rounded_to_nearest_even(name: str, dtype: type):
    machine = gfx950()
    values = edge_floats(0, (2, 4, 64), np.float32)
    values[0, 0, :4] = 1 + 2.0**-8, 1 + 3 * 2.0**-8, 65519, 65520
    machine.v[8:10] = values.view(np.uint32)
    machine.execute(f"v_cvt_pk_{name}_f32 v2, v8, -v9")
    got = halves(machine.v[2], dtype).astype(np.float32)
    np.testing.assert_array_equal(got, np.stack([values[0], -values[1]], -1).astype(dtype).astype(np.float32))


@pytest.mark.parametrize("name,dtype,bits", (("bf16", BF16, 16), ("f16", np.float16, 13)))
def test_stochastic_rounding(name: str, dtype: type, bits: int):
    """No random bits truncate, all ones round what is inexact up; the upper bits count."""
    machine = gfx950()
    machine.v[8] = np.float32(1).view(np.uint32) | (np.arange(256, dtype=np.uint32) << np.uint32(bits - 5)).reshape(
        4, 64
    )
    machine.v[9], machine.v[10], machine.v[11] = 0, 0xFFFFFFFF, 0x80000000
    machine.execute(*(f"v_cvt_sr_{name}_f32 v{2 + i}, v8, v{9 + i} op_sel:[0,0,{int(i == 1)}]" for i in range(3)))
    step, fraction = (machine.v[8] - 0x3F800000) >> bits, (machine.v[8] & (1 << bits) - 1) / 2**bits
    one = int(np.array(1, dtype).view(np.uint16))
    np.testing.assert_array_equal(machine.v[2], OLD & 0xFFFF0000 | one + step)
    np.testing.assert_array_equal(machine.v[3], OLD & 0xFFFF | (one + step + (fraction > 0)) << 16)
    np.testing.assert_array_equal(machine.v[4], OLD & 0xFFFF0000 | (one + step + (fraction >= 0.5)))


def test_dot_of_bfloat16():
    machine = gfx950()
    a, b = (np.random.default_rng(i).integers(-64, 65, (4, 64, 2)).astype(BF16) for i in range(2))
    machine.v[8], machine.v[9] = (np.ascontiguousarray(x).view(np.uint32)[..., 0] for x in (a, b))
    machine.v[2] = np.float32(3.5).view(np.uint32)
    machine.execute("v_dot2c_f32_bf16 v2, v8, v9")
    want = (a.astype(np.float32) * b.astype(np.float32)).sum(-1) + np.float32(3.5)
    np.testing.assert_array_equal(machine.v[2].view(np.float32), want)


# Small floats with a block's exponent

SMALL = {"fp8": ml_dtypes.float8_e4m3fn, "bf8": ml_dtypes.float8_e5m2, "fp4": ml_dtypes.float4_e2m1fn}
WIDE = {"f32": np.float32, "f16": np.float16, "bf16": BF16}
EXPONENTS = np.array([127, 128, 120, 140, 126], np.uint32)


def scale_words(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Registers that hold block exponents, with a sign and a mantissa that do not matter, and the powers of two."""
    rng = np.random.default_rng(seed)
    exponents = rng.choice(EXPONENTS, (4, 64))
    noise = rng.integers(0, 1 << 23, (4, 64), np.uint32) | rng.integers(0, 2, (4, 64), np.uint32) << np.uint32(31)
    return exponents << np.uint32(23) | noise, np.ldexp(1.0, exponents.astype(int) - 127)


@pytest.mark.parametrize("to", WIDE)
@pytest.mark.parametrize("of", SMALL)
def test_scaled_widening(of: str, to: str):
    machine = gfx950()
    codes = np.random.default_rng(0).integers(0, 256, (4, 64, 4), np.uint8)
    codes[0, :, 0], codes[1, :, 0] = np.arange(64), np.arange(64) + 0x70
    machine.v[8] = codes.view(np.uint32)[..., 0]
    machine.v[9], factor = scale_words(1)
    if of == "fp4":  # a byte has two
        values = np.stack([codes & 15, codes >> 4], -1).reshape(4, 64, 8).astype(np.uint8).view(SMALL[of])
        places = {"": 0, "op_sel:[0,1,0]": 4}
    else:
        values, places = codes.view(SMALL[of]), {"": 0, "op_sel:[1,0,0]": 2}
    target = "v[2:3]" if to == "f32" else "v2"
    for select, first in places.items():
        machine.v[2:4] = OLD
        machine.execute(f"v_cvt_scalef32_pk_{to}_{of} {target}, v8, v9 {select}")
        exact = values[..., first : first + 2].astype(np.float64) * factor[..., None]
        got = (
            np.stack([machine.v[2], machine.v[3]], -1).view(np.float32)
            if to == "f32"
            else halves(machine.v[2], WIDE[to])
        )
        np.testing.assert_array_equal(got.astype(np.float64), exact.astype(WIDE[to]).astype(np.float64))


@pytest.mark.parametrize("to", ("f32", "f16"))
@pytest.mark.parametrize("of", ("fp8", "bf8"))
def test_scaled_widening_of_one(of: str, to: str):
    machine = gfx950()
    codes = np.random.default_rng(0).integers(0, 256, (4, 64, 4), np.uint8)
    machine.v[8] = codes.view(np.uint32)[..., 0]
    machine.v[9], factor = scale_words(1)
    machine.execute(f"v_cvt_scalef32_{to}_{of} v2, v8, v9 op_sel:[1,1,0]")
    exact = (codes[..., 3].view(SMALL[of]).astype(np.float64) * factor).astype(WIDE[to])
    got = machine.v[2].view(np.float32) if to == "f32" else halves(machine.v[2], np.float16)[..., 0]
    np.testing.assert_array_equal(got, exact)
    if to == "f16":
        assert (machine.v[2] >> 16 == OLD >> 16).all()


def test_a_scale_that_is_no_number():
    machine = gfx950()
    machine.v[8], machine.v[9], machine.v[10] = 0x38383838, 0x7F800000, 0
    machine.execute("v_cvt_scalef32_pk_f32_fp8 v[2:3], v8, v9", "v_cvt_scalef32_pk_f32_fp8 v[4:5], v8, v10")
    assert np.isnan(machine.v[2].view(np.float32)).all()
    np.testing.assert_array_equal(machine.v[4].view(np.float32), np.float32(2.0**-127))


def narrowed(values: np.ndarray, to: str, saturate: bool) -> np.ndarray:
    """Codes of float64 values; ml_dtypes rounds float64 once."""
    info = ml_dtypes.finfo(SMALL[to])
    if saturate or to == "fp4":  # which has nothing else
        values = np.where(np.isinf(values) & (to != "fp4"), values, np.clip(values, -float(info.max), float(info.max)))
    return values.astype(SMALL[to]).view(np.uint8)


@pytest.mark.parametrize("saturate", (False, True))
@pytest.mark.parametrize("of", WIDE)
@pytest.mark.parametrize("to", SMALL)
def test_scaled_narrowing(to: str, of: str, saturate: bool):
    machine = gfx950(mode=DEFAULT_MODE | saturate << 23)
    limit = float(ml_dtypes.finfo(SMALL[to]).max)
    values = np.random.default_rng(0).standard_normal((4, 64, 2)) * np.random.default_rng(1).choice(
        [limit / 4, 1.0, 2.0**-6, 2.0**-9, 2.0**-16], (4, 64, 2)
    )
    values[0, :4] = [[0.0, -0.0], [limit, -limit], [limit * 1.01, 0.25], [limit * 0.7, 0.75]]
    values = values.astype(WIDE[of])
    words, factor = scale_words(2)
    words[0, :4], factor[0, :4] = 127 << 23, 1.0
    sources = "v8, v9" if of == "f32" else "v8"
    if of == "f32":
        machine.v[8], machine.v[9] = np.moveaxis(values, -1, 0).view(np.uint32)
    else:
        machine.v[8] = np.ascontiguousarray(values).view(np.uint32)[..., 0]
    machine.v[10] = words
    codes = narrowed(values.astype(np.float64) / factor[..., None], to, saturate).astype(np.uint32)
    bits = 4 if to == "fp4" else 8
    pair = codes[..., 0] | codes[..., 1] << bits
    zeros = "0,0,0" if of == "f32" else "0,0"
    selects = {0: f"op_sel:[{zeros},0]", 16: f"op_sel:[{zeros},1]"}
    if to == "fp4":
        selects = {0: "op_sel:[0,0,0,0]", 8: "op_sel:[0,0,1,0]", 24: "op_sel:[0,0,1,1]"}
    for position, select in selects.items():
        machine.v[2] = OLD
        machine.execute(f"v_cvt_scalef32_pk_{to}_{of} v2, {sources}, v10 {select}")
        mask = (1 << 2 * bits) - 1 << position
        np.testing.assert_array_equal(machine.v[2], OLD & ~mask & 0xFFFFFFFF | pair << position)


@pytest.mark.parametrize("name", ("fp8", "bf8"))
def test_unscaled_conversions_are_of_the_ocp(name: str):
    machine = gfx950()
    codes = np.arange(256, dtype=np.uint8).repeat(4)
    machine.v[8] = codes.view(np.uint32).reshape(4, 64)
    machine.execute(f"v_cvt_f32_{name} v2, v8", f"v_cvt_pk_f32_{name}_sdwa v[4:5], v8 src0_sel:WORD_1")
    values = codes.view(SMALL[name]).astype(np.float32).reshape(4, 64, 4)
    np.testing.assert_array_equal(machine.v[2].view(np.float32), values[..., 0])
    np.testing.assert_array_equal(machine.v[5].view(np.float32), values[..., 3])
    machine.v[6] = OLD
    machine.execute(f"v_cvt_pk_{name}_f32 v6, v4, v5 op_sel:[0,0,1]")
    numbers = ~np.isnan(values[..., 2])
    np.testing.assert_array_equal((machine.v[6] >> 16 & 0xFF)[numbers], codes.reshape(4, 64, 4)[..., 2][numbers])


@pytest.mark.parametrize("scaled", (False, True))
def test_stochastic_rounding_to_a_byte(scaled: bool):
    machine = gfx950()
    machine.v[8] = (1.0 + np.arange(256) / 2048).astype(np.float32).reshape(4, 64).view(np.uint32)  # between two codes
    machine.v[9], machine.v[10], machine.v[11] = 0, 0xFFFFFFFF, 129 << 23
    name, scale = ("v_cvt_scalef32_sr_fp8_f32", ", v11") if scaled else ("v_cvt_sr_fp8_f32", "")
    machine.execute(f"{name} v2, v8, v9{scale} op_sel:[0,0,1,1]", f"{name} v3, v8, v10{scale}")
    one = 0x38 - (16 if scaled else 0)  # a quarter of it
    np.testing.assert_array_equal(machine.v[2], OLD & 0xFFFFFF | one << 24)
    up = machine.v[8] != np.float32(1).view(np.uint32)
    np.testing.assert_array_equal(machine.v[3], OLD & 0xFFFFFF00 | one + up)


@pytest.mark.parametrize("text", (
    "v_cvt_scalef32_pk32_f32_fp6 v[0:31], v[32:37], v40",
    "v_cvt_scalef32_sr_pk_fp4_f32 v0, v[2:3], v4, v5",
    "v_cvt_scalef32_sr_fp8_f16 v0, v2, v4, v5",
    "ds_read_b96_tr_b6 v[0:2], v4",
))  # fmt: skip
def test_what_is_not_implemented_is_named(text: str):
    with pytest.raises(UnsupportedInstructionError, match=text.split()[0]):
        gfx950().execute(text)


# Transposed loads


@pytest.mark.parametrize("bits", (16, 8, 4))
def test_transposed_load(bits: int):
    """Sixteen lanes' 64 bits are a matrix of 16 columns; lane `column` gets its column."""
    machine = gfx950()
    machine.access.lds[:] = np.random.default_rng(bits).integers(0, 256, machine.access.lds.size, np.uint8)
    places = np.random.default_rng(0).permutation(256).reshape(4, 64) * 8
    machine.v[8] = places
    machine.execute(f"ds_read_b64_tr_b{bits} v[2:3], v8 offset:16")
    count = 64 // bits
    for wave in range(4):
        lds = machine.access.lds[wave // 2 * 4096 :][:4096].tobytes()
        for group in range(0, 64, 16):
            elements: list[int] = []
            for lane in range(group, group + 16):
                at = int(places[wave, lane]) + 16
                whole = int.from_bytes(lds[at : at + 8], "little")
                elements += [whole >> bits * i & (1 << bits) - 1 for i in range(count)]
            for column in range(16):
                want = sum(elements[16 * row + column] << bits * row for row in range(count))
                low, high = machine.v[2:4, wave, group + column].tolist()
                assert low | high << 32 == want, (wave, group, column)
