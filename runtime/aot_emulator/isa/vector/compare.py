"""Vector comparisons: VOPC, its VOP3, SDWA and DPP forms (chapter "VOPC").

Each writes a lane mask. v_cmpx also writes EXEC; on RDNA it writes only EXEC.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.floats import formats
from aot_emulator.isa.modifiers import modifiers
from aot_emulator.isa.operands import Registers, Step, scalar_target
from aot_emulator.state.arrays import Array
from aot_emulator.state.wavefronts import EXEC, VCC, Wavefronts

from .vector_op import flush_input

Comparison = Callable[[Array, Array], Array]


def _not(compare: Comparison) -> Comparison:
    return lambda a, b: ~compare(a, b)


def _never(a: Array, b: Array) -> Array:
    return np.zeros(np.broadcast_shapes(a.shape, b.shape), bool)


def _unordered(a: Array, b: Array) -> Array:
    return np.isnan(a) | np.isnan(b)


def _differ(a: Array, b: Array) -> Array:
    return (a < b) | (a > b)


_FLOATS: dict[str, Comparison] = {
    "f": _never,
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "lg": _differ,
    "ge": np.greater_equal,
    "o": _not(_unordered),
    "u": _unordered,
    "nge": _not(np.greater_equal),
    "nlg": _not(_differ),
    "ngt": _not(np.greater),
    "nle": _not(np.less_equal),
    "neq": np.not_equal,
    "nlt": _not(np.less),
    "tru": _not(_never),
}
_INTEGERS: dict[str, Comparison] = {
    "f": _never,
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "ne": np.not_equal,
    "ge": np.greater_equal,
    "t": _not(_never),
}
OPS: dict[str, tuple[str, Comparison]] = {
    f"{name}_{kind}": (kind, compare)
    for kinds, table in ((("f16", "f32", "f64"), _FLOATS), (("i16", "u16", "i32", "u32", "i64", "u64"), _INTEGERS))
    for kind in kinds
    for name, compare in table.items()
}
"""(kind of the sources, comparison) by mnemonic suffix, after `v_cmp_` or `v_cmpx_`."""


def _is_of_class(value: Array, classes: Array) -> Array:
    return (classes >> formats.classify(value).astype(np.uint32) & 1).astype(bool)


def bind(instruction: Instruction, layout: Registers) -> Step | None:
    """Return the step of a comparison, or None for other instructions."""
    name = instruction.operation
    prefix = next((prefix for prefix in ("v_cmp_", "v_cmpx_") if name.startswith(prefix)), None)
    if prefix is None:
        return None
    changes = modifiers(instruction, layout)
    changes.refuse_clamp()
    operation = name.removeprefix(prefix)
    compare: Comparison
    if operation.startswith("class_"):
        kinds, compare = [operation[-3:], "u16" if operation.endswith("f16") else "u32"], _is_of_class
    elif operation in OPS:
        kind, compare = OPS[operation]
        kinds = [kind, kind]
    else:
        return None
    first, second = changes.sources(kinds)
    to_exec = prefix == "v_cmpx_"
    target = EXEC if to_exec and instruction.arch.isa != "cdna" else _target(instruction)
    flushes = kinds[0].startswith("f") and not operation.startswith("class_")

    def step(waves: Wavefronts) -> None:
        a, b = first(waves), second(waves)
        if flushes and not waves.plain:
            a, b = flush_input(waves.mode, a), flush_input(waves.mode, b)
        lanes = compare(a, b)
        if lanes.shape != waves.shape:
            lanes = np.broadcast_to(lanes, waves.shape)
        waves.write_lane_mask(target, lanes)
        if to_exec and target != EXEC:
            waves.write_lane_mask(EXEC, waves.lane_mask(target))

    return changes.around(step)


def _target(instruction: Instruction) -> int:
    """Return the destination of the mask: `vdst` in VOP3, `sdst` in SDWA with bit `sd`, otherwise VCC."""
    if instruction.encoding.endswith("_SDWA_SDST"):
        return instruction.fields["sdst"] if instruction.fields["sd"] else VCC
    return scalar_target(instruction, instruction.fields.get("vdst", VCC))
