"""Interrupt a run at each point where Python allows it: the start of a function, after a call, in a loop."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

_LETS_IN = frozenset({"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"})
"""Names of the instructions after which a signal's handler may run."""


class Interrupted(KeyboardInterrupt):
    """An interrupt raised by a test."""


class _Interrupter:
    """Counts the places of frames whose file is one of ours, and raises at one of them."""

    def __init__(self, at: int, part: str):
        self.at, self.part, self.count = at, part, 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if self.part not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return _Frame(self)

    def pass_by(self, frame: FrameType) -> None:
        self.count += 1
        if self.count == self.at:
            sys.settrace(None)
            self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
            raise Interrupted(self.where)


class _Frame:
    def __init__(self, interrupter: _Interrupter):
        self.interrupter, self.before = interrupter, -1

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            code, before = frame.f_code, self.before
            self.before = at = frame.f_lasti
            lets_in = before >= 0 and dis.opname[_bytes(code)[before]] in _LETS_IN
            # An interrupt belongs to the instruction before; where a `try` or `with` begins or ends, it is left out.
            if lets_in and _handler(code, before) == _handler(code, at):
                self.interrupter.pass_by(frame)
        return self


@cache
def _bytes(code: CodeType) -> bytes:
    return code.co_code


@cache
def _handler(code: CodeType, at: int) -> int | None:
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return next((entry.target for entry in entries if entry.start <= at < entry.end), None)


def interrupted_at(work: Callable[[], object], at: int, part: str = "/aot_runtime/") -> str | None:
    """Run `work` with an interrupt at a place, the first being 1, of code in files whose path has `part`.

    Returns:
        where that was; None where there are not so many places, so that nothing was interrupted. Where the interrupt
        came in a function that the garbage collector calls, `work` goes on: Python passes over it.
    """
    interrupter = _Interrupter(at, part)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    sys.settrace(interrupter)
    try:
        work()
    except Interrupted:
        pass
    finally:
        sys.settrace(None)
        sys.unraisablehook = hook
    return interrupter.where or None
