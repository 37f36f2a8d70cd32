"""Integer SALU instructions: SOP1, SOP2, SOPC and SOPK (ISA chapter "Scalar ALU Operations").

Semantic functions take the sources, with one value per wavefront, and return the result or (result, SCC).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot_emulator.isa.bit_operations import (
    bit_field,
    find_high,
    find_low,
    find_sign,
    reverse_bits,
    shift_left,
    shift_right,
)
from aot_emulator.isa.decoding import Instruction, signed
from aot_emulator.isa.operands import DTYPES, Step, scalar_source, scalar_writer
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import EXEC, Wavefronts


@dataclass(frozen=True)
class ScalarOp:
    """Semantics of an instruction. kinds: of the result and the sources; scc: set SCC to (result != 0)."""

    kinds: tuple[str, ...]
    function: Callable[..., Any]
    scc: bool = False


def _op(kinds: str, function: Callable[..., Any], scc: bool = False) -> ScalarOp:
    return ScalarOp(tuple(kinds.split()), function, scc)


# Arithmetic


def _add(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, total < a


def _sub(a: Array, b: Array) -> tuple[Array, Array]:
    return a - b, a < b


def _add_signed(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


def _sub_signed(a: Array, b: Array) -> tuple[Array, Array]:
    difference = a - b
    return difference, ((a ^ b) & (a ^ difference)) < 0


def _shifted_add(shift: int) -> Callable[[Array, Array], tuple[Array, Array]]:
    def add(a: Array, b: Array) -> tuple[Array, Array]:
        total = (a.astype(np.uint64) << np.uint64(shift)) + b
        return total.astype(np.uint32), total >> np.uint64(32) != 0

    return add


def _high(a: Array, b: Array) -> Array:
    wide = np.int64 if a.dtype == np.int32 else np.uint64
    return (a.astype(wide) * b.astype(wide)) >> wide(32)


def _select(less: Callable[[Array, Array], Array]) -> Callable[[Array, Array], tuple[Array, Array]]:
    def choose(a: Array, b: Array) -> tuple[Array, Array]:
        first = less(a, b)
        return np.where(first, a, b), first

    return choose


def _scalar_bit_field(value: Array, control: Array) -> Array:
    bits = value.dtype.itemsize * 8
    return bit_field(value, control & (bits - 1), control >> 16 & 0x7F)


def _field_mask(bits: int) -> Callable[[Array, Array], Array]:
    def make(width: Array, offset: Array) -> Array:
        one = np.uint64(1)
        return ((one << (width & (bits - 1)).astype(np.uint64)) - one) << (offset & (bits - 1)).astype(np.uint64)

    return make


def _quad_mask(value: Array) -> Array:
    bits = np.unpackbits(np.ascontiguousarray(value)[..., None].view(np.uint8), axis=-1, bitorder="little")
    quads = bits.reshape(*value.shape, -1, 4).any(-1)
    powers = np.uint64(1) << np.arange(quads.shape[-1], dtype=np.uint64)
    return (quads * powers).sum(-1, dtype=np.uint64)


def _whole_quads(value: Array) -> Array:
    some = value | value >> 1
    some = (some | some >> 2) & value.dtype.type(0x1111111111111111 & ((1 << value.dtype.itemsize * 8) - 1))
    return some * value.dtype.type(15)


def _replicate(value: Array) -> Array:
    wide = value.astype(np.uint64)
    for shift, mask in (
        (16, 0x0000FFFF0000FFFF),
        (8, 0x00FF00FF00FF00FF),
        (4, 0x0F0F0F0F0F0F0F0F),
        (2, 0x3333333333333333),
        (1, 0x5555555555555555),
    ):
        wide = (wide | wide << np.uint64(shift)) & np.uint64(mask)
    return wide | wide << np.uint64(1)


def _test_bit(value: Array, position: Array) -> Array:
    return shift_right(value, position) & 1


_LOGIC: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
    "andn1": lambda a, b: ~a & b,
    "orn1": lambda a, b: ~a | b,
}

_COMPARE = {
    "eq": np.equal,
    "lg": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}

SOP2 = {
    "s_add_u32": _op("u32 u32 u32", _add),
    "s_sub_u32": _op("u32 u32 u32", _sub),
    "s_add_i32": _op("i32 i32 i32", _add_signed),
    "s_sub_i32": _op("i32 i32 i32", _sub_signed),
    "s_min_i32": _op("i32 i32 i32", _select(np.less)),
    "s_min_u32": _op("u32 u32 u32", _select(np.less)),
    "s_max_i32": _op("i32 i32 i32", _select(np.greater_equal)),
    "s_max_u32": _op("u32 u32 u32", _select(np.greater_equal)),
    "s_lshl_b32": _op("u32 u32 u32", shift_left, scc=True),
    "s_lshl_b64": _op("u64 u64 u32", shift_left, scc=True),
    "s_lshr_b32": _op("u32 u32 u32", shift_right, scc=True),
    "s_lshr_b64": _op("u64 u64 u32", shift_right, scc=True),
    "s_ashr_i32": _op("i32 i32 u32", shift_right, scc=True),
    "s_ashr_i64": _op("i64 i64 u32", shift_right, scc=True),
    "s_bfm_b32": _op("u32 u32 u32", _field_mask(32)),
    "s_bfm_b64": _op("u64 u32 u32", _field_mask(64)),
    "s_mul_i32": _op("u32 u32 u32", np.multiply),
    "s_mul_u64": _op("u64 u64 u64", np.multiply),
    "s_add_nc_u64": _op("u64 u64 u64", np.add),
    "s_sub_nc_u64": _op("u64 u64 u64", np.subtract),
    "s_mul_hi_u32": _op("u32 u32 u32", _high),
    "s_mul_hi_i32": _op("i32 i32 i32", _high),
    "s_bfe_u32": _op("u32 u32 u32", _scalar_bit_field, scc=True),
    "s_bfe_i32": _op("i32 i32 u32", _scalar_bit_field, scc=True),
    "s_bfe_u64": _op("u64 u64 u32", _scalar_bit_field, scc=True),
    "s_bfe_i64": _op("i64 i64 u32", _scalar_bit_field, scc=True),
    "s_absdiff_i32": _op("i32 i32 i32", lambda a, b: np.abs(a - b), scc=True),
    "s_pack_ll_b32_b16": _op("u32 u32 u32", lambda a, b: (a & 0xFFFF) | b << 16),
    "s_pack_lh_b32_b16": _op("u32 u32 u32", lambda a, b: (a & 0xFFFF) | (b & 0xFFFF0000)),
    "s_pack_hl_b32_b16": _op("u32 u32 u32", lambda a, b: a >> 16 | b << 16),
    "s_pack_hh_b32_b16": _op("u32 u32 u32", lambda a, b: a >> 16 | (b & 0xFFFF0000)),
    **{f"s_lshl{n}_add_u32": _op("u32 u32 u32", _shifted_add(n)) for n in (1, 2, 3, 4)},
    **{
        f"s_{name}_b{bits}": _op(f"u{bits} u{bits} u{bits}", function, scc=True)
        for name, function in _LOGIC.items()
        if not name.endswith("n1")
        for bits in (32, 64)
    },
}

SOP1 = {
    **{f"s_mov_b{bits}": _op(f"u{bits} u{bits}", lambda a: a) for bits in (32, 64)},
    **{f"s_not_b{bits}": _op(f"u{bits} u{bits}", np.invert, scc=True) for bits in (32, 64)},
    **{f"s_wqm_b{bits}": _op(f"u{bits} u{bits}", _whole_quads, scc=True) for bits in (32, 64)},
    **{f"s_brev_b{bits}": _op(f"u{bits} u{bits}", reverse_bits) for bits in (32, 64)},
    **{f"s_bcnt0_i32_b{bits}": _op(f"u32 u{bits}", lambda a: np.bitwise_count(~a), scc=True) for bits in (32, 64)},
    **{f"s_bcnt1_i32_b{bits}": _op(f"u32 u{bits}", np.bitwise_count, scc=True) for bits in (32, 64)},
    **{f"s_ff0_i32_b{bits}": _op(f"i32 u{bits}", lambda a: find_low(~a)) for bits in (32, 64)},
    **{f"s_ff1_i32_b{bits}": _op(f"i32 u{bits}", find_low) for bits in (32, 64)},
    **{f"s_flbit_i32_b{bits}": _op(f"i32 u{bits}", find_high) for bits in (32, 64)},
    **{f"s_quadmask_b{bits}": _op(f"u{bits} u{bits}", _quad_mask, scc=True) for bits in (32, 64)},
    "s_flbit_i32": _op("i32 i32", find_sign),
    "s_flbit_i32_i64": _op("i32 i64", find_sign),
    "s_sext_i32_i8": _op("i32 i32", lambda a: a << 24 >> 24),
    "s_sext_i32_i16": _op("i32 i32", lambda a: a << 16 >> 16),
    "s_abs_i32": _op("i32 i32", np.abs, scc=True),
    "s_bitreplicate_b64_b32": _op("u64 u32", _replicate),
}

SOPC = {
    **{
        f"s_cmp_{name}_{kind}": _op(f"{kind} {kind}", function)
        for name, function in _COMPARE.items()
        for kind in ("i32", "u32")
    },
    **{f"s_cmp_{name}_u64": _op("u64 u64", _COMPARE[name]) for name in ("eq", "lg")},
    **{f"s_bitcmp0_b{bits}": _op(f"u{bits} u32", lambda a, b: _test_bit(a, b) == 0) for bits in (32, 64)},
    **{f"s_bitcmp1_b{bits}": _op(f"u{bits} u32", lambda a, b: _test_bit(a, b) != 0) for bits in (32, 64)},
}

_CARRY = {"s_addc_u32", "s_subb_u32"}
_MODE_REGISTER = 1


def bind(instruction: Instruction) -> Step | None:
    """Return the step of an integer SALU instruction, or None for other instructions."""
    name = instruction.operation
    if name in SOP2:
        return _bind_plain(instruction, SOP2[name], ("ssrc0", "ssrc1"))
    if name in SOP1:
        return _bind_plain(instruction, SOP1[name], ("ssrc0",))
    if name in SOPC:
        return _bind_compare(instruction, SOPC[name])
    if instruction.base_encoding == "SOPK":
        return _bind_immediate(instruction)
    if name in _CARRY:
        return _bind_carry(instruction)
    if name.startswith(("s_cselect_", "s_cmov_")):
        return _bind_select(instruction)
    if name.startswith("s_bitset"):
        return _bind_bitset(instruction)
    if name.endswith(("_saveexec_b64", "_wrexec_b64", "_saveexec_b32", "_wrexec_b32")):
        return _bind_exec(instruction)
    return None


def _bind_plain(instruction: Instruction, op: ScalarOp, names: tuple[str, ...]) -> Step:
    sources = [
        scalar_source(instruction, instruction.fields[name], kind)
        for name, kind in zip(names, op.kinds[1:], strict=True)
    ]
    write = scalar_writer(instruction, instruction.fields["sdst"], op.kinds[0])
    function, dtype = op.function, DTYPES[op.kinds[0]]

    def step(waves: Wavefronts) -> None:
        result = function(*(source(waves) for source in sources))
        if isinstance(result, tuple):
            result, waves.scc[...] = result
        elif op.scc:
            result = np.asarray(result, dtype)
            waves.scc[...] = result != 0
        write(waves, result)

    return step


def _bind_compare(instruction: Instruction, op: ScalarOp) -> Step:
    first, second = (
        scalar_source(instruction, instruction.fields[name], kind)
        for name, kind in zip(("ssrc0", "ssrc1"), op.kinds, strict=True)
    )

    def step(waves: Wavefronts) -> None:
        waves.scc[...] = op.function(first(waves), second(waves))

    return step


def _bind_carry(instruction: Instruction) -> Step:
    first, second = (scalar_source(instruction, instruction.fields[name], "u32") for name in ("ssrc0", "ssrc1"))
    write = scalar_writer(instruction, instruction.fields["sdst"], "u32")
    subtract = instruction.operation == "s_subb_u32"

    def step(waves: Wavefronts) -> None:
        a, b = first(waves).astype(np.int64), second(waves).astype(np.int64)
        total = a - b - waves.scc if subtract else a + b + waves.scc
        write(waves, (total & 0xFFFFFFFF).astype(np.uint32))
        waves.scc[...] = (total < 0) | (total > 0xFFFFFFFF)

    return step


def _bind_select(instruction: Instruction) -> Step:
    kind = "u64" if instruction.mnemonic.endswith("b64") else "u32"
    first = scalar_source(instruction, instruction.fields["ssrc0"], kind)
    # s_cmov preserves the destination if SCC is 0.
    second = scalar_source(instruction, instruction.fields.get("ssrc1", instruction.fields["sdst"]), kind)
    write = scalar_writer(instruction, instruction.fields["sdst"], kind)
    return lambda waves: write(waves, np.where(waves.scc, first(waves), second(waves)))


def _bind_bitset(instruction: Instruction) -> Step:
    kind = "u64" if instruction.mnemonic.endswith("b64") else "u32"
    position = scalar_source(instruction, instruction.fields["ssrc0"], "u32")
    old = scalar_source(instruction, instruction.fields["sdst"], kind)
    write = scalar_writer(instruction, instruction.fields["sdst"], kind)
    one, setting = DTYPES[kind].type(1), instruction.mnemonic.startswith("s_bitset1")

    def step(waves: Wavefronts) -> None:
        bit = shift_left(one, position(waves))
        write(waves, old(waves) | bit if setting else old(waves) & ~bit)

    return step


def _bind_exec(instruction: Instruction) -> Step:
    """s_and_saveexec_b64 and kin: EXEC = S0 op EXEC, the old EXEC goes to the destination (the new for wrexec)."""
    operation, kept, form = instruction.operation.removeprefix("s_").split("_")
    kind = f"u{form[1:]}"
    source = scalar_source(instruction, instruction.fields["ssrc0"], kind)
    read_exec = scalar_source(instruction, EXEC, kind)
    write_exec = scalar_writer(instruction, EXEC, kind)
    write = scalar_writer(instruction, instruction.fields["sdst"], kind)
    function = _LOGIC[operation]

    def step(waves: Wavefronts) -> None:
        old = read_exec(waves).copy()
        new = function(source(waves), old)
        write_exec(waves, new)
        write(waves, old if kept == "saveexec" else new)
        waves.scc[...] = new != 0

    return step


def _bind_immediate(instruction: Instruction) -> Step | None:
    """Bind SOPK. Its immediate is sign-extended, except for unsigned comparisons, s_getreg and s_setreg."""
    name, raw = instruction.operation, instruction.fields["simm16"]
    immediate: Any = np.int32(signed(raw, 16))
    if name.startswith("s_cmpk_"):
        kind = name[-3:]
        source = scalar_source(instruction, instruction.fields["sdst"], kind)
        compare, other = _COMPARE[name.split("_")[2]], np.uint32(raw) if kind == "u32" else immediate

        def step(waves: Wavefronts) -> None:
            waves.scc[...] = compare(source(waves), other)

        return step
    if name in ("s_getreg_b32", "s_setreg_b32", "s_setreg_imm32_b32"):
        return _bind_hardware_register(instruction, raw)
    if name not in ("s_movk_i32", "s_cmovk_i32", "s_addk_i32", "s_mulk_i32"):
        return None
    old = scalar_source(instruction, instruction.fields["sdst"], "i32")
    write = scalar_writer(instruction, instruction.fields["sdst"], "i32")
    if name == "s_movk_i32":
        return lambda waves: write(waves, immediate)
    if name == "s_cmovk_i32":
        return lambda waves: write(waves, np.where(waves.scc, immediate, old(waves)))
    if name == "s_mulk_i32":
        return lambda waves: write(waves, old(waves) * immediate)

    def add(waves: Wavefronts) -> None:
        total, waves.scc[...] = _add_signed(old(waves), immediate)
        write(waves, total)

    return add


def set_mode(instruction: Instruction, mask: int, value: int) -> Step:
    """Return the step of s_round_mode or s_denorm_mode, which set a field of MODE."""
    return lambda waves: waves.set_mode((waves.mode_register & np.uint32(~mask & 0xFFFFFFFF)) | np.uint32(value & mask))


def _bind_hardware_register(instruction: Instruction, raw: int) -> Step:
    register, offset, size = raw & 63, raw >> 6 & 31, (raw >> 11) + 1
    if register != _MODE_REGISTER:
        raise instruction.unsupported(f"hardware register {register} (only MODE, 1, is supported)")
    mask = np.uint32(((1 << size) - 1) << offset & 0xFFFFFFFF)
    if instruction.mnemonic == "s_getreg_b32":
        write = scalar_writer(instruction, instruction.fields["sdst"], "u32")
        return lambda waves: write(waves, (waves.mode_register & mask) >> np.uint32(offset))
    if instruction.mnemonic == "s_setreg_b32":
        source = scalar_source(instruction, instruction.fields["sdst"], "u32")
    else:
        literal = np.uint32(instruction.fields["literal"])
        source = lambda waves: literal  # noqa: E731

    def step(waves: Wavefronts) -> None:
        value = source(waves)
        if np.ndim(value) and (value != value[0]).any():
            raise instruction.unsupported("MODE set to different values by wavefronts")
        waves.set_mode((waves.mode_register & ~mask) | (value << np.uint32(offset) & mask))

    return step
