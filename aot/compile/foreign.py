"""Inline assembly and functions of other libraries in a kernel: code that Triton passes on and does not check."""

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
"""Operations that make the same in every lane of what is the same in every lane."""
_PLACE = re.compile(r'"([^"]+)":(\d+):\d+')
_SCALAR_REGISTER = re.compile(r"s\Z|\{s\d+\}|\{s\[")
"""Constraints of AMD's scalar registers."""


@dataclass(frozen=True)
class ForeignCode:
    """A piece of it.

    Attributes:
        text: assembly, or the name of a function.
        constraints: of assembly; None of a function.
        place: `file:line`; empty where the module was made without lines, or the operation has neither result nor
            operand.
        fault: what is wrong with it that no compiler tells; mostly empty.
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
        """Tell whether a compiler's message names its function, part of its text, or one of its constraints."""
        quoted = re.findall(r"'([^']+)'", message)
        if self.constraints is None:
            return self.text in message
        if "constraint" in message:
            tokens = [token.lstrip("=&~") for token in self.constraints.split(",")]
            return any(name in tokens for name in quoted)
        return any(name in self.text for name in quoted)


def foreign_code(module: Any, backend: str) -> list[ForeignCode]:
    """The foreign code of a module in Triton's dialects, in the order of its operations."""
    names: set[str] = set()
    module.walk(lambda op: names.add(op.get_name()))
    if not names & _FOREIGN:
        return []  # as of most kernels
    reader = _Reader(backend)
    module.walk(reader.visit)
    return reader.codes()


class _Reader:
    """A walk over a module that finds foreign code, and which values are the same in every lane."""

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
    """Say what is wrong where the assembly does not name an output whose value is used; empty where it does."""
    named, tied = text.replace("$$", ""), set(inputs)
    for number, output in enumerate(outputs):
        if output.startswith("{") or str(number) in tied or re.search(rf"\$(\{{{number}\D|{number}(?!\d))", named):
            continue
        return f"the assembly does not write its output ${number}, whose value is used"
    return ""


def _scalar_inputs(inputs: Sequence[str], outputs: Sequence[str], uniform: Sequence[bool]) -> str:
    """Say what is wrong where an input that differs between lanes is asked for in a register that they share: LLVM
    passes the first lane's value.

    Args:
        uniform: of each input. Where there are fewer or more, as of small types that are packed, nothing is said.
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
