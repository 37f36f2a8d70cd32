"""Descriptions of VALU instructions, and their evaluation under MODE."""

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
    """Semantics of an instruction.

    Attributes:
        kinds: kinds of the result and the sources. `=kind` denotes the old destination as a source.
        function: computes the result from the sources.
        rounded: like `function`, with the rounding mode as last argument, for instructions that use MODE's rounding.
            None for instructions that are exact or have a fixed rounding.
        saturating: like `function`, for integer instructions with a saturating `clamp`.
        ieee: `function` has a keyword `ieee`.
        keeps_high: a 16-bit result preserves the upper half of the destination; otherwise it is cleared.
        numerics: `function` has a keyword `numerics`, the launch's `Numerics`.
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
    """Return a `VectorOp.function` that computes a dot product of elements of a format in fp32."""
    return lambda a, b, c, numerics: arithmetic.dot(a, b, c, fmt, numerics.dot_keeps_denormals)


def of_arch(op: VectorOp, arch: Arch) -> VectorOp:
    """Specialise an instruction for an architecture.

    RDNA4 has no IEEE mode, so minimum and maximum do not quiet NaNs. `Numerics` only applies to CDNA.
    """
    if op.numerics and arch.isa != "cdna":
        return replace(op, function=partial(op.function, numerics=OF_RDNA), numerics=False)
    if arch.isa != "rdna4" or not op.ieee:
        return op
    return replace(op, function=partial(op.function, ieee=False), ieee=False)


def evaluate(op: VectorOp, waves: Wavefronts, values: list[Any]) -> Any:
    """Evaluate an instruction under the wavefronts' MODE."""
    function, arguments = op.function, []
    if op.numerics:
        function = partial(function, numerics=waves.batch.numerics)
    if waves.plain or not op.is_float:
        return function(*values)
    mode = waves.mode
    values = [flush_input(mode, value) for value in values]
    if op.rounded is not None:
        # The rounding mode is that of the result type; conversions to integers have a fixed rounding.
        function, arguments = op.rounded, [mode.round32 if op.kinds[0] == "f32" else mode.round16_64]
    result = function(*values, *arguments, **({"ieee": mode.ieee} if op.ieee else {}))
    result = flush_output(mode, op.kinds[0], result)
    return _without_overflow(result, values) if op.kinds[0] == "f16" and mode.fp16_ovfl else result


def flush_input(mode: float_mode.FloatMode, value: Any) -> Any:
    """Flush denormals of a source as MODE requires."""
    if value.dtype.kind != "f" or (mode.keep_in32 if value.dtype.itemsize == 4 else mode.keep_in16_64):
        return value
    return formats.flush_denormals(value)


def flush_output(mode: float_mode.FloatMode, kind: str, value: Any) -> Any:
    """Flush denormals of a result as MODE requires."""
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
