"""Constants that end up in a kernel or in the index: which there are, and how an expression spells them."""

from __future__ import annotations

import ast
import math
from typing import Any

from aot_runtime.contract.records import Value


def constant_fault(value: Any) -> str:
    """Why a number can be no constant, as the end of a sentence; empty if it can."""
    if isinstance(value, float) and math.isnan(value):
        return "is NaN"
    if isinstance(value, int) and value.bit_length() > 64:
        return "is a number of over 64 bits"
    return ""


def literal(constant: Value) -> str:
    """An expression that is a constant."""
    return ast.unparse(ast.Constant(constant))  # of an infinite number a literal that is too large
