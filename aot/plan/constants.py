"""Constants of kernels and of the index: their valid values, and their spelling in expressions."""

from __future__ import annotations

import ast
import math
from typing import Any

from aot.source.constants import Constant, Dtype, Layout
from aot.source.kernel_source import Parameter
from aot_runtime.contract.dtypes import DTYPES
from aot_runtime.contract.expressions import Expression
from aot_runtime.contract.records import Value


def constant_fault(value: Any) -> str:
    """Return why a number cannot be a constant, as the end of a sentence; empty if it can."""
    if isinstance(value, float) and math.isnan(value):
        return "is NaN"
    if isinstance(value, int) and value.bit_length() > 64:
        return "is a number of more than 64 bits"
    return ""


def is_plain(value: Any) -> bool:
    """Return True if a default is a constant that a job can have."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | Dtype | Layout)


def kind_fault(parameter: Parameter, constant: Constant) -> str:
    """Return why a constexpr parameter with this default cannot have the constant; empty if it can."""
    default = parameter.default
    if isinstance(constant, Dtype) and isinstance(default, int | float):
        return f"its default is {default!r}, so it must be a number, not {constant!r}"
    if isinstance(default, Dtype) and isinstance(constant, bool | int | float | str):
        hint = f"; write {{dtype: {constant}}}" if constant in DTYPES else ""
        return f"its default is {default!r}, so it must be a dtype, not {constant!r}{hint}"
    return ""


def literal_factor(value: Expression) -> int:
    """Return the number that an expression is a multiple of by its form, `8 * cdiv(k, 8)`; 1 if it has no such form."""
    match value.tree:
        case ast.BinOp(left=ast.Constant(value=int(factor)), op=ast.Mult()) if factor > 0:
            return factor
    return 1


def literal(constant: Value) -> str:
    """Return the expression for a constant."""
    return ast.unparse(ast.Constant(constant))  # of an infinite number a literal that is too large
