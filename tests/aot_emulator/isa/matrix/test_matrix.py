"""Matrix instructions against naive loops over the layouts of the ISA documents."""

import itertools
import re

import numpy as np
import pytest
from aot_emulator.isa import gfx90a
from aot_emulator.isa.matrix import matrix_layout, matrix_op, matrix_product
from aot_emulator.isa.matrix.matrix_op import MatrixModifiers
from aot_emulator.isa.matrix.matrix_product import Arithmetic

from tests.support.emulation.naive_matrix import (
    EVERY,
    F8F6F4_TYPES,
    FLOATS,
    INTEGERS,
    PLAIN,
    WAVES,
    Case,
    code_type,
    naive,
    pack_c,
    unpack_d,
)
from tests.support.emulation.sweeps import sweep


@pytest.mark.parametrize(("arch", "name"), PLAIN)
def test_every_instruction(arch, name):
    op = matrix_op.matrix_ops(arch)[name]
    # iu types without neg_lo are unsigned.
    case = Case(arch, name, low=0 if op.a.name.startswith("iu") else -3)
    product = naive(case.a, case.b, np.zeros_like(case.c))
    for arithmetic in (Arithmetic.FLOAT32, Arithmetic.FLOAT64):
        assert (case.run(arithmetic=arithmetic) == product + case.c).all()
    a, b, c = case.registers()
    assert (unpack_d(op, matrix_product.execute(op, a, b, None), case.d_type) == product).all()
    # Registers may be views, and D may be C.
    file = np.zeros((256, 2 * WAVES, op.lanes), np.uint32)
    slices = [slice(8, 8 + op.a_registers), slice(40, 40 + op.b_registers), slice(100, 100 + op.d_registers)]
    views = [file[part, ::2] for part in slices]
    for view, values in zip(views, (a, b, c), strict=True):
        view[...] = values
    assert matrix_product.execute(op, *views, out=views[2]) is views[2]
    assert (unpack_d(op, views[2], case.d_type) == product + case.c).all()
    assert not file[:, 1::2].any() and (views[0] == a).all() and (views[1] == b).all()


@pytest.mark.parametrize("name", [n for a, n in EVERY if a == "gfx950" and "f8f6f4" in n and "scale" not in n])
@sweep("cbsz,blgp", itertools.product(F8F6F4_TYPES, repeat=2), 3)
def test_f8f6f4_in_every_pair_of_types(name, cbsz, blgp):
    case = Case(
        "gfx950", name, (F8F6F4_TYPES[cbsz], F8F6F4_TYPES[blgp]), MatrixModifiers(cbsz=cbsz, blgp=blgp), waves=1
    )
    assert matrix_op.resolve(case.op, case.modifiers) == case.op
    a, b, _ = case.registers()
    assert (a.shape[0], b.shape[0]) == (F8F6F4_TYPES[cbsz][0], F8F6F4_TYPES[blgp][0])
    assert (case.run() == naive(case.a, case.b, case.c)).all()


@pytest.mark.parametrize("name", [n for a, n in EVERY if "scale" in n])
@sweep("cbsz,blgp,byte", [(*pair, byte) for pair in ((0, 0), (4, 4), (0, 4), (2, 1), (3, 3)) for byte in range(4)], 3)
def test_block_scales(name, cbsz, blgp, byte):
    """Byte `byte` of lane g * rows + row scales elements 32 g to 32 g + 31 of that row."""
    other = 3 - byte
    modifiers = MatrixModifiers(
        cbsz=cbsz, blgp=blgp, opsel=byte & 1 | (other & 1) << 1, opsel_hi=byte >> 1 | (other >> 1) << 1
    )
    case = Case("gfx950", name, (F8F6F4_TYPES[cbsz], F8F6F4_TYPES[blgp]), modifiers, waves=2)
    rng = np.random.default_rng(byte)
    scales = rng.integers(0x7E, 0x81, (2, 1, 2, 64), endpoint=True).astype(np.uint32)
    noise = rng.integers(0, 2**32, scales.shape, dtype=np.uint32)
    shift = np.array([8 * byte, 8 * other], np.uint32).reshape(2, 1, 1, 1)
    registers = (noise & ~(np.uint32(0xFF) << shift)) | scales << shift
    op = case.op
    a, b = case.a.copy(), case.b.copy()
    for which, (values, size) in enumerate(((a, op.m), (b, op.n))):
        for w, i, k in itertools.product(range(2), range(size), range(op.k)):
            values[w, 0, i, k] *= 2.0 ** (int(scales[which, 0, w, k // 32 * size + i]) - 127)
    assert (case.run(scales=tuple(registers)) == naive(a, b, case.c)).all()


def test_a_scale_of_nan():
    name = "v_mfma_scale_f32_16x16x128_f8f6f4"
    case = Case("gfx950", name, (F8F6F4_TYPES[0],) * 2, waves=1)
    one = np.full((1, 1, 64), 127, np.uint32)
    bad = one.copy()
    bad[0, 0, 16 + 5] = 0xFF
    assert (np.isnan(case.run(scales=(bad, one))).nonzero()[2] == 5).all()
    assert np.isnan(case.run(scales=(bad, one))[0, 0, 5]).all()


@pytest.mark.parametrize(("arch", "name"), PLAIN)
def test_c_is_added_where_it_lies(arch, name):
    """With A = 0, D is C's registers, bit for bit: one marked element at a time."""
    op = matrix_op.matrix_ops(arch)[name]
    zeros = [np.zeros((count, 1, op.lanes), np.uint32) for count in (op.a_registers, op.b_registers)]
    c = np.arange(op.d_registers * op.lanes, dtype=np.uint32).reshape(op.d_registers, 1, op.lanes)
    # Small codes are denormals, which are kept; the upper half of gfx11's 16-bit results is not written.
    if op.d.bits == 16:
        c |= (c << np.uint32(16)) if op.family == "wmma12" else np.uint32(0)
    got = matrix_product.execute(op, *zeros, c)
    assert (got == c).all()


# The tables have neither gfx90a nor, among CDNA's operands, xf32.
@pytest.mark.parametrize(("arch", "name"), [(a, n) for a, n in EVERY if a != "gfx90a" and "xf32" not in n])
def test_register_counts_of_the_isa_tables(arch, name):
    isa = {"gfx1100": "rdna3", "gfx1201": "rdna4"}.get(arch, "cdna")
    tables = pytest.importorskip(f"tinygrad.runtime.autogen.amd.{isa}.operands")
    known = {op.name.lower(): operands for op, operands in tables.OPERANDS.items()}[name]
    op = matrix_op.matrix_ops(arch)[name]
    want = tuple(known[field][1] // 32 for field in ("src0", "src1", "vdst"))
    assert (op.a_registers, op.b_registers, op.d_registers) == want


@pytest.mark.parametrize(
    ("isa", "arches"), [("cdna", ("gfx942", "gfx950")), ("rdna3", ("gfx1100",)), ("rdna4", ("gfx1201",))]
)
def test_every_dense_instruction_of_the_isa_tables_is_known(isa, arches):
    enum = pytest.importorskip(f"tinygrad.runtime.autogen.amd.{isa}.enum")
    names = {op.name.lower() for kind in (enum.VOP3POp, getattr(enum, "VOP3PX2Op", ())) for op in kind}
    dense = {name for name in names if re.match(r"v_(mfma|wmma)_", name)} - {"v_mfma_ld_scale_b32"}
    assert dense == set().union(*(matrix_op.matrix_ops(arch) for arch in arches))


def test_gfx90a_opcodes_name_its_instructions():
    assert set(gfx90a.MATRIX_OPCODES.values()) == set(matrix_op.matrix_ops("gfx90a"))


@pytest.mark.parametrize("fmt", ["f16", "bf16", "fp8", "bf8"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_decode_every_code(arch, fmt, dtype):
    op = next(op for name, op in matrix_op.matrix_ops(arch).items() if name.endswith("_" + fmt) and op.blocks == 1)
    bits, code_dtype = code_type(arch, fmt)
    every = np.arange(1 << bits, dtype=f"u{bits // 8}")
    if bits == 8:
        every = np.repeat(every, 2)
    registers = every.view(np.uint32).reshape(-1, 1, 64)
    with np.errstate(invalid="ignore"):
        got = matrix_layout.decode(registers, op.b, dtype=dtype)[0]
        want = (
            every.view(code_dtype).astype(dtype).reshape(registers.shape[0], 64, -1).swapaxes(1, 2).reshape(got.shape)
        )
    assert ((got == want) & (np.signbit(got) == np.signbit(want)) | np.isnan(got) & np.isnan(want)).all()


@pytest.mark.parametrize(("arch", "name"), [(a, n) for a, n in PLAIN if "cbsz" in matrix_op.matrix_ops(a)[n].allowed])
def test_broadcast_of_a_block_of_a(arch, name):
    blocks = matrix_op.matrix_ops(arch)[name].blocks
    for cbsz in range(1, blocks.bit_length()):
        for abid in {0, 1, (1 << cbsz) - 1}:
            case = Case(arch, name, modifiers=MatrixModifiers(cbsz=cbsz, abid=abid), waves=1)
            a = np.stack([case.a[:, block // 2**cbsz * 2**cbsz + abid] for block in range(blocks)], axis=1)
            assert (case.run() == naive(a, case.b, case.c)).all()


@sweep(
    "arch,name,blgp",
    [(a, n, blgp) for a, n in PLAIN if matrix_op.matrix_ops(a)[n].blgp == "lanes" for blgp in range(1, 8)],
    9,
)
def test_permutation_of_the_lanes_of_b(arch, name, blgp):
    case = Case(arch, name, modifiers=MatrixModifiers(blgp=blgp), waves=1)
    a, b, c = case.registers()
    source = {
        1: lambda lane: lane % 32,
        2: lambda lane: 32 + lane % 32,
        3: lambda lane: (lane + 16) % 64,
    }.get(blgp, lambda lane: 16 * (blgp - 4) + lane % 16)
    moved = np.stack([b[:, :, source(lane)] for lane in range(64)], axis=2)
    got = matrix_product.execute(case.entry, a, b, c, case.modifiers)
    assert (got == matrix_product.execute(case.entry, a, moved, c)).all()
    assert (got != matrix_product.execute(case.entry, a, b, c)).any()


@pytest.mark.parametrize("name", ["v_mfma_f64_16x16x4_f64", "v_mfma_f64_4x4x4_4b_f64"])
@pytest.mark.parametrize("blgp", range(8))
def test_signs_of_fp64(name, blgp, arch="gfx942"):
    case = Case(arch, name, modifiers=MatrixModifiers(blgp=blgp), waves=1)
    sign = [-1 if blgp >> bit & 1 else 1 for bit in range(3)]
    assert (case.run() == naive(sign[0] * case.a, sign[1] * case.b, sign[2] * case.c)).all()


@pytest.mark.parametrize(("arch", "name"), [(a, n) for a, n in FLOATS if "wmma" in n and n[-2:] == "16"])
@pytest.mark.parametrize(("neg", "neg_hi"), [(1, 0), (0, 1), (2, 2), (7, 3), (0, 4), (4, 4)])
def test_signs_of_wmma(arch, name, neg, neg_hi):
    """neg_lo negates elements of even k, neg_hi of odd; for C they are the sign and the absolute value."""
    case = Case(arch, name, modifiers=MatrixModifiers(neg=neg, neg_hi=neg_hi), waves=1)
    a, b, c = case.a.copy(), case.b.copy(), case.c.copy()
    for bit, values in ((1, a), (2, b)):
        values[..., 0::2] *= -1 if neg & bit else 1
        values[..., 1::2] *= -1 if neg_hi & bit else 1
    c = np.abs(c) if neg_hi & 4 else c
    assert (case.run() == naive(a, b, -c if neg & 4 else c)).all()


@pytest.mark.parametrize(("arch", "name"), [(a, n) for a, n in INTEGERS if "_iu" in n])
@pytest.mark.parametrize("neg", range(4))
def test_signedness_of_wmma_integers(arch, name, neg):
    bits = int(name[-1])
    case = Case(arch, name, modifiers=MatrixModifiers(neg=neg), waves=1)
    rng = np.random.default_rng(neg)
    for which, values in enumerate((case.a, case.b)):
        low = -(1 << bits - 1) if neg >> which & 1 else 0
        values[...] = rng.integers(low, low + (1 << bits), values.shape)
    assert (case.run() == naive(case.a, case.b, case.c)).all()


@pytest.mark.parametrize("name", ["v_wmma_f16_16x16x16_f16", "v_wmma_bf16_16x16x16_bf16"])
@pytest.mark.parametrize("high", [False, True])
def test_op_sel_names_a_half_of_gfx11_registers(name, high):
    case = Case("gfx1100", name, modifiers=MatrixModifiers(opsel=4 * high), waves=2)
    a, b, _ = case.registers()
    c = pack_c(case.op, case.c, case.d_type, high)
    other = np.uint32(0x1234 if high else 0x12340000)
    out = np.full_like(c, other)
    matrix_product.execute(case.entry, a, b, c, case.modifiers, out=out)
    assert (unpack_d(case.op, out, case.d_type, high) == naive(case.a, case.b, case.c)).all()
    assert (out & np.uint32(0xFFFF if high else 0xFFFF0000) == other).all()


@pytest.mark.parametrize(("arch", "name"), INTEGERS)
def test_integer_extremes_wrap_or_saturate(arch, name):
    op = matrix_op.matrix_ops(arch)[name]
    signed = not op.a.name.startswith("iu")
    low = -(1 << op.a.bits - 1) if signed else (1 << op.a.bits) - 1
    case = Case(arch, name, waves=1)
    case.a[...] = case.b[...] = low
    total = low * low * op.k
    for start in (2**31 - 1, 2**31 - total, 2**31 - 1 - total, -(2**31)):
        case.c[...] = start
        want = (total + start + 2**31) % 2**32 - 2**31
        assert (case.run() == want).all()
        if "clmp" in op.allowed:
            case.modifiers = MatrixModifiers(clmp=1)
            assert (case.run() == min(total + start, 2**31 - 1)).all()
            case.modifiers = MatrixModifiers()
    if "clmp" in op.allowed:
        case.modifiers = MatrixModifiers(clmp=1, neg=1)
        case.a[...], case.b[...], case.c[...] = -1, low, -(2**31)
        assert (case.run() == -(2**31)).all()


@pytest.mark.parametrize(
    ("arch", "name"), [(a, n) for a, n in FLOATS if matrix_op.matrix_ops(a)[n].a.name not in ("fp8", "bf8")]
)
def test_infinities_and_nan_stay_in_their_row_and_column(arch, name):
    case = Case(arch, name, waves=1)
    case.a[...], case.b[...] = 1, 1
    case.a[0, 0, 1, 0] = np.inf
    case.a[0, 0, 2, 0] = np.nan
    case.b[0, 0, 3, 0] = 0
    case.c[0, 0, 0, 0] = -np.inf
    got = case.run()
    with np.errstate(invalid="ignore"):
        want = naive(case.a, case.b, case.c)
    assert np.array_equal(got, want, equal_nan=True)
    assert np.isnan(got[0, 0, 1, 3]) and got[0, 0, 1, 0] == np.inf and np.isnan(got[0, 0, 2]).all()
    assert np.isfinite(got[0, 0, 3]).all()


@pytest.mark.parametrize(
    ("arch", "name"), [(a, n) for a, n in FLOATS if matrix_op.matrix_ops(a)[n].a.name in ("fp8", "bf8")]
)
def test_nan_of_8_bits(arch, name):
    case = Case(arch, name, waves=1)
    case.b[0, 0, 3, 2] = np.nan
    got = case.run()
    assert np.isnan(got[0, 0, :, 3]).all() and np.isnan(got).sum() == case.op.m


@pytest.mark.parametrize(
    ("arch", "name"), [(a, n) for a, n in FLOATS if matrix_op.matrix_ops(a)[n].a.name in ("f16", "bf16")]
)
def test_denormal_operands(arch, name):
    """Kept, but flushed on gfx90a."""
    case = Case(arch, name, waves=1)
    tiny = 2.0**-24 if case.op.a.name == "f16" else 2.0**-133
    big = 2.0**15 if case.op.a.name == "f16" else 2.0**120
    case.a[...], case.b[...], case.c[...] = tiny, big, 0
    if case.op.d.name == "f16":
        case.b[...] = 1
    want = naive(case.a, case.b, case.c)
    assert (case.run() == (0 if arch == "gfx90a" else want)).all()


def test_xf32_drops_low_bits():
    case = Case("gfx942", "v_mfma_f32_16x16x8_xf32", waves=1)
    case.a[...], case.b[...], case.c[...] = 1 + 2.0**-10 + 2.0**-11, -(1 + 2.0**-13), 0
    assert (case.run() == -8 * (1 + 2.0**-10)).all()


def test_results_of_16_bits_are_rounded_to_even():
    for name, step in (("v_wmma_f16_16x16x16_f16", 2.0**-10), ("v_wmma_bf16_16x16x16_bf16", 2.0**-7)):
        for arch in ("gfx1100", "gfx1201"):
            case = Case(arch, name, waves=1)
            case.a[...] = case.b[...] = 0
            case.a[..., 0], case.b[..., 0], case.c[...] = step / 2, 1, 1
            assert (case.run() == 1).all()
            case.c[...] = 1 + step
            assert (case.run() == 1 + 2 * step).all()


@sweep("arch,name", FLOATS, 3)
def test_random_values_within_the_error_bound_of_float32(arch, name):
    case = Case(arch, name, waves=2)
    rng = np.random.default_rng(11)
    for values, (_, dtype) in ((case.a, case.a_type), (case.b, case.b_type), (case.c, (0, case.d_type))):
        values[...] = rng.standard_normal(values.shape).astype(dtype).astype(np.float64)
    if case.op.a.name == "xf32":
        case.a, case.b = (values.astype(np.float16).astype(np.float64) for values in (case.a, case.b))
    want = naive(case.a, case.b, case.c)
    size = naive(abs(case.a), abs(case.b), abs(case.c))
    eps = {16: 2.0**-10 if case.op.d.name == "f16" else 2.0**-7, 32: 2.0**-23, 64: 2.0**-52}[case.op.d.bits]
    assert (abs(case.run() - want) <= 0.5 * case.op.k * eps * size + eps * size).all()
    exact = case.run(arithmetic=Arithmetic.FLOAT64)
    assert (abs(exact - want) <= 0.5 * eps * abs(want) + case.op.k * 2.0**-52 * size).all()


def test_many_wavefronts_like_one_at_a_time():
    case = Case("gfx942", "v_mfma_f32_32x32x8_f16", waves=2)
    a, b, c = (np.tile(registers, (1, 150, 1)) for registers in case.registers())
    a[:, 7], b[:, 299] = b[:, 1], a[:, 0]
    together = matrix_product.execute(case.entry, a, b, c)
    assert a.shape[1] > matrix_product._chunk(case.op)
    for wave in (0, 1, 7, 255, 256, 299):
        one = slice(wave, wave + 1)
        assert (matrix_product.execute(case.entry, a[:, one], b[:, one], c[:, one]) == together[:, one]).all()


@pytest.mark.parametrize(
    ("arch", "name", "modifiers", "message"),
    [
        ("gfx942", "v_mfma_f32_32x32x8_f16", MatrixModifiers(blgp=1), "has no modifier blgp"),
        ("gfx942", "v_mfma_f32_32x32x2_f32", MatrixModifiers(cbsz=1), "has no modifier cbsz"),
        ("gfx942", "v_mfma_f32_16x16x4_4b_f16", MatrixModifiers(cbsz=3), "one of at most 4 blocks"),
        ("gfx942", "v_mfma_f32_16x16x4_4b_f16", MatrixModifiers(cbsz=1, abid=2), "one of at most 4 blocks"),
        ("gfx950", "v_mfma_f32_16x16x128_f8f6f4", MatrixModifiers(cbsz=5), "must be 0 to 4"),
        ("gfx1100", "v_wmma_i32_16x16x16_iu8", MatrixModifiers(neg_hi=1), "neg_hi must be 0"),
        ("gfx1201", "v_wmma_f32_16x16x16_fp8_fp8", MatrixModifiers(neg=1), "only C can be negated"),
        ("gfx1100", "v_wmma_f32_16x16x16_f16", MatrixModifiers(opsel=4), "op_sel"),
        ("gfx90a", "v_mfma_f64_16x16x4f64", MatrixModifiers(blgp=1), "has no modifier blgp"),
    ],
)
def test_modifiers_without_a_meaning_are_refused(arch, name, modifiers, message):
    with pytest.raises(ValueError, match=re.escape(name) + ".*" + message):
        matrix_op.resolve(matrix_op.matrix_ops(arch)[name], modifiers)


def test_wrong_operands_are_refused():
    op = matrix_op.matrix_ops("gfx942")["v_mfma_f32_16x16x16_f16"]
    good, bad = np.zeros((2, 4, 64), np.uint32), np.zeros((1, 4, 64), np.uint32)
    with pytest.raises(ValueError, match=r"B must be uint32\[2, 4, 64\], is uint32\[1, 4, 64\]"):
        matrix_product.execute(op, good, bad, None)
    with pytest.raises(ValueError, match="A must be uint32"):
        matrix_product.execute(op, good.view(np.int32), good, None)
    with pytest.raises(ValueError, match="takes no registers of scales"):
        matrix_product.execute(op, good, good, None, scales=(bad, bad))
    scaled = matrix_op.matrix_ops("gfx950")["v_mfma_scale_f32_16x16x128_f8f6f4"]
    with pytest.raises(ValueError, match="takes two registers of scales"):
        matrix_product.execute(scaled, np.zeros((8, 4, 64), np.uint32), np.zeros((8, 4, 64), np.uint32), None)
    wmma = matrix_op.matrix_ops("gfx1201")["v_wmma_f32_16x16x16_f16"]
    with pytest.raises(ValueError, match="no model of its hardware arithmetic"):
        halves = np.zeros((4, 1, 32), np.uint32)
        matrix_product.execute(wmma, halves, halves, None, arithmetic=Arithmetic.HARDWARE)
    with pytest.raises(ValueError, match="gfx1030"):
        matrix_op.matrix_ops("gfx1030")
