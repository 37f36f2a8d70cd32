"""Evaluate expressions with their generated C code."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aot.c.expressions import Functions, Texts
from aot.c.support import support_text

from .calling import compile_library

_INCLUDES = "\n".join(f"#include <{name}.h>" for name in ("math", "stdbool", "stddef", "stdint", "stdlib"))
_EVALUATE = """
int evaluate(int number, const aot_value *values, aot_value *result)
{
    aot_eval e;
    e.v = values;
    e.fault = NULL;
    *result = functions[number](&e);
    return e.fault != NULL;
}
"""


class _Value(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("i", ctypes.c_int64), ("f", ctypes.c_double))


class FaultError(Exception):
    """Raised if an expression has no value in C."""


class EvaluatedInC:
    """The expressions, which are compiled together.

    Args:
        names: every name, and the `query_name` of every query, that they read.
    """

    def __init__(self, expressions: Iterable[str], names: Iterable[str], folder: Path):
        self.texts = Texts()
        self.places = {name: i for i, name in enumerate(names)}
        functions = Functions(self.texts)
        code = {name: f"e->v[{place}]" for name, place in self.places.items()}
        self.numbers = {text: i for i, text in enumerate(dict.fromkeys(expressions))}
        table = [functions.function(text, code) for text in self.numbers]
        source = folder / "expressions.c"
        listed = f"static const aot_expression functions[] = {{{', '.join(table)}}};"
        prototype = "int evaluate(int number, const aot_value *values, aot_value *result);"
        parts = [_INCLUDES, f"#define AOT_MAX_CHAINS {functions.chains}", support_text("values.h"), *functions.lines,
                 listed, prototype, _EVALUATE]  # fmt: skip
        source.write_text("\n".join(parts))
        self._evaluate = ctypes.CDLL(str(compile_library(folder, source))).evaluate

    def value(self, text: str, names: Mapping[str, Any]) -> Any:
        """Return the value of an expression. Raises `FaultError`."""
        values = (_Value * (len(self.places) + 1))()
        for name, value in names.items():
            values[self.places[name]] = self._value(value)
        result = _Value()
        if self._evaluate(self.numbers[text], values, ctypes.byref(result)):
            raise FaultError
        match result.kind:
            case 0 | 1:
                return bool(result.i) if result.kind else result.i
            case 2:
                return result.f
        return self.texts.text(result.i)

    def _value(self, value: Any) -> _Value:
        match value:
            case bool():
                return _Value(1, value, 0)
            case int():
                return _Value(0, value, 0)
            case float():
                return _Value(2, 0, value)
        return _Value(3, self.texts.position(value), 0)
