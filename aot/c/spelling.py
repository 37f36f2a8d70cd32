"""Spelling of names and texts in C and C++: identifiers, string literals, comments."""

from __future__ import annotations

import math
import re
from collections.abc import Container

from aot_runtime.contract import records
from aot_runtime.contract.dtypes import FLOAT32, FLOAT64, SCALAR_TYPES
from aot_runtime.contract.variant_names import identifier
from aot_runtime.formats import printable

# What a kernel's parameter may be named like, and a member of a struct may not: keywords of C11 and C++17, types that
# the struct has, macros of the included headers and of compilers.
_TAKEN = frozenset({
    "alignas", "alignof", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "case", "catch", "char", "compl",
    "const", "const_cast", "constexpr", "decltype", "default", "delete", "do", "double", "dynamic_cast", "enum",
    "explicit", "export", "extern", "false", "float", "friend", "goto", "inline", "int", "long", "mutable",
    "namespace", "new", "noexcept", "not_eq", "nullptr", "operator", "or_eq", "private", "protected", "public",
    "register", "reinterpret_cast", "restrict", "short", "signed", "sizeof", "static", "static_assert", "static_cast",
    "struct", "switch", "template", "this", "thread_local", "throw", "true", "typedef", "typeid", "typename", "union",
    "unsigned", "using", "virtual", "void", "volatile", "wchar_t", "xor", "xor_eq",
    *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "NULL", "i386", "linux", "unix",
})  # fmt: skip


def member(name: str, others: Container[str] = ()) -> str:
    """Return the name of a new member of a struct that already has `others`."""
    text = identifier(name)
    while text in _TAKEN or text in others:
        text += "_"
    return text


def string(text: str) -> str:
    """Return a C string literal. Bytes other than printable ASCII become octal escapes of fixed length."""
    plain = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{plain}"'


def comment(text: str) -> str:
    """Return a comment for each line of a text."""
    return "\n".join(["/*", *(f" * {line}".rstrip() for line in uncommented(text).splitlines()), " */"])


def uncommented(text: str) -> str:
    """Return text that is safe in a comment: it neither ends nor starts one, nor ends with a line continuation."""
    plain = printable(text)
    return re.sub(r"\\(?=\s*$)", r"\\.", plain.replace("*/", "* /").replace("/*", "/ *"), flags=re.MULTILINE)


def integer(value: int) -> str:
    """Return a C constant of type int if the value fits, else of int64_t."""
    if value == -(2**63):
        return "INT64_MIN"
    return str(value) if abs(value) < 2**31 else f"INT64_C({value})"


def number(value: float) -> str:
    """Return a C constant of type double."""
    if math.isnan(value):
        raise ValueError("NaN is not allowed as a constant of an index")
    return repr(value) if math.isfinite(value) else "HUGE_VAL" if value > 0 else "-HUGE_VAL"


def c_type(arg: records.Kernarg) -> str:
    """Return the C type of a kernarg. Pointers, booleans and 16-bit floats are unsigned integers of their size, and a
    tensor map is an array of words.
    """
    if arg.map is not None:
        return "uint64_t"
    scalar = SCALAR_TYPES.get(arg.type)
    if scalar in (FLOAT32, FLOAT64):
        return "float" if scalar is FLOAT32 else "double"
    is_signed = scalar is not None and scalar.kind == "int"
    return f"{'' if is_signed else 'u'}int{arg.size * 8}_t"
