"""VALU instructions in VOP1, VOP2, VOP3 and VOP3SD, with DPP and SDWA (ISA chapter "Vector ALU Operations").

`compare` implements VOPC, and `packed_math` VOP3P.
"""

from __future__ import annotations

from typing import Any

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.modifiers import Modifiers, modifiers
from aot_emulator.isa.operands import Registers, Step
from aot_emulator.state.wavefronts import Wavefronts

from . import small_floats
from .arch_ops import CDNA_OPS, RDNA_OPS
from .conversion_ops import CONVERSION_OPS
from .cross_lane import CROSS_LANE
from .float_ops import FLOATS, OTHER_FLOATS, SHORT_FLOATS
from .integer_ops import INTEGER_WIDTHS, INTEGERS
from .lane_mask_ops import WITH_LANE_MASKS
from .vector_op import VectorOp, evaluate, of_arch

OPS: dict[str, VectorOp] = {
    **FLOATS,
    **SHORT_FLOATS,
    **OTHER_FLOATS,
    **INTEGER_WIDTHS,
    **INTEGERS,
    **CONVERSION_OPS,
    **RDNA_OPS,
    **CDNA_OPS,
}


# Binding

_NOTHING = ("v_nop", "v_clrexcp", "v_pipeflush")


def bind(instruction: Instruction, layout: Registers) -> Step | None:
    """Return the step of a VALU instruction, or None for other instructions."""
    name = instruction.operation
    if name in _NOTHING:
        return lambda waves: None
    if name in OPS:
        changes = modifiers(instruction, layout)
        return changes.around(_bind_plain(instruction, of_arch(OPS[name], instruction.arch), changes))
    if name in WITH_LANE_MASKS:
        changes = modifiers(instruction, layout)
        return changes.around(WITH_LANE_MASKS[name](instruction, layout, changes))
    if name in CROSS_LANE:
        return CROSS_LANE[name](instruction, layout)
    if name.startswith("v_cvt_"):
        changes = modifiers(instruction, layout)
        step = small_floats.bind(instruction, layout, changes)
        return None if step is None else changes.around(step)
    return None


def _bind_plain(instruction: Instruction, op: VectorOp, changes: Modifiers) -> Step:
    result, *kinds = op.kinds
    readers = changes.sources(kinds)
    write = changes.destination(result, op.keeps_high)
    finish = changes.finish(result, op.saturating is not None)
    function = op.saturating if changes.clamp and op.saturating is not None else op.function
    if not op.is_float:
        return _step(function, readers, write, finish)
    fast = _step(function, readers, write, finish)

    def slow(waves: Wavefronts) -> None:
        result = evaluate(op, waves, [read(waves) for read in readers])
        write(waves, result if finish is None else finish(waves, result))

    return slow if op.numerics else lambda waves: fast(waves) if waves.plain else slow(waves)


def _step(function: Any, readers: list[Any], write: Any, finish: Any) -> Step:
    if finish is not None:
        return lambda waves: write(waves, finish(waves, function(*(read(waves) for read in readers))))
    if len(readers) == 1:
        (first,) = readers
        return lambda waves: write(waves, function(first(waves)))
    if len(readers) == 2:
        first, second = readers
        return lambda waves: write(waves, function(first(waves), second(waves)))
    return lambda waves: write(waves, function(*(read(waves) for read in readers)))
