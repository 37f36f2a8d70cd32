"""The contract's dtypes in C: numbers, enumerators and rows, generated from the table of dtypes."""

from __future__ import annotations

from collections.abc import Mapping

from aot_runtime.contract.dtypes import DTYPES, SCALAR_TYPES

from .spelling import string

ABSENT = "absent"
"""Text for the dtype of an absent tensor, whose number is 0."""
DTYPE_NUMBERS: Mapping[str, int] = {name: number for number, name in enumerate(DTYPES, 1)}
"""The values of `aot_dtype`."""


def enumerator(name: str) -> str:
    """Return the C constant of a dtype or scalar type."""
    return f"AOT_{name.upper()}"


def _enumerators() -> str:
    return "\n".join(f"    {enumerator(name)} = {number}," for name, number in DTYPE_NUMBERS.items())


def _sizes() -> str:
    return "\n".join(f"    case {enumerator(name)}: return {row.size};" for name, row in DTYPES.items())


def _names() -> str:
    return "\n".join(f"    {string(name)}," for name in (ABSENT, *DTYPES))


def _scalar_enumerators() -> str:
    return "\n".join(f"    {enumerator(name)}," for name in SCALAR_TYPES)


def _scalar_types() -> str:
    return "\n".join(
        f"    {{{string(name)}, AOT_KIND_{row.kind.replace('uint', 'int').upper()}, {row.size}, "
        f"{'true' if row.kind == 'int' else 'false'}}},"
        for name, row in SCALAR_TYPES.items()
    )


INCLUDES = {
    "dtype_enumerators": _enumerators,
    "dtype_sizes": _sizes,
    "dtype_names": _names,
    "scalar_enumerators": _scalar_enumerators,
    "scalar_types": _scalar_types,
}
"""Generated parts of the support code, by the names under which they are included."""
