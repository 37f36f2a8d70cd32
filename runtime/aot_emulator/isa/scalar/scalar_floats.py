"""Floating-point SALU instructions (gfx1151, gfx12): SOP1, SOP2, SOPC, and scalar transcendental functions.

Each applies the operation of the VALU instruction with the same name to one value per wavefront.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.modifiers import clamp_float, with_signs
from aot_emulator.isa.operands import DTYPES, Reader, Step, scalar_source, scalar_writer
from aot_emulator.isa.vector import compare, vector_alu
from aot_emulator.isa.vector.vector_op import VectorOp, evaluate, flush_input, of_arch
from aot_emulator.state.wavefronts import Wavefronts

_LITERAL = 255
_ARITHMETIC = ("add", "sub", "mul", "fmac", "min", "max", "minimum", "maximum", "ceil", "floor", "trunc", "rndne")
_OPS: dict[str, VectorOp] = {
    **{f"s_{name}_f{bits}": vector_alu.OPS[f"v_{name}_f{bits}"] for name in _ARITHMETIC for bits in (16, 32)},
    **{f"s_{name}_f32": vector_alu.OPS[f"v_{name}_f32"] for name in ("fmamk", "fmaak")},
    **{
        f"s_cvt_{name}": vector_alu.OPS[f"v_cvt_{name}"]
        for name in ("f32_i32", "f32_u32", "i32_f32", "u32_f32", "f16_f32", "f32_f16")
    },
    "s_cvt_pk_rtz_f16_f32": vector_alu.OPS["v_cvt_pkrtz_f16_f32"],
    **{
        f"v_s_{name}_f{bits}": vector_alu.OPS[f"v_{name}_f{bits}"]
        for name in ("exp", "log", "rcp", "rsq", "sqrt")
        for bits in (16, 32)
    },
}


def bind(instruction: Instruction) -> Step | None:
    """Return the step of a floating-point SALU instruction, or None for other instructions.

    Raises `UnsupportedInstructionError` if the architecture has no floating-point SALU.
    """
    step = _bind(instruction)
    if step is not None and not instruction.arch.scalar_floats:
        raise instruction.unsupported(f"{instruction.arch.name} has no floating-point SALU")
    return step


def _bind(instruction: Instruction) -> Step | None:
    name = instruction.operation
    if name == "s_cvt_hi_f32_f16":
        return _bind_high_half(instruction)
    if name in _OPS:
        return _bind_operation(instruction, of_arch(_OPS[name], instruction.arch))
    if name.startswith("s_cmp_") and name.removeprefix("s_cmp_") in compare.OPS:
        return _bind_comparison(instruction, *compare.OPS[name.removeprefix("s_cmp_")])
    return None


def _bind_operation(instruction: Instruction, op: VectorOp) -> Step:
    fields, is_vector_form = instruction.fields, instruction.base_encoding == "VOP3"
    target = fields["vdst" if is_vector_form else "sdst"]
    numbers = [fields[name] for name in (("src0",) if is_vector_form else ("ssrc0", "ssrc1")) if name in fields]
    numbers += [target if kind.startswith("=") else _LITERAL for kind in op.kinds[1 + len(numbers) :]]
    if instruction.field("omod") or instruction.field("opsel"):
        raise instruction.unsupported("a modifier")
    sources = [
        _signed_source(instruction, position, number, kind.removeprefix("="))
        for position, (number, kind) in enumerate(zip(numbers, op.kinds[1:], strict=True))
    ]
    kind, clamp = op.kinds[0], instruction.field("clmp")
    write, dtype = scalar_writer(instruction, target, kind), DTYPES[kind]

    def step(waves: Wavefronts) -> None:
        result = np.asarray(evaluate(op, waves, [source(waves) for source in sources]), dtype)
        write(waves, clamp_float(waves, result) if clamp else result)

    return step


def _signed_source(instruction: Instruction, position: int, number: int, kind: str) -> Reader:
    neg, absolute = instruction.field("neg") >> position & 1, instruction.field("abs") >> position & 1
    return with_signs(scalar_source(instruction, number, kind), bool(neg), bool(absolute))


def _bind_high_half(instruction: Instruction) -> Step:
    source = scalar_source(instruction, instruction.fields["ssrc0"], "u32")
    write, op = scalar_writer(instruction, instruction.fields["sdst"], "f32"), vector_alu.OPS["v_cvt_f32_f16"]

    def step(waves: Wavefronts) -> None:
        high = np.asarray(source(waves) >> np.uint32(16), np.uint16).view(np.float16)
        write(waves, evaluate(op, waves, [high]))

    return step


def _bind_comparison(instruction: Instruction, kind: str, comparison: compare.Comparison) -> Step:
    first, second = (scalar_source(instruction, instruction.fields[name], kind) for name in ("ssrc0", "ssrc1"))

    def step(waves: Wavefronts) -> None:
        values: list[Any] = [first(waves), second(waves)]
        waves.scc[...] = comparison(*(flush_input(waves.mode, value) for value in values))

    return step
