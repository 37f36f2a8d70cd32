"""Each integer instruction of the vector unit against Python's own integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from aot_emulator.isa.vector.integer_ops import INTEGER_WIDTHS, INTEGERS

from tests.support.emulation.machine import Machine, integers

Semantics = Callable[..., int]


def s(value: int, bits: int = 32) -> int:
    """Two's complement."""
    value &= (1 << bits) - 1
    return value - (value >> bits - 1 << bits)


def field(value: int, offset: int, width: int, signed: bool) -> int:
    found = (value >> offset) & ((1 << width) - 1)
    return s(found, width) if signed and width else found


def leading(value: int) -> int:
    return -1 if value == 0 else 32 - value.bit_length()


def octets(value: int) -> list[int]:
    return list(value.to_bytes(4, "little"))


def word(parts: list[int], bits: int = 8) -> int:
    return sum((part & ((1 << bits) - 1)) << bits * i for i, part in enumerate(parts))


def permute(a: int, b: int, selector: int) -> int:
    source = octets(b) + octets(a)

    def one(number: int) -> int:
        if number < 8:
            return source[number]
        if number < 12:
            return 0xFF * (source[2 * (number - 8) + 1] >> 7)
        return 0 if number == 12 else 0xFF

    return word([one(number) for number in octets(selector)])


def sad(a: int, b: int, bits: int, masked: bool = False) -> int:
    total = 0
    for shift in range(0, 32, bits):
        x, y = field(a, shift, bits, False), field(b, shift, bits, False)
        total += 0 if masked and y == 0 else abs(x - y)
    return total


def clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def median(*values: int) -> int:
    return sorted(values)[1]


def halves(function: Callable[[int], int], *values: int) -> int:
    return word([function(value) for value in values], 16)


# Sources are 32-bit register values; of a 64-bit source, all 64 bits. The result is cut to the destination's bits.
CASES: dict[str, Semantics] = {
    "v_mul_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_i32_i24": lambda a, b: s(a, 24) * s(b, 24),
    "v_mul_hi_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32,
    "v_mul_hi_i32_i24": lambda a, b: s(a, 24) * s(b, 24) >> 32,
    "v_mad_u32_u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24": lambda a, b, c: s(a, 24) * s(b, 24) + c,
    "v_mad_u32_u16": lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) + c,
    "v_mad_i32_i16": lambda a, b, c: s(a, 16) * s(b, 16) + c,
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: s(a) * s(b) >> 32,
    "v_lshlrev_b32": lambda a, b: b << (a & 31),
    "v_lshrrev_b32": lambda a, b: b >> (a & 31),
    "v_ashrrev_i32": lambda a, b: s(b) >> (a & 31),
    "v_lshlrev_b64": lambda a, b: b << (a & 63),
    "v_lshrrev_b64": lambda a, b: b >> (a & 63),
    "v_ashrrev_i64": lambda a, b: s(b, 64) >> (a & 63),
    "v_lshl_add_u64": lambda a, b, c: (a << (b & 7)) + c,
    "v_and_b32": lambda a, b: a & b,
    "v_or_b32": lambda a, b: a | b,
    "v_xor_b32": lambda a, b: a ^ b,
    "v_xnor_b32": lambda a, b: ~(a ^ b),
    "v_not_b32": lambda a: ~a,
    "v_bfrev_b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "v_ffbh_u32": leading,
    "v_ffbl_b32": lambda a: (a & -a).bit_length() - 1,
    "v_ffbh_i32": lambda a: leading(~a & 0xFFFFFFFF if a >> 31 else a),
    "v_bfe_u32": lambda a, b, c: field(a, b & 31, c & 31, False),
    "v_bfe_i32": lambda a, b, c: field(s(a), b & 31, c & 31, True),
    "v_bfi_b32": lambda a, b, c: (a & b) | (~a & c),
    "v_bfm_b32": lambda a, b: ((1 << (a & 31)) - 1) << (b & 31),
    "v_bcnt_u32_b32": lambda a, b: a.bit_count() + b,
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_perm_b32": permute,
    "v_lerp_u8": lambda *v: word([(x + y + (z & 1)) >> 1 for x, y, z in zip(*map(octets, v), strict=True)]),
    "v_sad_u8": lambda a, b, c: sad(a, b, 8) + c,
    "v_sad_hi_u8": lambda a, b, c: (sad(a, b, 8) << 16) + c,
    "v_sad_u16": lambda a, b, c: sad(a, b, 16) + c,
    "v_sad_u32": lambda a, b, c: sad(a, b, 32) + c,
    "v_msad_u8": lambda a, b, c: sad(a, b, 8, True) + c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32": lambda a, b, c: ((a + b) & 0xFFFFFFFF) << (c & 31),
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_lshl_or_b32": lambda a, b, c: (a << (b & 31)) | c,
    "v_and_or_b32": lambda a, b, c: (a & b) | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_mov_b32": lambda a: a,
    "v_mov_b64": lambda a: a,
    "v_pack_b32_f16": lambda a, b: (a & 0xFFFF) | (b & 0xFFFF) << 16,
    "v_sat_pk_u8_i16": lambda a: clamp(s(a, 16), 0, 255) | clamp(s(a >> 16, 16), 0, 255) << 8,
    "v_cvt_pk_u16_u32": lambda a, b: halves(lambda v: min(v, 0xFFFF), a, b),
    "v_cvt_pk_i16_i32": lambda a, b: halves(lambda v: clamp(s(v), -0x8000, 0x7FFF), a, b),
    "v_mul_lo_u16": lambda a, b: (a & 0xFFFF) * (b & 0xFFFF) & 0xFFFF,
    "v_lshlrev_b16": lambda a, b: (b << (a & 15)) & 0xFFFF,
    "v_lshrrev_b16": lambda a, b: (b & 0xFFFF) >> (a & 15),
    "v_ashrrev_i16": lambda a, b: (s(b, 16) >> (a & 15)) & 0xFFFF,
    "v_add_u32": lambda a, b: a + b,
    "v_sub_u32": lambda a, b: a - b,
    "v_subrev_u32": lambda a, b: b - a,
    "v_add_i32": lambda a, b: a + b,
    "v_sub_i32": lambda a, b: a - b,
    "v_add_u16": lambda a, b: (a + b) & 0xFFFF,
    "v_sub_u16": lambda a, b: (a - b) & 0xFFFF,
    "v_subrev_u16": lambda a, b: (b - a) & 0xFFFF,
    **{f"v_{name}_{k}32": lambda *v, f=f, k=k: f(*(s(x) if k == "i" else x for x in v))
       for k in "iu" for name, f in (("min", min), ("max", max), ("min3", min), ("max3", max), ("med3", median))},
    **{f"v_{name}_{k}16": lambda *v, f=f, k=k: f(*(s(x, 16) if k == "i" else x & 0xFFFF for x in v)) & 0xFFFF
       for k in "iu" for name, f in (("min", min), ("max", max))},
}  # fmt: skip
# These write one half of the destination and leave the other.
HALF_CASES: dict[str, Semantics] = {
    "v_add_i16": lambda a, b: a + b,
    "v_sub_i16": lambda a, b: a - b,
    "v_mad_u16": lambda a, b, c: a * b + c,
    "v_mad_i16": lambda a, b, c: a * b + c,
    **{f"v_{name}_{k}16": lambda *v, f=f, k=k: f(*(s(x, 16) if k == "i" else x & 0xFFFF for x in v))
       for k in "iu" for name, f in (("min3", min), ("max3", max), ("med3", median))},
}  # fmt: skip
# Not on gfx9: op names that the table makes for regularity.
NOT_THERE = {"v_subrev_i16", "v_subrev_i32"}
WIDE = {"v_lshlrev_b64": (1, 2), "v_lshrrev_b64": (1, 2), "v_ashrrev_i64": (1, 2), "v_lshl_add_u64": (2, 1, 2),
        "v_mov_b64": (2,)}  # fmt: skip


def test_every_instruction_has_a_case():
    assert {*INTEGERS, *INTEGER_WIDTHS} == {*CASES, *HALF_CASES, *NOT_THERE}


def operands(count: int, widths: tuple[int, ...]) -> list[str]:
    return [f"v[{8 + 4 * i}:{9 + 4 * i}]" if width == 2 else f"v{8 + 4 * i}" for i, width in enumerate(widths)]


def fill(machine: Machine, count: int) -> list[list[int]]:
    """Random sources in v8, v12, v16, …; the low and high words of each lane's sources."""
    found = []
    for i in range(count):
        machine.v[8 + 4 * i : 10 + 4 * i] = integers(i + 1, (2, 4, 64))
        found.append(machine.v[8 + 4 * i : 10 + 4 * i].reshape(2, -1).tolist())
    return found


@pytest.mark.parametrize("name", CASES)
def test_instruction(name: str):
    machine, function = Machine(), CASES[name]
    count = arity(name)
    widths = WIDE.get(name, (1,) * count)
    sources = fill(machine, count)
    wide = name in WIDE
    target = "v[2:3]" if wide else "v2"
    machine.execute(f"{name} {target}, {', '.join(operands(count, widths))}")
    got = machine.v[2].ravel().astype(object)
    if wide:
        got = got + (machine.v[3].ravel().astype(object) << 32)
    for lane in range(256):
        values = [low[lane] | (high[lane] << 32 if width == 2 else 0)
                  for (low, high), width in zip(sources, widths, strict=True)]  # fmt: skip
        want = function(*values) & (0xFFFFFFFFFFFFFFFF if wide else 0xFFFFFFFF)
        assert got[lane] == want, f"{name} {[hex(v) for v in values]}: {got[lane]:#x}, expected {want:#x}"


def arity(name: str) -> int:
    table = {**INTEGERS, **INTEGER_WIDTHS}
    return len(table[name].kinds) - 1


@pytest.mark.parametrize("high", (False, True), ids=("low", "high"))
@pytest.mark.parametrize("name", HALF_CASES)
def test_half_instruction(name: str, high: bool):
    """With op_sel every source and the destination are the high halves."""
    machine, count = Machine(), arity(name)
    sources = fill(machine, count)
    machine.v[2] = before = integers(9, (4, 64))
    selection = f" op_sel:[{','.join('1' * (count + 1))}]" if high else ""
    machine.execute(f"{name} v2, {', '.join(operands(count, (1,) * count))}{selection}")
    for lane in range(256):
        values = [(low[lane] >> 16 if high else low[lane]) & 0xFFFF for low, _ in sources]
        want, kept = HALF_CASES[name](*values) & 0xFFFF, int(before.ravel()[lane])
        want = (kept & 0xFFFF) | want << 16 if high else (kept & 0xFFFF0000) | want
        assert int(machine.v[2].ravel()[lane]) == want, (name, [hex(v) for v in values])


@pytest.mark.parametrize(
    "name,low,high",
    [
        ("v_add_u32", 0, 2**32 - 1),
        ("v_sub_u32", 0, 2**32 - 1),
        ("v_add_i32", -(2**31), 2**31 - 1),
        ("v_sub_i32", -(2**31), 2**31 - 1),
    ],
)
def test_clamp_saturates(name: str, low: int, high: int):
    machine = Machine()
    sources = fill(machine, 2)
    suffix = "_e64" if "u32" in name else ""
    machine.execute(f"{name}{suffix} v2, v8, v12 clamp")
    for lane in range(256):
        a, b = (s(words[0][lane]) if low else words[0][lane] for words in sources)
        assert int(machine.v[2].ravel()[lane]) == clamp(a + b if "add" in name else a - b, low, high) & 0xFFFFFFFF


@pytest.mark.parametrize("selector", [0x07060302, 0x05040100, 0x00010203, 0x0C0C0605, 0x03020504, 0x0D0B0A09])
def test_byte_permutation_by_a_scalar(selector: int):
    machine = Machine()
    sources = fill(machine, 2)
    machine.s[5] = selector
    machine.execute("v_perm_b32 v2, v8, v12, s5")
    want = [permute(a, b, selector) for a, b in zip(sources[0][0], sources[1][0], strict=True)]
    assert machine.v[2].ravel().tolist() == want


def test_lanes_below():
    """v_mbcnt with all ones gives the lane; with a mask, its bits below the lane."""
    machine = Machine()
    machine.s[4], machine.s[5] = 0x0F0F3005, 0x80000003
    machine.v[1] = 7
    machine.execute(
        "v_mbcnt_lo_u32_b32 v2, -1, 0", "v_mbcnt_hi_u32_b32 v2, -1, v2",
        "v_mbcnt_lo_u32_b32 v3, s4, v1", "v_mbcnt_hi_u32_b32 v3, s5, v3",
    )  # fmt: skip
    mask = 0x0F0F3005 | 0x80000003 << 32
    np.testing.assert_array_equal(machine.v[2], np.broadcast_to(np.arange(64), (4, 64)))
    assert machine.v[3][0].tolist() == [7 + (mask & ((1 << lane) - 1)).bit_count() for lane in range(64)]


CARRY = {
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: a - b,
    "subrev": lambda a, b, c: b - a,
    "addc": lambda a, b, c: a + b + c,
    "subb": lambda a, b, c: a - b - c,
    "subbrev": lambda a, b, c: b - a - c,
}


@pytest.mark.parametrize("scalar_carry", (False, True), ids=("vcc", "sgpr"))
@pytest.mark.parametrize("name", CARRY)
def test_carries(name: str, scalar_carry: bool):
    machine = Machine()
    sources = fill(machine, 2)
    taken = np.random.default_rng(3).integers(0, 1 << 63, 4, np.uint64)
    machine.set_pair(106 if not scalar_carry else 20, taken)
    carries = name[-1] == "c" or name.startswith("subb")
    out, given = ("s[22:23]", ", s[20:21]") if scalar_carry else ("vcc", ", vcc")
    machine.execute(f"v_{name}_co_u32{'_e64' if scalar_carry else ''} v2, {out}, v8, v12{given if carries else ''}")
    masks = machine.lanes(22 if scalar_carry else 106).ravel()
    for lane in range(256):
        carry = int(taken[lane // 64]) >> lane % 64 & 1
        want = CARRY[name](sources[0][0][lane], sources[1][0][lane], carry)
        assert int(machine.v[2].ravel()[lane]) == want & 0xFFFFFFFF
        assert masks[lane] == (not 0 <= want < 1 << 32)


@pytest.mark.parametrize("name", ("v_mad_u64_u32", "v_mad_i64_i32"))
def test_wide_multiply_add(name: str):
    machine = Machine()
    sources = fill(machine, 3)
    machine.execute(f"{name} v[2:3], s[20:21], v8, v12, v[16:17]")
    signed = "i64" in name
    overflow = machine.lanes(20).ravel()
    for lane in range(256):
        a, b = (s(words[0][lane]) if signed else words[0][lane] for words in sources[:2])
        c = sources[2][0][lane] | sources[2][1][lane] << 32
        total = a * b + (s(c, 64) if signed else c)
        got = int(machine.v[2].ravel()[lane]) | int(machine.v[3].ravel()[lane]) << 32
        assert got == total & 0xFFFFFFFFFFFFFFFF
        assert overflow[lane] == (not (-(1 << 63) <= total < 1 << 63) if signed else total >= 1 << 64)
