"""VALU instructions that move values between lanes, and between VGPRs and AGPRs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.operands import (
    VGPR,
    Registers,
    Step,
    half_writer,
    register_reader,
    register_writer,
    scalar_source,
    scalar_target,
    vector_register,
    vector_source,
)
from aot_emulator.state.wavefronts import M0, Wavefronts

# Between lanes


def _source_row(instruction: Instruction, layout: Registers) -> int:
    number = instruction.fields["src0"]
    if number < VGPR:
        raise instruction.unsupported("source is not a vector register")
    return vector_register(instruction, number, False, layout, 1)


def _bind_read_first_lane(instruction: Instruction, layout: Registers) -> Step:
    row, target = _source_row(instruction, layout), _scalar_target(instruction)

    def step(waves: Wavefronts) -> None:
        active = waves.active
        # With EXEC = 0, lane 0 is read, as argmax returns 0.
        lane = 0 if active is None else active.argmax(1)
        waves.write_scalar(target, waves.u32[row][np.arange(waves.count), lane])

    return step


def _scalar_target(instruction: Instruction) -> int:
    # CDNA's tables declare the field as a vector register.
    return scalar_target(instruction, instruction.fields["vdst"] % VGPR)


def _bind_read_lane(instruction: Instruction, layout: Registers) -> Step:
    row, target = _source_row(instruction, layout), _scalar_target(instruction)
    lane = scalar_source(instruction, instruction.fields["src1"], "u32")
    last = instruction.arch.lanes - 1
    return lambda waves: waves.write_scalar(
        target, waves.u32[row][np.arange(waves.count), (lane(waves) & last).astype(np.intp)]
    )


def _bind_write_lane(instruction: Instruction, layout: Registers) -> Step:
    row = vector_register(instruction, instruction.fields["vdst"], False, layout, 1)
    value, lane = (scalar_source(instruction, instruction.fields[name], "u32") for name in ("src0", "src1"))
    last = instruction.arch.lanes - 1
    return lambda waves: waves.write_lane(row, (lane(waves) & last).astype(np.intp), value(waves))


def _bind_swap_halves(instruction: Instruction, layout: Registers) -> Step:
    rows = _source_row(instruction, layout), vector_register(instruction, instruction.fields["vdst"], False, layout, 1)
    chosen = instruction.field("opsel")
    places = tuple(zip(rows, (chosen & 1, chosen >> 3), strict=True))
    first, second = (register_reader(row, "u16", half) for row, half in places)
    write_first, write_second = (half_writer(row, "u16", half) for row, half in places)

    def step(waves: Wavefronts) -> None:
        kept = first(waves).copy()
        write_first(waves, second(waves))
        write_second(waves, kept)

    return step


def _bind_swap(instruction: Instruction, layout: Registers) -> Step:
    first, second = (
        _source_row(instruction, layout),
        vector_register(instruction, instruction.fields["vdst"], False, layout, 1),
    )

    def step(waves: Wavefronts) -> None:
        kept = waves.u32[first].copy()
        waves.write(first, waves.u32[second])
        waves.write(second, kept)

    return step


def _bind_exchange_halves(instruction: Instruction, layout: Registers) -> Step:
    """Bind v_permlane64_b32: swap the halves of a wave64, including inactive lanes. It has no effect in wave32."""
    if instruction.arch.lanes == 32:
        return lambda waves: None
    row = _source_row(instruction, layout)
    target = vector_register(instruction, instruction.fields["vdst"], False, layout, 1)
    return lambda waves: waves.write(target, np.roll(waves.u32[row], 32, axis=1))


def _bind_row_swap(instruction: Instruction, layout: Registers) -> Step:
    """Bind v_permlane16_swap, v_permlane32_swap: swap odd rows of one register with even rows of the other."""
    if instruction.field("omod") or instruction.field("clmp"):
        raise instruction.unsupported("clamp or omod")
    width = int(instruction.mnemonic.removeprefix("v_permlane")[:2])
    even, odd = (
        _source_row(instruction, layout),
        vector_register(instruction, instruction.fields["vdst"], False, layout, 1),
    )

    def step(waves: Wavefronts) -> None:
        if waves.active is not None:
            raise instruction.unsupported("row swap with inactive lanes")
        first, second = (waves.u32[row].reshape(waves.count, -1, 2, width) for row in (even, odd))
        first[:, :, 0], second[:, :, 1] = second[:, :, 1].copy(), first[:, :, 0].copy()

    return step


def _bind_relative_move(instruction: Instruction, layout: Registers) -> Step:
    """Bind RDNA's v_movrels_b32 and v_movreld_b32, which add M0 to the register number of source or destination."""
    moves_source = instruction.mnemonic == "v_movrels_b32"
    target = vector_register(instruction, instruction.fields["vdst"], False, layout, 1)
    first = _source_row(instruction, layout) if moves_source else target
    read = vector_source(instruction, instruction.fields["src0"], "u32", layout)

    def step(waves: Wavefronts) -> None:
        rows = first + waves.scalars[M0 + 1].astype(np.int64)
        if rows.max() >= layout.total:
            raise instruction.unsupported(f"register v{rows.max()}: the kernel has {layout.total} of them")
        wave = np.arange(waves.count)
        if moves_source:
            waves.write(target, waves.u32[rows, wave])
            return
        value = np.broadcast_to(read(waves), waves.shape)
        waves.u32[rows, wave] = value if waves.active is None else np.where(waves.active, value, waves.u32[rows, wave])

    return step


def _bind_accumulation(instruction: Instruction, layout: Registers) -> Step:
    name, source = instruction.mnemonic, instruction.fields["src0"]
    from_accumulation = "_write" not in name
    if from_accumulation:
        read = register_reader(vector_register(instruction, source, True, layout, 1), "u32")
    else:
        read = vector_source(instruction, source, "u32", layout)
    row = vector_register(instruction, instruction.fields["vdst"], "_read" not in name, layout, 1)
    write = register_writer(row, "u32")
    return lambda waves: write(waves, read(waves))


def _bind_permute_row(instruction: Instruction, layout: Registers) -> Step:
    """Bind v_permlane16_b32 and v_permlanex16_b32: permute the lanes of a row of 16, or of the other row of a pair.

    Four bits of a 64-bit operand select each source lane. op_sel[0] allows reading inactive lanes, op_sel[1] makes them
    0.
    """
    row = _source_row(instruction, layout)
    target = vector_register(instruction, instruction.fields["vdst"], False, layout, 1)
    low, high = (scalar_source(instruction, instruction.fields[name], "u32") for name in ("src1", "src2"))
    reads_inactive, zero = bool(instruction.field("opsel") & 1), bool(instruction.field("opsel") & 2)
    lane = np.arange(instruction.arch.lanes)
    first = (lane & ~15) ^ (16 if "permlanex16" in instruction.mnemonic else 0)
    shifts = (lane % 8 * 4).astype(np.uint32)

    def step(waves: Wavefronts) -> None:
        words = (np.broadcast_to(word(waves), waves.count)[:, None] for word in (low, high))
        below, above = words
        source = first + (np.where(lane % 16 < 8, below, above) >> shifts & np.uint32(15))
        value = np.take_along_axis(waves.u32[row], source, 1)
        active = waves.active
        if active is None or reads_inactive:
            waves.write(target, value)
            return
        valid = np.take_along_axis(active, source, 1)
        waves.write(target, np.where(valid, value, np.uint32(0) if zero else waves.u32[target]))

    return step


CROSS_LANE: dict[str, Callable[[Instruction, Registers], Step]] = {
    "v_readfirstlane_b32": _bind_read_first_lane,
    "v_readlane_b32": _bind_read_lane,
    "v_writelane_b32": _bind_write_lane,
    "v_swap_b32": _bind_swap,
    "v_permlane16_swap_b32": _bind_row_swap,
    "v_permlane32_swap_b32": _bind_row_swap,
    "v_movreld_b32": _bind_relative_move,
    "v_movrels_b32": _bind_relative_move,
    "v_permlane64_b32": _bind_exchange_halves,
    "v_swap_b16": _bind_swap_halves,
    "v_permlane16_b32": _bind_permute_row,
    "v_permlanex16_b32": _bind_permute_row,
    "v_accvgpr_read": _bind_accumulation,
    "v_accvgpr_read_b32": _bind_accumulation,
    "v_accvgpr_write": _bind_accumulation,
    "v_accvgpr_write_b32": _bind_accumulation,
    "v_accvgpr_mov_b32": _bind_accumulation,
}
