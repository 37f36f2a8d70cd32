"""The scalar unit, on every instruction set, against Python's own integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aot_emulator.errors import UnsupportedInstructionError
from aot_emulator.isa.scalar.scalar_alu import SOP1, SOP2, SOPC
from aot_emulator.isa.scalar.scalar_floats import _OPS
from tests.support.emulation import values
from tests.support.emulation.machine import DEFAULT_MODE, RDNA, Machine, block, every_isa, every_rdna, is_rdna
from tests.support.emulation.values import ORDERS, bits_of, integers, mnemonics, s

MASK = {32: 0xFFFFFFFF, 64: 0xFFFFFFFFFFFFFFFF}
WAVES = 96
Result = int | tuple[int, bool]


def carry(total: int, low: int = 0, high: int = MASK[32]) -> tuple[int, bool]:
    return total, not low <= total <= high


def overflow(total: int) -> tuple[int, bool]:
    return carry(total, -(1 << 31), (1 << 31) - 1)


def nonzero(result: int, bits: int = 32) -> tuple[int, bool]:
    return result, result & MASK[bits] != 0


def bit_field(value: int, control: int, bits: int, signed: bool) -> tuple[int, bool]:
    offset, width = control & bits - 1, control >> 16 & 0x7F
    width = min(width, bits - offset)
    found = (value >> offset) & ((1 << width) - 1)
    return nonzero(s(found, width) if signed and width else found, bits)


def lowest(value: int) -> int:
    return (value & -value).bit_length() - 1


def highest(value: int, bits: int) -> int:
    return bits - value.bit_length() if value else -1


def same_as_sign(value: int, bits: int) -> int:
    return highest(~value & MASK[bits] if value >> bits - 1 else value, bits)


def quads(value: int, bits: int) -> list[int]:
    return [int(value >> 4 * i & 15 != 0) for i in range(bits // 4)]


LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b, "nand": lambda a, b: ~(a & b), "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b), "andn1": lambda a, b: ~a & b, "orn1": lambda a, b: ~a | b,
}  # fmt: skip
# Results alone, or (result, SCC); unsigned sources. SCC is kept where there is none.
OPERATIONS: dict[str, Callable[..., Result]] = {
    "s_add_u32": lambda a, b: carry(a + b),
    "s_sub_u32": lambda a, b: carry(a - b),
    "s_add_i32": lambda a, b: overflow(s(a) + s(b)),
    "s_sub_i32": lambda a, b: overflow(s(a) - s(b)),
    "s_min_i32": lambda a, b: (min(s(a), s(b)), s(a) < s(b)),
    "s_min_u32": lambda a, b: (min(a, b), a < b),
    "s_max_i32": lambda a, b: (max(s(a), s(b)), s(a) >= s(b)),
    "s_max_u32": lambda a, b: (max(a, b), a >= b),
    "s_mul_i32": lambda a, b: a * b,
    "s_mul_hi_u32": lambda a, b: a * b >> 32,
    "s_mul_hi_i32": lambda a, b: s(a) * s(b) >> 32,
    "s_absdiff_i32": lambda a, b: nonzero(abs(s(a - b))),
    "s_pack_ll_b32_b16": lambda a, b: (a & 0xFFFF) | (b & 0xFFFF) << 16,
    "s_pack_lh_b32_b16": lambda a, b: (a & 0xFFFF) | (b & 0xFFFF0000),
    "s_pack_hl_b32_b16": lambda a, b: a >> 16 | (b & 0xFFFF) << 16,
    "s_pack_hh_b32_b16": lambda a, b: a >> 16 | (b & 0xFFFF0000),
    "s_mul_u64": lambda a, b: a * b,
    "s_add_nc_u64": lambda a, b: a + b,
    "s_sub_nc_u64": lambda a, b: a - b,
    **{f"s_lshl{n}_add_u32": lambda a, b, n=n: carry((a << n) + b) for n in (1, 2, 3, 4)},
    "s_sext_i32_i8": lambda a: s(a, 8),
    "s_sext_i32_i16": lambda a: s(a, 16),
    "s_abs_i32": lambda a: nonzero(abs(s(a))),
    "s_flbit_i32": lambda a: same_as_sign(a, 32),
    "s_flbit_i32_i64": lambda a: same_as_sign(a, 64),
    "s_bitreplicate_b64_b32": lambda a: sum((a >> i & 1) * 3 << 2 * i for i in range(32)),
}  # fmt: skip
for _bits in (32, 64):
    OPERATIONS |= {
        f"s_lshl_b{_bits}": lambda a, b, n=_bits: nonzero(a << (b & n - 1), n),
        f"s_lshr_b{_bits}": lambda a, b, n=_bits: nonzero(a >> (b & n - 1), n),
        f"s_ashr_i{_bits}": lambda a, b, n=_bits: nonzero(s(a, n) >> (b & n - 1), n),
        f"s_bfm_b{_bits}": lambda a, b, n=_bits: ((1 << (a & n - 1)) - 1) << (b & n - 1),
        f"s_bfe_u{_bits}": lambda a, b, n=_bits: bit_field(a, b, n, False),
        f"s_bfe_i{_bits}": lambda a, b, n=_bits: bit_field(a, b, n, True),
        f"s_mov_b{_bits}": lambda a: a,
        f"s_not_b{_bits}": lambda a, n=_bits: nonzero(~a, n),
        f"s_wqm_b{_bits}": lambda a, n=_bits: nonzero(sum(15 * q << 4 * i for i, q in enumerate(quads(a, n))), n),
        f"s_brev_b{_bits}": lambda a, n=_bits: int(f"{a:0{n}b}"[::-1], 2),
        f"s_bcnt0_i32_b{_bits}": lambda a, n=_bits: nonzero(n - a.bit_count()),
        f"s_bcnt1_i32_b{_bits}": lambda a: nonzero(a.bit_count()),
        f"s_ff0_i32_b{_bits}": lambda a, n=_bits: lowest(~a & MASK[n]),
        f"s_ff1_i32_b{_bits}": lowest,
        f"s_flbit_i32_b{_bits}": lambda a, n=_bits: highest(a, n),
        f"s_quadmask_b{_bits}": lambda a, n=_bits: nonzero(sum(q << i for i, q in enumerate(quads(a, n)))),
        **{f"s_{name}_b{_bits}": lambda a, b, f=f, n=_bits: nonzero(f(a, b), n)
           for name, f in LOGIC.items() if name[-1] != "1"},
    }  # fmt: skip
NOT_GFX942 = ("s_pack_hl_b32_b16", "s_mul_u64", "s_add_nc_u64", "s_sub_nc_u64")
FORMS = [(arch, name) for arch in ("gfx942", *RDNA) for name in OPERATIONS
         if name in mnemonics(arch) and (is_rdna(arch) or name not in NOT_GFX942)]  # fmt: skip


def test_every_instruction_has_a_case():
    assert {*SOP2, *SOP1} == {*OPERATIONS} and len(SOPC) == 12 + 2 + 4  # see test_comparison and test_single_bits


def with_sources(arch: str, seed: int) -> Machine:
    """Set s[4:5] and s[8:9] to random bits, equal in places, and SCC alternating."""
    machine = Machine(arch, WAVES)
    machine.s[[4, 5, 8, 9]] = integers(seed, 4, WAVES)
    machine.s[8:10, ::7] = machine.s[4:6, ::7]
    machine.scc[:] = np.arange(WAVES) % 2
    return machine


def registers(kind: str, number: int) -> str:
    return block(number, bits_of(kind) // 32, "s")


def value(machine: Machine, number: int, kind: str) -> list[int]:
    return (machine.pair(number) if bits_of(kind) == 64 else machine.s[number]).tolist()


def check(machine: Machine, kind: str, wanted: list[Result]) -> None:
    pairs = [want if isinstance(want, tuple) else (want, bool(i % 2)) for i, want in enumerate(wanted)]
    assert value(machine, 2, kind) == [result & MASK[bits_of(kind)] for result, _ in pairs]
    assert machine.scc.tolist() == [flag for _, flag in pairs]


@pytest.mark.parametrize("arch,operation", FORMS)
def test_operation(arch: str, operation: str):
    machine = with_sources(arch, len(operation))
    kind, *kinds = {**SOP1, **SOP2}[operation].kinds
    sources = [value(machine, number, source) for number, source in zip((4, 8), kinds, strict=False)]
    operands = [registers(kind, 2), *(registers(source, 4 * i + 4) for i, source in enumerate(kinds))]
    machine.execute(f"{mnemonics(arch)[operation]} {', '.join(operands)}")
    check(machine, kind, [OPERATIONS[operation](*values) for values in zip(*sources, strict=True)])


@pytest.mark.parametrize(
    "name,kind",
    [*((n, k) for n in ("eq", "lg", "gt", "ge", "lt", "le") for k in ("i32", "u32")), ("eq", "u64"), ("lg", "u64")],
)
@every_isa
def test_comparison(arch: str, name: str, kind: str):
    machine = with_sources(arch, 5)
    machine.s[4, ::3], machine.s[4, 1::3] = 0xFFFF8001, 0x8001
    a, b = ([s(v) if kind == "i32" else v for v in value(machine, n, kind)] for n in (4, 8))
    machine.execute(f"s_cmp_{name}_{kind} {registers(kind, 4)}, {registers(kind, 8)}")
    assert machine.scc.tolist() == [ORDERS[name](x, y) for x, y in zip(a, b, strict=True)]
    if kind != "u64" and arch != "gfx1201":
        machine.execute(f"s_cmpk_{name}_{kind} s4, 0x8001")
        assert machine.scc.tolist() == [ORDERS[name](x, s(0x8001, 16) if kind == "i32" else 0x8001) for x in a]


@every_isa
@pytest.mark.parametrize("bits", (32, 64))
def test_single_bits(arch: str, bits: int):
    machine = with_sources(arch, 6)
    pairs = list(zip(value(machine, 4, f"u{bits}"), value(machine, 8, "u32"), strict=True))
    source, target, cleared = (registers(f"u{bits}", number) for number in (4, 10, 12))
    for wanted in (0, 1):
        machine.execute(f"s_bitcmp{wanted}_b{bits} {source}, s8")
        assert machine.scc.tolist() == [(a >> (b % bits) & 1) == wanted for a, b in pairs]
    machine.execute(f"s_mov_b{bits} {target}, {source}", f"s_mov_b{bits} {cleared}, {source}",
                    f"s_bitset1_b{bits} {target}, s8", f"s_bitset0_b{bits} {cleared}, s8")  # fmt: skip
    assert value(machine, 10, f"u{bits}") == [a | 1 << b % bits for a, b in pairs]
    assert value(machine, 12, f"u{bits}") == [a & ~(1 << b % bits) for a, b in pairs]


@every_isa
def test_carry_chain(arch: str):
    for name, total in (("s_addc_u32", lambda x, y, z: x + y + z), ("s_subb_u32", lambda x, y, z: x - y - z)):
        machine = with_sources(arch, 7)
        sources = machine.s[4].tolist(), machine.s[8].tolist(), machine.scc.tolist()
        machine.execute(f"{mnemonics(arch)[name]} s2, s4, s8")
        check(machine, "u32", [carry(total(*values)) for values in zip(*sources, strict=True)])


@every_isa
def test_selections_by_scc(arch: str):
    machine = with_sources(arch, 8)
    machine.s[2:4], scc = 77, machine.scc
    machine.execute("s_cselect_b32 s10, s4, s8", "s_cselect_b64 s[12:13], s[4:5], s[8:9]", "s_cmov_b32 s2, s4",
                    "s_cmovk_i32 s3, -5")  # fmt: skip
    np.testing.assert_array_equal(machine.s[10], np.where(scc, machine.s[4], machine.s[8]))
    np.testing.assert_array_equal(machine.pair(12), np.where(scc, machine.pair(4), machine.pair(8)))
    np.testing.assert_array_equal(
        machine.s[2:4].view(np.int32), np.where(scc, [machine.s[4].view(np.int32), 0 * scc - 5], 77)
    )


@every_isa
@pytest.mark.parametrize("operation", LOGIC)
def test_exec_is_saved_and_combined(arch: str, operation: str):
    """EXEC has 64 bits, and 32 on RDNA."""
    machine = with_sources(arch, 10)
    lanes = machine.arch.lanes
    kind, old = f"u{lanes}", [i * 0x123456789AB & MASK[lanes] for i in range(WAVES)]
    source, wrexec = value(machine, 4, kind), operation in ("andn1", "andn2")
    for form in ("saveexec", "wrexec")[: 1 + wrexec]:
        machine.set_pair(126, np.array(old, np.uint64))
        if lanes == 32:
            machine.s[[3, 127]] = 0x77777777
        name = mnemonics(arch)[f"s_{operation}_{form}_b{lanes}"]
        machine.execute(f"{name} {registers(kind, 2)}, {registers(kind, 4)}")
        wanted = [LOGIC[operation](a, b) & MASK[lanes] for a, b in zip(source, old, strict=True)]
        assert value(machine, 126, kind) == wanted
        assert value(machine, 2, kind) == (old if form == "saveexec" else wanted)
        assert machine.scc.tolist() == [value != 0 for value in wanted]
        assert lanes == 64 or (machine.s[[3, 127]] == 0x77777777).all(), "one register"


@every_isa
def test_immediates(arch: str):
    machine, add = Machine(arch), mnemonics(arch)["s_addk_i32"]
    machine.s[2:6] = 10
    machine.execute("s_movk_i32 s2, 0x8000", "s_mulk_i32 s4, -3", f"{add} s3, -11")
    assert (machine.s[2:5, 0].view(np.int32) == [-0x8000, -1, -30]).all() and not machine.scc.any()
    machine.s[5] = 0x7FFFFFFF
    assert machine.execute(f"{add} s5, 1").scc.all()


@pytest.mark.parametrize("operand,wanted,wide", [
    ("64", 64, 64), ("-16", 0xFFFFFFF0, 0xFFFFFFFFFFFFFFF0), ("0.5", 0x3F000000, 0x3FE0000000000000),
    ("-4.0", 0xC0800000, 0xC010000000000000), ("0.15915494309189532", 0x3E22F983, 0x3FC45F306DC9C882),
    ("0x12345678", 0x12345678, 0x12345678),
])  # fmt: skip
def test_constants(operand: str, wanted: int, wide: int):
    machine = Machine().execute(f"s_mov_b32 s2, {operand}", f"s_mov_b64 s[4:5], {operand}")
    assert (machine.s[2] == wanted).all() and (machine.pair(4) == np.uint64(wide)).all()


def test_scc_vccz_and_execz_are_sources():
    machine = with_sources("gfx942", 13)
    machine.set_pair(106, np.arange(WAVES) % 3)
    machine.execute("s_add_u32 s2, src_scc, 5", "s_mov_b32 s3, src_vccz", "s_mov_b32 s6, src_execz")
    assert machine.s[2].tolist() == [5 + i % 2 for i in range(WAVES)]
    assert machine.s[3].tolist() == [int(i % 3 == 0) for i in range(WAVES)] and not machine.s[6].any()


@every_rdna
def test_null_reads_as_zero_and_takes_nothing(arch: str):
    machine, add = with_sources(arch, 11), mnemonics(arch)["s_add_u32"]
    machine.s[125] = 77
    machine.execute(f"{add} null, s4, s8", "s_mov_b64 null, s[4:5]", f"{add} s2, null, s4", "s_mov_b64 s[6:7], null",
                    "s_mov_b32 s10, m0", "s_mov_b32 m0, 5", "v_mov_b32 v2, null")  # fmt: skip
    np.testing.assert_array_equal(machine.s[2], machine.s[4])
    assert not machine.s[6:8].any() and (machine.s[124] == 0xFFFFFFFF).all() and not machine.v[2].any()
    assert (machine.s[10] == 77).all() and (machine.s[125] == 5).all(), "M0 is another register than CDNA's"


@every_isa
def test_fields_of_mode(arch: str):
    machine = Machine(arch)
    machine.s[4] = 1
    machine.execute("s_getreg_b32 s2, hwreg(HW_REG_MODE, 4, 4)", "s_setreg_b32 hwreg(HW_REG_MODE, 0, 2), s4",
                    "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1")  # fmt: skip
    assert (machine.s[2] == 15).all()
    assert (machine.batch.mode == DEFAULT_MODE | 1 | 1 << 23).all()
    assert machine.waves.mode.fp16_ovfl and machine.waves.mode.round32 == 1
    if is_rdna(arch):
        machine.execute("s_round_mode 0xd", "s_denorm_mode 0x3")
        assert (machine.batch.mode == DEFAULT_MODE & ~0xFF | 0x3D | 1 << 23).all()
    machine.s[4] = np.arange(machine.shape[0])
    with pytest.raises(UnsupportedInstructionError, match="MODE set to different values"):
        machine.execute("s_setreg_b32 hwreg(HW_REG_MODE, 0, 2), s4")


# Floats (RDNA 3.5 and 4), against the vector unit's

SCALAR_FLOATS = [
    (arch, operation) for arch in ("gfx1151", "gfx1201") for operation in _OPS
    if arch == "gfx1201" or not operation.startswith(("v_s_", "s_minimum", "s_maximum"))
]  # fmt: skip


def vector_name(operation: str, arch: str) -> str:
    """Return the vector unit's name of a scalar instruction."""
    plain = operation.replace("v_s_", "v_") if operation.startswith("v_s_") else f"v_{operation[2:]}"
    return mnemonics(arch)[plain.replace("pk_rtz", "pkrtz")]


@pytest.mark.parametrize("mode", (DEFAULT_MODE, DEFAULT_MODE & ~0xF0 | 5), ids=("", "flushed and upward"))
@pytest.mark.parametrize("arch,operation", SCALAR_FLOATS)
def test_scalar_floats(arch: str, operation: str, mode: int):
    """They give one value a wavefront: what the vector unit gives for each lane."""
    result, *kinds = _OPS[operation].kinds
    literal = {"mk": 1, "ak": 2}.get(operation[5:7])
    reference, machine = Machine(arch, mode=mode), Machine(arch, 256, mode=mode)
    vectors, scalars = [], []
    for i, (kind, source) in enumerate(zip(kinds, values.sources_of(tuple(kinds)), strict=True)):
        number = 2 if kind.startswith("=") else 8 + i
        reference.put(number, source)
        machine.s[number] = source.view(f"u{source.itemsize}")
        if number != 2:
            vectors.append("0x40490fdb" if i == literal else values.spelled(kind, number, 0))
            scalars.append("0x40490fdb" if i == literal else f"s{number}")
    reference.execute(f"{vector_name(operation, arch)} {values.spelled(result, 2, 0)}, {', '.join(vectors)}")
    machine.execute(f"{mnemonics(arch)[operation]} s2, {', '.join(scalars)}")
    dtype = values.dtype_of(result)
    assert dtype.itemsize == 4 or not (machine.s[2] >> 16).any(), "a half is a number of 32 bits"
    got = machine.s[2].astype(f"u{dtype.itemsize}").view(dtype)
    values.assert_same(got, reference.get(2, dtype), operation)


def test_scalar_floats_with_modifiers():
    machine = Machine("gfx1201")
    machine.s[4:8] = np.array([1.5, -2.25, 0, 7.9], np.float32).view(np.uint32)[:, None]
    machine.s[6] = np.array([-1, 3], np.float16).view(np.uint32)[0]
    machine.execute("s_cvt_hi_f32_f16 s10, s6", "v_s_rcp_f32 s11, -s4", "v_s_sqrt_f32 s12, |s5| clamp", "s_cvt_i32_f32 s13, s7",
                    "s_maximum_f32 s14, s4, 0x7fc00000")  # fmt: skip
    assert machine.s[13, 0] == 7
    got = machine.s[[10, 11, 12, 14], 0].view(np.float32)
    np.testing.assert_array_equal(got, np.array([3, -2 / 3, 1, np.nan], np.float32))


FLOAT_ORDERS = sorted({name[6:-4] for name in mnemonics("gfx1201") if name.startswith("s_cmp_") and "_f" in name})


@pytest.mark.parametrize("bits", (16, 32))
@pytest.mark.parametrize("arch", ("gfx1151", "gfx1201"))
@pytest.mark.parametrize("name", FLOAT_ORDERS)
def test_scalar_float_comparison(name: str, arch: str, bits: int):
    a, b = (values.edge_floats(seed, f"f{bits // 8}", WAVES) for seed in range(2))
    b[::5] = a[::5]
    machine = Machine(arch, WAVES)
    machine.s[4], machine.s[8] = a.view(f"u{bits // 8}"), b.view(f"u{bits // 8}")
    machine.execute(f"s_cmp_{name}_f{bits} s4, s8")
    assert machine.scc.tolist() == [ORDERS[name](x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
