"""VOP3P without matrix instructions: packed and mixed arithmetic, dot products (ISA chapter "Packed Math")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.floats import arithmetic, conversions, formats
from aot_emulator.isa.modifiers import clamp_float, with_signs
from aot_emulator.isa.operands import DTYPES, VGPR, Reader, Registers, Step, constant, vector_register, vector_source
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import Wavefronts

from .vector_alu import OPS
from .vector_op import OF_RDNA, VectorOp, evaluate, of_arch, vector_op

_NAMES = ("src0", "src1", "src2")

_HALVES = {
    **{
        f"v_pk_{name}_f16": f"v_{name}_f16"
        for name in ("fma", "add", "mul", "min", "max", "minimum", "maximum", "minimum3", "maximum3")
    },
    **{
        f"v_pk_{name}_{kind}": f"v_{name}_{kind}"
        for name in ("mad", "add", "sub", "max", "min")
        for kind in ("i16", "u16")
    },
    **{f"v_pk_{name}": f"v_{name}" for name in ("mul_lo_u16", "lshlrev_b16", "lshrrev_b16", "ashrrev_i16")},
}
"""Instructions on packed 16-bit pairs, with the scalar operation that applies to each half."""
_DWORDS = {f"v_pk_{name}_f32": f"v_{name}_f32" for name in ("fma", "add", "mul")}
_MIXED = {f"v_{name}_{form}": form for name in ("mad", "fma") for form in ("mix_f32", "mixlo_f16", "mixhi_f16")}
_FLOAT_DOTS = {"v_dot2_f32_f16": formats.FP16, "v_dot2_f32_bf16": formats.BF16}
_DOTS: dict[str, Callable[..., Any]] = {
    f"v_dot{32 // bits}_{kind}32_{kind}{bits}": lambda a, b, c, clamp, bits=bits, kind=kind: arithmetic.dot_integer(
        a, b, c, bits, (kind == "i", kind == "i"), clamp=clamp
    )
    for bits in (16, 8, 4)
    for kind in "iu"
}
_TO_HALF = vector_op("f16 f32 f32 f32", arithmetic.fma_to_half, rounded=arithmetic.fma_to_half)
"""v_fma_mixlo_f16 and v_fma_mixhi_f16, with a single rounding to fp16."""
_MIXED_SIGN_DOTS = {"v_dot4_i32_iu8": 8, "v_dot8_i32_iu4": 4}
"""Element widths of dot products with per-operand signedness, which is given by `neg`."""


def bind(instruction: Instruction, layout: Registers) -> Step | None:
    """Return the step of a packed instruction, or None for other instructions."""
    name = instruction.operation
    if name in _HALVES:
        return _bind_halves(instruction, layout, of_arch(OPS[_HALVES[name]], instruction.arch))
    if name in _DWORDS:
        return _bind_dwords(instruction, layout, OPS[_DWORDS[name]])
    if name in _MIXED:
        return _bind_mixed(instruction, layout, _MIXED[name])
    if name in _FLOAT_DOTS:
        return _bind_float_dot(instruction, layout, _FLOAT_DOTS[name])
    if name in _DOTS:
        return _bind_dot(instruction, layout, _DOTS[name])
    if name in _MIXED_SIGN_DOTS:
        return _bind_mixed_sign_dot(instruction, layout, _MIXED_SIGN_DOTS[name])
    if name == "v_pk_mov_b32":
        return _bind_move(instruction, layout)
    return None


def _selections(instruction: Instruction) -> tuple[int, int]:
    field = instruction.field
    return field("opsel"), field("opsel_hi") | field("opsel_hi2") << 2


def _bind_halves(instruction: Instruction, layout: Registers, op: VectorOp) -> Step:
    kinds, field = op.kinds[1:], instruction.field
    row = vector_register(instruction, field("vdst"), False, layout, 1)
    clamp, kind = bool(field("clmp")), op.kinds[0]
    if clamp and kind != "f16" and op.saturating is None:
        raise instruction.unsupported("clamp on an instruction that does not saturate")

    def readers(selection: int, neg: int) -> list[Reader]:
        found = []
        for position, source_kind in enumerate(kinds):
            negate = bool(neg >> position & 1)
            if negate and source_kind != "f16":
                raise instruction.unsupported(f"neg on source {position}, which is not a float")
            number, half = instruction.fields[_NAMES[position]], selection >> position & 1
            found.append(with_signs(vector_source(instruction, number, source_kind, layout, half), negate, False))
        return found

    selections = _selections(instruction)
    halves = [readers(selections[0], field("neg")), readers(selections[1], field("neg_hi"))]

    def compute(waves: Wavefronts, sources: list[Reader]) -> Any:
        values = [read(waves) for read in sources]
        if clamp and op.saturating is not None:
            return np.asarray(op.saturating(*values), DTYPES[kind])
        result = np.asarray(evaluate(op, waves, values), DTYPES[kind])
        return clamp_float(waves, result) if clamp else result

    def step(waves: Wavefronts) -> None:
        low, high = (compute(waves, sources).view(np.uint16) for sources in halves)
        waves.write(row, conversions.pack16(low, high))

    return step


def _dword_source(instruction: Instruction, layout: Registers, position: int, high: int, kind: str) -> Reader:
    number = instruction.fields[_NAMES[position]]
    value = constant(instruction, number, kind)
    if value is not None and high and value.view(np.uint32):
        raise instruction.unsupported(f"high dword of constant source {position}, which is undocumented")
    if number >= VGPR:
        vector_register(instruction, number, False, layout, 2)
    return vector_source(instruction, number if value is not None else number + high, kind, layout)


def _bind_dwords(instruction: Instruction, layout: Registers, op: VectorOp) -> Step:
    row = vector_register(instruction, instruction.fields["vdst"], False, layout, 2)
    clamp = bool(instruction.field("clmp"))
    parts = []
    for selection, signs in zip(_selections(instruction), ("neg", "neg_hi"), strict=True):
        negate = instruction.field(signs)
        parts.append(
            [
                with_signs(
                    _dword_source(instruction, layout, i, selection >> i & 1, "f32"), bool(negate >> i & 1), False
                )
                for i in range(len(op.kinds) - 1)
            ]
        )

    def step(waves: Wavefronts) -> None:
        # Both are computed before either is written, as the destination may be a source.
        results = [evaluate(op, waves, [read(waves) for read in part]) for part in parts]
        for part, result in enumerate(results):
            value = clamp_float(waves, result) if clamp else result
            waves.write(row + part, np.asarray(value, np.float32).view(np.uint32))

    return step


def _bind_move(instruction: Instruction, layout: Registers) -> Step:
    if any(instruction.field(name) for name in ("neg", "neg_hi", "clmp")):
        raise instruction.unsupported("a modifier")
    row = vector_register(instruction, instruction.fields["vdst"], False, layout, 2)
    selection = instruction.field("opsel")
    low, high = (_dword_source(instruction, layout, i, selection >> i & 1, "u32") for i in (0, 1))

    def step(waves: Wavefronts) -> None:
        values = low(waves), np.array(high(waves))
        waves.write(row, values[0])
        waves.write(row + 1, values[1])

    return step


def _bind_mixed(instruction: Instruction, layout: Registers, form: str) -> Step:
    """Bind v_fma_mix (v_mad_mix in the tables).

    op_sel_hi marks fp16 sources, op_sel selects their half, and neg_hi means abs.
    """
    field = instruction.field
    halves, is_half = _selections(instruction)
    readers = []
    for position, name in enumerate(_NAMES):
        number, half = instruction.fields[name], bool(is_half >> position & 1)
        if half:
            source = _widened(vector_source(instruction, number, "f16", layout, halves >> position & 1))
        else:
            source = vector_source(instruction, number, "f32", layout)
        negate, absolute = bool(field("neg") >> position & 1), bool(field("neg_hi") >> position & 1)
        readers.append(with_signs(source, negate, absolute))
    row = vector_register(instruction, instruction.fields["vdst"], False, layout, 1)
    clamp, op = bool(field("clmp")), OPS["v_fma_f32"] if form == "mix_f32" else _TO_HALF

    def step(waves: Wavefronts) -> None:
        result = evaluate(op, waves, [read(waves) for read in readers])
        value = clamp_float(waves, result) if clamp else result
        if form == "mix_f32":
            waves.write(row, np.asarray(value, np.float32).view(np.uint32))
        else:
            waves.write_half(row, int(form == "mixhi_f16"), np.asarray(value, np.float16).view(np.uint16))

    return step


def _widened(read: Reader) -> Reader:
    return lambda waves: read(waves).astype(np.float32)


def _bind_dot(instruction: Instruction, layout: Registers, function: Callable[..., Any]) -> Step:
    if instruction.field("neg"):
        raise instruction.unsupported("neg of a dot product")
    return _dot_step(instruction, layout, lambda waves, *arguments: function(*arguments))


def _bind_float_dot(instruction: Instruction, layout: Registers, fmt: formats.FloatFormat) -> Step:
    if instruction.field("neg"):
        raise instruction.unsupported("neg of a dot product")

    is_cdna = instruction.arch.isa == "cdna"

    def function(waves: Wavefronts, a: Array, b: Array, c: Array, clamp: bool) -> Array:
        numerics = waves.batch.numerics if is_cdna else OF_RDNA
        total = arithmetic.dot(a, b, c.view(np.float32), fmt, numerics.dot_keeps_denormals)
        return clamp_float(waves, total) if clamp else total

    return _dot_step(instruction, layout, function)


def _bind_mixed_sign_dot(instruction: Instruction, layout: Registers, bits: int) -> Step:
    neg = instruction.field("neg")
    if neg & 4:
        raise instruction.unsupported("neg on the addend")
    signed = bool(neg & 1), bool(neg & 2)
    if instruction.field("clmp") and not any(signed):
        raise instruction.unsupported("clamp of unsigned products to a signed sum")
    return _dot_step(
        instruction, layout, lambda waves, a, b, c, clamp: arithmetic.dot_integer(a, b, c, bits, signed, clamp=clamp)
    )


def _dot_step(instruction: Instruction, layout: Registers, function: Callable[..., Any]) -> Step:
    if instruction.field("neg_hi") or instruction.field("opsel"):
        raise instruction.unsupported("modifier on a dot product")
    clamp = bool(instruction.field("clmp"))
    readers = [vector_source(instruction, instruction.fields[name], "u32", layout) for name in _NAMES]
    row = vector_register(instruction, instruction.fields["vdst"], False, layout, 1)

    def step(waves: Wavefronts) -> None:
        a, b, c = np.broadcast_arrays(*(read(waves) for read in readers))
        waves.write(row, function(waves, a, b, c, clamp).view(np.uint32))

    return step
