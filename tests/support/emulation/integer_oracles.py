"""Reference semantics of the vector unit's integer instructions, in Python integers.

Sources are unsigned numbers; results are truncated to the width of the destination.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.emulation.values import s


def field(value: int, offset: int, width: int, signed: bool = False) -> int:
    found = (value >> offset) & ((1 << width) - 1)
    return s(found, width) if signed and width else found


def leading(value: int) -> int:
    return -1 if value == 0 else 32 - value.bit_length()


def word(parts: list[int], bits: int = 8) -> int:
    return sum((part & ((1 << bits) - 1)) << bits * i for i, part in enumerate(parts))


def octets(value: int) -> list[int]:
    return list(value.to_bytes(4, "little"))


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
    pairs = [(field(a, at, bits), field(b, at, bits)) for at in range(0, 32, bits)]
    return sum(abs(x - y) for x, y in pairs if y or not masked)


def clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def median(*values: int) -> int:
    return sorted(values)[1]


def dot(a: int, b: int, c: int, bits: int, signs: tuple[bool, bool] = (True, True)) -> int:
    """Dot product of signed or unsigned elements. The sum is signed if either operand is, and is not truncated."""
    products = (field(a, at, bits, signs[0]) * field(b, at, bits, signs[1]) for at in range(0, 32, bits))
    return (s(c) if any(signs) else c) + sum(products)


def ashr_to_bytes(low: int, high: int) -> Callable[..., int]:
    return lambda a, b, c: word([clamp(s(x) >> (c & 31), low, high) for x in (a, b)])


CHOICES: dict[str, Callable[..., int]] = {
    "min": min, "max": max, "min3": min, "max3": max, "med3": median,
    "minmax": lambda a, b, c: max(min(a, b), c), "maxmin": lambda a, b, c: min(max(a, b), c),
}  # fmt: skip


def chosen(name: str, kind: str) -> Callable[..., int]:
    choose, bits = CHOICES[name], int(kind[1:])
    return lambda *values: choose(*((s(value, bits) for value in values) if kind[0] == "i" else values))


INTEGERS: dict[str, Callable[..., int]] = {
    "v_mul_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_i32_i24": lambda a, b: s(a, 24) * s(b, 24),
    "v_mul_hi_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32,
    "v_mul_hi_i32_i24": lambda a, b: s(a, 24) * s(b, 24) >> 32,
    "v_mad_u32_u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24": lambda a, b, c: s(a, 24) * s(b, 24) + c,
    "v_mad_u32_u16": lambda a, b, c: a * b + c,
    "v_mad_i32_i16": lambda a, b, c: s(a, 16) * s(b, 16) + c,
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: s(a) * s(b) >> 32,
    **{f"v_lshlrev_b{n}": lambda a, b, n=n: b << (a & n - 1) for n in (16, 32, 64)},
    **{f"v_lshrrev_b{n}": lambda a, b, n=n: b >> (a & n - 1) for n in (16, 32, 64)},
    **{f"v_ashrrev_i{n}": lambda a, b, n=n: s(b, n) >> (a & n - 1) for n in (16, 32, 64)},
    "v_lshl_add_u64": lambda a, b, c: (a << (b & 7)) + c,
    **{f"v_and_b{n}": lambda a, b: a & b for n in (16, 32)},
    **{f"v_or_b{n}": lambda a, b: a | b for n in (16, 32)},
    **{f"v_xor_b{n}": lambda a, b: a ^ b for n in (16, 32)},
    **{f"v_not_b{n}": lambda a: ~a for n in (16, 32)},
    **{f"v_mov_b{n}": lambda a: a for n in (16, 32, 64)},
    "v_xnor_b32": lambda a, b: ~(a ^ b),
    "v_bfrev_b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "v_ffbh_u32": leading,
    "v_ffbl_b32": lambda a: (a & -a).bit_length() - 1,
    "v_ffbh_i32": lambda a: leading(~a & 0xFFFFFFFF if a >> 31 else a),
    "v_bfe_u32": lambda a, b, c: field(a, b & 31, c & 31),
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
    "v_xor3_b32": lambda a, b, c: a ^ b ^ c,
    "v_pack_b32_f16": lambda a, b: a | b << 16,
    "v_cvt_u32_u16": lambda a: a,
    "v_cvt_i32_i16": lambda a: s(a, 16),
    "v_sat_pk_u8_i16": lambda a: word([clamp(s(x, 16), 0, 255) for x in (a, a >> 16)]),
    "v_cvt_pk_u16_u32": lambda a, b: word([min(v, 0xFFFF) for v in (a, b)], 16),
    "v_cvt_pk_i16_i32": lambda a, b: word([clamp(s(v), -0x8000, 0x7FFF) for v in (a, b)], 16),
    "v_mul_lo_u16": lambda a, b: a * b,
    **{f"v_{name}_{kind}": function for kind in ("i16", "u16", "i32", "u32") for name, function in (
        ("add", lambda a, b: a + b), ("sub", lambda a, b: a - b), ("subrev", lambda a, b: b - a))},
    **{f"v_mad_{kind}": lambda a, b, c: a * b + c for kind in ("i16", "u16")},
    **{f"v_{name}_{kind}": chosen(name, kind) for name in ("min", "max", "min3", "max3", "med3")
       for kind in ("i16", "u16", "i32", "u32")},
    **{f"v_{name}_{kind}": chosen(name, kind) for name in ("minmax", "maxmin") for kind in ("i32", "u32")},
    "v_dot2c_i32_i16": lambda a, b, c: dot(a, b, c, 16),
    "v_dot4c_i32_i8": lambda a, b, c: dot(a, b, c, 8),
    "v_dot8c_i32_i4": lambda a, b, c: dot(a, b, c, 4),
    "v_ashr_pk_i8_i32": ashr_to_bytes(-128, 127),
    "v_ashr_pk_u8_i32": ashr_to_bytes(0, 255),
    "v_prng_b32": lambda a: (a << 1) ^ (197 if a >> 31 else 0),
}  # fmt: skip
