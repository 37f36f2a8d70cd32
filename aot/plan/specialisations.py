"""Specialisations of a kernel, as Triton's JIT makes them: configs with a `signature` and `constants`.

A config's signature gives the types of run-time parameters, and properties that its code assumes (`*fp16:16`: the
address is a multiple of 16). Its constants are parameters whose values are compiled in. This module derives the
condition on the calls that the config serves, so that no call reaches code with a wrong assumption.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aot.manifest.schema import BindSpec, ConfigSpec, LaunchSpec, OpSpec
from aot_runtime.contract import records
from aot_runtime.contract.dtypes import DTYPES, SCALAR_TYPES
from aot_runtime.contract.expressions import parse
from aot_runtime.contract.layout import ALIGNMENT
from aot_runtime.contract.names import scalar_kind
from aot_runtime.errors import ExpressionError

from .constants import literal

HINTS = (DIVISIBLE, RANGED) = (str(ALIGNMENT), "32bits")
"""Assumptions of code: a value or address is a multiple of 16; offsets from a pointer fit 32 bits."""
_TYPE = re.compile(r"(\*?)(\w+)((?::\w+)*)\Z")
_DTYPES = {dtype.triton: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class ParameterType:
    """An entry of a signature.

    Attributes:
        type: as Triton spells it: `*fp16`, `i32`.
        dtype: the dtype of a pointer's elements; empty for any other type.
    """

    type: str
    dtype: str
    divisible: bool
    ranged: bool


def parameter_type(text: str) -> ParameterType:
    """Parse an entry of a signature, such as `*fp16:16:32bits` or `i32:16`. Raises ValueError."""
    match = _TYPE.match(text)
    if match is None:
        raise ValueError(f"'{text}' is not a type: write one as in i32, i32:16, *fp16:16 or *fp16:16:32bits")
    star, name, rest = match.groups()
    known = _DTYPES if star else SCALAR_TYPES
    hints = rest.split(":")[1:]
    if name not in known:
        raise ValueError(f"'{text}': unknown type '{star}{name}'; known: {', '.join(star + item for item in known)}")
    for hint in hints:
        if hint not in (HINTS if star else (DIVISIBLE,)):
            raise ValueError(f"'{text}': unknown hint '{hint}'; known: {DIVISIBLE}, and of a pointer {RANGED}")
    return ParameterType(star + name, _DTYPES[name] if star else "", DIVISIBLE in hints, RANGED in hints)


def is_specialised(entry: ConfigSpec) -> bool:
    """Return True for a config that is a specialisation."""
    return bool(entry.signature or entry.constants)


def condition(entry: ConfigSpec, launch: LaunchSpec, op: OpSpec, tensors: Mapping[str, records.Tensor]) -> str:
    """Return the condition on the calls that a config serves: its `when`, and the assumptions of its code.

    Raises:
        ValueError: an entry of the signature is wrong, or nothing in the config tells when a constant is right.
    """
    operands = _Operands(launch, op, tensors)
    parts = [f"({entry.when})"] if entry.when != "" else []
    for parameter, text in entry.signature.items():
        parts += operands.typed(parameter, parameter_type(text))
    for parameter, value in entry.constants.items():
        parts += operands.equal(parameter, value, str(entry.when))
    return " and ".join(dict.fromkeys(parts)) if len(parts) > 1 or not entry.when else str(entry.when)


@dataclass(frozen=True)
class _Operands:
    """The arguments of a call that a launch's parameters get."""

    launch: LaunchSpec
    op: OpSpec
    tensors: Mapping[str, records.Tensor]

    def typed(self, parameter: str, wanted: ParameterType) -> Iterator[str]:
        operand = self._operand(parameter)
        tensor = self.tensors.get(operand)
        if wanted.dtype:
            if tensor is None:
                raise ValueError(f"'{parameter}' is a pointer in the signature, and is not bound to a tensor")
            if tensor.optional:
                yield f"given({operand})"
            if tensor.dtype in self.op.dtypes:
                yield f"{tensor.dtype} == '{wanted.dtype}'"
            elif tensor.dtype != wanted.dtype:
                raise ValueError(f"'{parameter}' points to {wanted.dtype}, and '{operand}' is {tensor.dtype}")
            if wanted.divisible:
                yield f"is_aligned({operand})"
            if wanted.ranged:
                yield f"fits_32_bits({operand})"
            return
        if tensor is not None or not self._is_known(operand):
            raise ValueError(f"'{parameter}' is {wanted.type} in the signature, and is not bound to a number")
        if wanted.divisible:
            yield f"({operand}) % {ALIGNMENT} == 0"
        given, kind = self.op.scalars.get(operand), SCALAR_TYPES[wanted.type]
        if kind.low is not None and (given is None or given.type != wanted.type):
            yield f"{kind.low} <= ({operand}) and ({operand}) <= {kind.high}"

    def equal(self, parameter: str, value: Any, when: str) -> Iterator[str]:
        operand = self._operand(parameter)
        if operand in self.tensors and value is None:
            if not self.tensors[operand].optional:
                raise ValueError(f"'{parameter}' is None, and '{operand}' is not optional")
            yield f"not given({operand})"
        elif not self._is_known(operand) or self._says(when, operand):
            return
        elif isinstance(value, bool | int | float | str) and self._kind(operand) in (type(value), None):
            yield f"({operand}) == {literal(value)}"
        else:
            raise ValueError(f"`when` has to say which '{operand}' the constant '{parameter}' is for")

    def _operand(self, parameter: str) -> str:
        """Return the tensor or the expression that a parameter, or an element of a tuple, is bound to."""
        head, _, last = parameter.rpartition(".")
        bound = self.launch.bind.get(parameter, self.launch.bind.get(head))
        if parameter not in self.launch.bind and isinstance(bound, list) and last.isdigit() and int(last) < len(bound):
            bound = bound[int(last)]
        if isinstance(bound, BindSpec):
            bound = bound.value
        name = parameter if bound is None or isinstance(bound, list) else str(bound)
        return (
            name.removesuffix("_ptr")
            if name not in self.tensors and name.removesuffix("_ptr") in self.tensors
            else name
        )

    def _is_known(self, operand: str) -> bool:
        """Return True for a value of each call; a block of a config is none."""
        known = {*self.op.scalars, *self.op.derived, *(dim.extent for t in self.tensors.values() for dim in t.shape)}
        try:
            expression = parse(operand)
        except ExpressionError:
            return False
        return bool(expression.reads) and expression.names <= known

    def _kind(self, operand: str) -> type | None:
        given = self.op.scalars.get(operand)
        return scalar_kind(given.type) if given is not None else None

    @staticmethod
    def _says(when: str, operand: str) -> bool:
        return when != "" and bool(parse(operand).reads & parse(when).reads)
