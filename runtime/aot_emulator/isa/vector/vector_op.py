"""What describes an instruction of the vector ALU, and how MODE changes its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from aot_emulator.isa.archs import Arch
from aot_emulator.isa.floats import arithmetic, formats
from aot_emulator.state import float_mode
from aot_emulator.state.numerics import Numerics
from aot_emulator.state.wavefronts import Wavefronts


@dataclass(frozen=True)
class VectorOp:
    """One instruction's semantics.

    Attributes:
        kinds: of the result, then of the sources. A source that is the old destination is written `=kind`.
        function: takes the sources.
        rounded: as `function` with the rounding mode as a further argument, for instructions that obey MODE's. An
            instruction without it is exact, or rounds in one way only.
        saturating: as `function`, for integers whose `clamp` modifier saturates.
        ieee: `function` has a keyword `ieee`.
        keeps_high: a 16-bit result leaves the upper half of the destination; else it is cleared.
        numerics: `function` has a keyword `numerics`, the launch's choices.
    """

    kinds: tuple[str, ...]
    function: Callable[..., Any]
    rounded: Callable[..., Any] | None = None
    saturating: Callable[..., Any] | None = None
    ieee: bool = False
    keeps_high: bool = False
    numerics: bool = False

    @property
    def is_float(self) -> bool:
        return any(kind.lstrip("=").startswith("f") for kind in self.kinds)


def vector_op(kinds: str, function: Callable[..., Any], **fields: Any) -> VectorOp:
    return VectorOp(tuple(kinds.split()), function, **fields)


OF_RDNA = Numerics(dot_keeps_denormals=True)


def dot_of(fmt: formats.FloatFormat) -> Callable[..., Any]:
    """A dot product of elements of a format with an fp32 number, for `VectorOp.function`."""
    return lambda a, b, c, numerics: arithmetic.dot(a, b, c, fmt, numerics.dot_keeps_denormals)


def of_arch(op: VectorOp, arch: Arch) -> VectorOp:
    """The instruction as an arch has it.

    RDNA 4 has no IEEE mode, and minimum and maximum quiet no NaN then. `Numerics` is about CDNA.
    """
    if op.numerics and arch.isa != "cdna":
        return replace(op, function=partial(op.function, numerics=OF_RDNA), numerics=False)
    if arch.isa != "rdna4" or not op.ieee:
        return op
    return replace(op, function=partial(op.function, ieee=False), ieee=False)


def evaluate(op: VectorOp, waves: Wavefronts, values: list[Any]) -> Any:
    """The result of an instruction under whatever MODE says."""
    function, arguments = op.function, []
    if op.numerics:
        function = partial(function, numerics=waves.batch.numerics)
    if waves.plain or not op.is_float:
        return function(*values)
    mode = waves.mode
    values = [flush_input(mode, value) for value in values]
    if op.rounded is not None:
        # What rounds is the result; a conversion to an integer rounds in one way only.
        function, arguments = op.rounded, [mode.round32 if op.kinds[0] == "f32" else mode.round16_64]
    result = function(*values, *arguments, **({"ieee": mode.ieee} if op.ieee else {}))
    result = flush_output(mode, op.kinds[0], result)
    return _without_overflow(result, values) if op.kinds[0] == "f16" and mode.fp16_ovfl else result


def flush_input(mode: float_mode.FloatMode, value: Any) -> Any:
    """A source, its denormals made 0 if MODE says so."""
    if value.dtype.kind != "f" or (mode.keep_in32 if value.dtype.itemsize == 4 else mode.keep_in16_64):
        return value
    return formats.flush_denormals(value)


def flush_output(mode: float_mode.FloatMode, kind: str, value: Any) -> Any:
    """A result, its denormals made 0 if MODE says so."""
    if kind[0] != "f" or (mode.keep_out32 if kind == "f32" else mode.keep_out16_64):
        return value
    return formats.flush_denormals(np.asarray(value, f"f{int(kind[1:]) // 8}"))


def _without_overflow(result: Any, values: list[Any]) -> Any:
    given = np.zeros((), bool)
    for value in values:
        if value.dtype.kind == "f":
            given = given | np.isinf(value)
    largest = np.float16(65504)
    return np.where(np.isinf(result) & ~given, np.copysign(largest, result), result)
