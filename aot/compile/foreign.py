"""Inline assembly and external functions in a kernel, which Triton passes on without checking them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aot_runtime.contract.arch import HIP

_FOREIGN = frozenset({"tt.elementwise_inline_asm", "ttg.inline_asm", "tt.extern_elementwise"})
_LANEWISE = frozenset(
    {
        *("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.load", "tt.addptr", "tt.bitcast"),
        *("tt.fp_to_fp", "tt.int_to_ptr", "tt.ptr_to_int", "tt.clampf", "tt.mulhiui", "tt.precise_sqrt"),
        *("tt.precise_divf", "ttg.convert_layout", "gluon.set_auto_layout"),
    }
)
_LANEWISE_DIALECTS = ("arith.", "math.")
"""Dialects whose operations are uniform across lanes if their operands are."""
_PLACE = re.compile(r'"([^"]+)":(\d+):\d+')
_SCALAR_REGISTER = re.compile(r"s\Z|\{s\d+\}|\{s\[")
"""Constraints for AMD's scalar registers."""


@dataclass(frozen=True)
class ForeignCode:
    """A piece of foreign code.

    Attributes:
        text: assembly, or the name of a function.
        constraints: constraints of assembly; None for a function.
        place: `file:line`; empty if the module has no lines, or the operation has neither result nor operand.
        fault: an error that no compiler reports; usually empty.
    """

    text: str
    constraints: str | None
    place: str
    fault: str = ""

    def __str__(self) -> str:
        """Describe it in a line."""
        return f"{self.place}: {self.told}" if self.place else self.told

    @property
    def told(self) -> str:
        """Describe it without its place."""
        if self.constraints is None:
            return f"a call of {self.text!r}"
        return f"inline assembly {_one_line(self.text)!r} with constraints {self.constraints!r}"

    def is_of(self, message: str) -> bool:
        """Return True if a compiler's message names its function, a part of its text, or one of its constraints."""
        quoted = re.findall(r"'([^']+)'", message)
        if self.constraints is None:
            return self.text in message
        if "constraint" in message:
            tokens = [token.lstrip("=&~") for token in self.constraints.split(",")]
            return any(name in tokens for name in quoted)
        return any(name in self.text for name in quoted)


def foreign_code(module: Any, backend: str) -> list[ForeignCode]:
    """Return the foreign code of a module in Triton's dialects, in the order of its operations."""
    names: set[str] = set()
    module.walk(lambda op: names.add(op.get_name()))
    if not names & _FOREIGN:
        return []  # as of most kernels
    reader = _Reader(backend)
    module.walk(reader.visit)
    return reader.codes()


class _Reader:
    """A walk over a module that finds foreign code, and values that are uniform across lanes."""

    def __init__(self, backend: str):
        self._backend = backend
        self._found: list[tuple[Any, list[bool], list[int]]] = []
        self._uniform: set[int] = set()
        self._used: set[int] = set()

    def visit(self, op: Any) -> None:
        operands = [op.get_operand(i) for i in range(op.get_num_operands())]
        results = [op.get_result(i).id() for i in range(op.get_num_results())]
        self._used.update(operand.id() for operand in operands)
        uniform = [self._is_uniform(operand) for operand in operands]
        name = op.get_name()
        if all(uniform) and (name in _LANEWISE or name.startswith(_LANEWISE_DIALECTS)):
            self._uniform.update(results)
        if name in _FOREIGN:
            self._found.append((op, uniform, results))

    def _is_uniform(self, value: Any) -> bool:
        return value.id() in self._uniform or not str(value.get_type()).startswith("tensor")

    def codes(self) -> list[ForeignCode]:
        return [self._code(op, uniform, results) for op, uniform, results in self._found]

    def _code(self, op: Any, uniform: list[bool], results: list[int]) -> ForeignCode:
        values = [op.get_result(i) for i in range(len(results))] or [
            op.get_operand(i) for i in range(op.get_num_operands())
        ]
        place = next((f"{at[1]}:{at[2]}" for value in values if (at := _PLACE.search(str(value.get_loc())))), "")
        text = op.get_str_attr("asm_string")
        if text is None:
            return ForeignCode(op.get_str_attr("symbol") or "", None, place)
        constraints = op.get_str_attr("constraints") or ""
        outputs, inputs = _split(constraints)
        fault = ""
        if any(result in self._used for result in results):
            fault = _unwritten(text, outputs, inputs)
        if not fault and self._backend == HIP.name:
            packed = op.get_int_attr("packed_element") or 1
            fault = _scalar_inputs(inputs, outputs, [same for same in uniform for _ in range(packed)])
        return ForeignCode(text, constraints, place, fault)


def _split(constraints: str) -> tuple[list[str], list[str]]:
    tokens = [token.strip() for token in constraints.split(",") if token.strip() and not token.startswith("~")]
    outputs = [token.lstrip("=&") for token in tokens if token.startswith("=")]
    return outputs, [token for token in tokens if not token.startswith("=")]


def _unwritten(text: str, outputs: Sequence[str], inputs: Iterable[str]) -> str:
    """Describe an output of the assembly that is used but never written; empty if there is none."""
    named, tied = text.replace("$$", ""), set(inputs)
    for number, output in enumerate(outputs):
        if output.startswith("{") or str(number) in tied or re.search(rf"\$(\{{{number}\D|{number}(?!\d))", named):
            continue
        return f"the assembly does not write its output ${number}, whose value is used"
    return ""


def _scalar_inputs(inputs: Sequence[str], outputs: Sequence[str], uniform: Sequence[bool]) -> str:
    """Describe an input that differs between lanes but is requested in a scalar register; empty if there is none.

    LLVM would pass the first lane's value.

    Args:
        uniform: for each input, whether it is the same in every lane. If the number of inputs differs, as when small
            types are packed, nothing is reported.
    """
    if len(inputs) != len(uniform):
        return ""
    for number, (constraint, same) in enumerate(zip(inputs, uniform, strict=True)):
        register = outputs[int(constraint)] if constraint.isdigit() and int(constraint) < len(outputs) else constraint
        if _SCALAR_REGISTER.match(register) and not same:
            return (
                f"input ${len(outputs) + number} has the constraint {constraint!r}, a scalar register, which all lanes "
                "share; its value differs between lanes: use 'v'"
            )
    return ""


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:100]} …"
