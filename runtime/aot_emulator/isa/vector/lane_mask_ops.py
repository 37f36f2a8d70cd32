"""VALU instructions that read or write lane masks, or whose fields have a special meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.floats import division
from aot_emulator.isa.modifiers import Modifiers
from aot_emulator.isa.operands import DTYPES, Registers, Step, is_null, scalar_source, scalar_target
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import VCC, Wavefronts

from .integer_ops import widened

# With lane masks


def _mask_reader(instruction: Instruction) -> Callable[[Wavefronts], Array]:
    """Return the reader of an instruction's lane mask: src2 in VOP3 and VOP3SD, otherwise VCC."""
    number = instruction.fields.get("src2", VCC)
    if number < 128 and not is_null(instruction, number):
        return lambda waves: waves.lane_mask(number)
    source = scalar_source(instruction, number, "u64")
    shifts = np.arange(instruction.arch.lanes, dtype=np.uint64)
    return lambda waves: (np.asarray(source(waves), np.uint64)[..., None] >> shifts & np.uint64(1)).astype(bool)


def _mask_target(instruction: Instruction) -> int:
    """Return the destination of a lane mask result: sdst, or VCC in encodings without it."""
    return scalar_target(instruction, instruction.fields.get("sdst", VCC))


def _bind_select(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    kind = f"f{instruction.operation[-2:]}"
    first, second = changes.sources([kind, kind])
    mask, write = _mask_reader(instruction), changes.destination(kind, False)
    changes.refuse_clamp()
    return lambda waves: write(waves, np.where(mask(waves), second(waves), first(waves)))


def _bind_carry(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    """Bind v_add_co_u32, v_subbrev_co_u32 and similar: the carry-out is VCC or sdst, the carry-in a lane mask."""
    name = instruction.operation
    changes.refuse_clamp()
    first, second = changes.sources(["u32", "u32"])
    if "rev" in name:
        first, second = second, first
    write, target = changes.destination("u32", False), _mask_target(instruction)
    carry = _mask_reader(instruction) if name.startswith(("v_addc", "v_subb")) else None
    subtract = name.startswith("v_sub")

    def step(waves: Wavefronts) -> None:
        a, b = first(waves).astype(np.int64), second(waves).astype(np.int64)
        extra = 0 if carry is None else carry(waves)
        total = a - b - extra if subtract else a + b + extra
        overflow = (total < 0) | (total > 0xFFFFFFFF)
        write(waves, (total & 0xFFFFFFFF).astype(np.uint32))
        waves.write_lane_mask(target, np.broadcast_to(overflow, waves.shape))

    return step


def _bind_wide_multiply(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    kind = "u" if "u64" in instruction.mnemonic else "i"
    changes.refuse_clamp()
    first, second, addend = changes.sources([f"{kind}32", f"{kind}32", f"{kind}64"])
    write, target = changes.destination(f"{kind}64", False), _mask_target(instruction)

    def step(waves: Wavefronts) -> None:
        product = widened(np.multiply)(first(waves), second(waves))
        other = addend(waves)
        total = product + other
        overflow = total < product if kind == "u" else ((product ^ total) & (other ^ total)) < 0
        write(waves, np.broadcast_to(total, waves.shape))
        waves.write_lane_mask(target, np.broadcast_to(overflow, waves.shape))

    return step


def _bind_div_scale(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    kind = instruction.mnemonic[-3:]
    readers, write = changes.sources([kind] * 3), changes.destination(kind, False)
    changes.refuse_clamp()
    target = _mask_target(instruction)

    def step(waves: Wavefronts) -> None:
        value, mask = division.div_scale(*np.broadcast_arrays(*(read(waves) for read in readers)))
        write(waves, value)
        waves.write_lane_mask(target, np.broadcast_to(mask, waves.shape))

    return step


def _bind_div_fmas(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    kind = instruction.mnemonic[-3:]
    readers, write = changes.sources([kind] * 3), changes.destination(kind, False)
    changes.refuse_clamp()

    def step(waves: Wavefronts) -> None:
        values = np.broadcast_arrays(*(read(waves) for read in readers))
        a, b, c = values
        write(waves, division.div_fmas(a, b, c, waves.lane_mask(VCC)))

    return step


def _truth(table: int, sources: list[Array], dtype: Any) -> Array:
    """Evaluate a bitwise function given by its truth table; the first source is the most significant index bit."""
    half = 1 << len(sources) >> 1
    ones = (1 << half) - 1
    low, differs = table & ones, (table ^ table >> half) & ones
    if not sources or not differs:
        return _truth(low, sources[1:], dtype) if sources else dtype(-(table & 1) & np.iinfo(dtype).max)
    changed = sources[0] if differs == ones else sources[0] & _truth(differs, sources[1:], dtype)
    return changed if not low else _truth(low, sources[1:], dtype) ^ changed


def _bind_bit_operation(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    """Bind v_bitop3_b32 and v_bitop3_b16: any function of three bits, with its truth table in the modifier fields."""
    field, kind = instruction.field, f"u{instruction.mnemonic[-2:]}"
    table = field("omod") << 6 | field("abs") << 3 | field("neg")
    readers = [changes.raw_source(position, number, kind) for position, number in enumerate(changes.numbers())]
    write = changes.destination(kind, True)
    dtype = DTYPES[kind].type

    def step(waves: Wavefronts) -> None:
        write(waves, np.broadcast_to(_truth(table, [read(waves) for read in readers], dtype), waves.shape))

    return step


def _bind_count_below(instruction: Instruction, layout: Registers, changes: Modifiers) -> Step:
    """Bind v_mbcnt_lo and _hi: count the bits of lower lanes in the low or high word of a mask, plus an addend."""
    first = 32 if "_hi_" in instruction.mnemonic else 0
    changes.refuse_clamp()
    mask, base = changes.sources(["u32", "u32"])
    write = changes.destination("u32", False)
    lanes = range(instruction.arch.lanes)
    below = np.array([(1 << min(max(lane - first, 0), 32)) - 1 for lane in lanes], np.uint32)
    return lambda waves: write(waves, np.bitwise_count(mask(waves) & below) + base(waves))


WITH_LANE_MASKS: dict[str, Callable[[Instruction, Registers, Modifiers], Step]] = {
    "v_cndmask_b32": _bind_select,
    "v_cndmask_b16": _bind_select,
    "v_mbcnt_lo_u32_b32": _bind_count_below,
    "v_mbcnt_hi_u32_b32": _bind_count_below,
    **{f"v_{name}_co_u32": _bind_carry for name in ("add", "sub", "subrev", "addc", "subb", "subbrev")},
    "v_mad_u64_u32": _bind_wide_multiply,
    "v_mad_i64_i32": _bind_wide_multiply,
    **{f"v_div_scale_{kind}": _bind_div_scale for kind in ("f32", "f64")},
    **{f"v_div_fmas_{kind}": _bind_div_fmas for kind in ("f32", "f64")},
    "v_bitop3_b32": _bind_bit_operation,
    "v_bitop3_b16": _bind_bit_operation,
}
