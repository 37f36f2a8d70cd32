"""Element types: the names that manifests and bundles use, numpy's (and ml_dtypes') own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from aot_runtime.errors import ArgumentError


class ScalarType(msgspec.Struct, frozen=True):
    """How a scalar argument crosses into the kernarg segment.

    Attributes:
        code: the `struct` format character (little endian, no padding) of what `packable` makes of it.
        size: bytes; also its alignment.
        low, high: the closed range of an integer type; None for floating point.
    """

    code: str
    size: int
    low: int | None = None
    high: int | None = None


SCALAR_TYPES: Mapping[str, ScalarType] = {
    "i1": ScalarType("?", 1, 0, 1),
    "i8": ScalarType("b", 1, -(2**7), 2**7 - 1),
    "u8": ScalarType("B", 1, 0, 2**8 - 1),
    "i16": ScalarType("h", 2, -(2**15), 2**15 - 1),
    "u16": ScalarType("H", 2, 0, 2**16 - 1),
    "i32": ScalarType("i", 4, -(2**31), 2**31 - 1),
    "u32": ScalarType("I", 4, 0, 2**32 - 1),
    "i64": ScalarType("q", 8, -(2**63), 2**63 - 1),
    "u64": ScalarType("Q", 8, 0, 2**64 - 1),
    "fp16": ScalarType("e", 2),
    "bf16": ScalarType("H", 2),
    "fp32": ScalarType("f", 4),
    "fp64": ScalarType("d", 8),
}
"""Kernarg scalars by their Triton name."""

FLOAT_TYPES = tuple(name for name, kind in SCALAR_TYPES.items() if kind.low is None)


def packable(type_name: str, value: Any) -> Any:
    """What `struct` packs for a scalar of a type: the value, of a bfloat16 its bits. Raises OverflowError."""
    return bfloat16_bits(value) if type_name == "bf16" else value


def bfloat16_bits(value: float) -> int:
    """The bits of the nearest bfloat16, of two the even one. Raises OverflowError where that is beyond the largest."""
    sign = 0x8000 if math.copysign(1, value) < 0 else 0
    if not math.isfinite(value):
        return sign | (0x7FC0 if math.isnan(value) else 0x7F80)
    exponent = max(math.frexp(value)[1] - 1, -126) if value else -126
    bits = (exponent + 126 << 7) + round(math.ldexp(abs(value), 7 - exponent))  # a significand of 8 bits carries over
    if bits >= 0x7F80:
        raise OverflowError(f"{value} is too large for a bfloat16")
    return sign | bits


DTYPES: Mapping[str, int] = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
}
"""Every tensor dtype, with its bytes per element."""

OTHER_FLOAT8: Mapping[str, str] = {
    "float8_e4m3fn": "float8_e4m3fnuz",
    "float8_e4m3fnuz": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2fnuz",
    "float8_e5m2fnuz": "float8_e5m2",
}
"""Each float8 dtype, with the other flavour of its format: hardware has one of the two."""


@lru_cache(maxsize=64)
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a name; bfloat16 and the float8 types come from ml_dtypes."""
    if name in ("bfloat16",) or name.startswith("float8"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def dtype_name(dtype: Any) -> str:
    """The name of a dtype that arrays may have. Raises `ArgumentError`."""
    try:
        found = np.dtype(dtype) if not isinstance(dtype, str) or dtype not in DTYPES else None
        name = dtype if found is None else found.name
    except TypeError:
        found, name = None, repr(dtype)
    if found is not None and not found.isnative:
        raise ArgumentError(f"dtype {name} in foreign byte order is not supported; array.astype('{name}') is native")
    if name not in DTYPES:
        raise ArgumentError(f"dtype {name} is not supported; allowed: {', '.join(DTYPES)}")
    return name
