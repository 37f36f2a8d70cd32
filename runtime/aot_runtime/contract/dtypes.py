"""The table of element types, from which everything else about dtypes is derived. A new dtype is a new row.

Manifests and bundles use the names of numpy and ml_dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec
import numpy as np

from aot_runtime.errors import ArgumentError


class ElementType(msgspec.Struct, frozen=True):
    """An element type.

    Attributes:
        name: numpy's or ml_dtypes' name.
        kind: `bool`, `int`, `uint` or `float`.
        size: bytes.
        triton: Triton's name, which is also the name of the scalar type in manifests.
        short: the name in variant names.
        dlpack: `DLDataTypeCode` of dlpack.h.
        format: the `struct` format of a scalar argument; empty if no scalar may have this type.
        tensor_map: CUDA's `CUtensorMapDataType` of the elements of a tensor map; None if tensor maps cannot have them.
            8-bit floats are copied as unsigned bytes.
        torch: names that torch has for it besides `name`.
        other_float8: the other flavour of a float8 format; hardware has one of the two.
    """

    name: str
    kind: Literal["bool", "int", "uint", "float"]
    size: int
    triton: str
    short: str
    dlpack: int
    format: str = ""
    tensor_map: int | None = None
    torch: tuple[str, ...] = ()
    other_float8: str = ""

    @property
    def low(self) -> int | None:
        """The least value of an integer or `bool`; None for floating point."""
        if self.kind == "float":
            return None
        return -(1 << 8 * self.size - 1) if self.kind == "int" else 0

    @property
    def high(self) -> int | None:
        """The largest value of an integer or `bool`; None for floating point."""
        if self.kind == "float":
            return None
        return 1 if self.kind == "bool" else (1 << 8 * self.size - (self.kind == "int")) - 1


BOOL = ElementType("bool", "bool", 1, "i1", "bool", 6, "?")
INT8 = ElementType("int8", "int", 1, "i8", "i8", 0, "b", tensor_map=0)
UINT8 = ElementType("uint8", "uint", 1, "u8", "u8", 1, "B", tensor_map=0)
INT16 = ElementType("int16", "int", 2, "i16", "i16", 0, "h", tensor_map=1, torch=("short",))
UINT16 = ElementType("uint16", "uint", 2, "u16", "u16", 1, "H", tensor_map=1)
INT32 = ElementType("int32", "int", 4, "i32", "i32", 0, "i", tensor_map=3, torch=("int",))
UINT32 = ElementType("uint32", "uint", 4, "u32", "u32", 1, "I", tensor_map=2)
INT64 = ElementType("int64", "int", 8, "i64", "i64", 0, "q", torch=("long",))
UINT64 = ElementType("uint64", "uint", 8, "u64", "u64", 1, "Q")
FLOAT16 = ElementType("float16", "float", 2, "fp16", "f16", 2, "e", tensor_map=6, torch=("half",))
BFLOAT16 = ElementType("bfloat16", "float", 2, "bf16", "bf16", 4, "H", tensor_map=9)
FLOAT32 = ElementType("float32", "float", 4, "fp32", "f32", 2, "f", tensor_map=7, torch=("float",))
FLOAT64 = ElementType("float64", "float", 8, "fp64", "f64", 2, "d", torch=("double",))
FLOAT8_E4M3FN = ElementType(
    "float8_e4m3fn", "float", 1, "fp8e4nv", "e4m3", 10, tensor_map=0, other_float8="float8_e4m3fnuz"
)
FLOAT8_E4M3FNUZ = ElementType(
    "float8_e4m3fnuz", "float", 1, "fp8e4b8", "e4m3fnuz", 11, tensor_map=0, other_float8="float8_e4m3fn"
)
FLOAT8_E5M2 = ElementType("float8_e5m2", "float", 1, "fp8e5", "e5m2", 12, tensor_map=0, other_float8="float8_e5m2fnuz")
FLOAT8_E5M2FNUZ = ElementType(
    "float8_e5m2fnuz", "float", 1, "fp8e5b16", "e5m2fnuz", 13, tensor_map=0, other_float8="float8_e5m2"
)

DTYPES: Mapping[str, ElementType] = {
    row.name: row
    for row in (
        BOOL, INT8, UINT8, INT16, UINT16, INT32, UINT32, INT64, UINT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64,
        FLOAT8_E4M3FN, FLOAT8_E4M3FNUZ, FLOAT8_E5M2, FLOAT8_E5M2FNUZ,
    )
}  # fmt: skip
"""Every dtype by name."""
SCALAR_TYPES: Mapping[str, ElementType] = {row.triton: row for row in DTYPES.values() if row.format}
"""Dtypes of scalar arguments by their Triton name. A scalar is aligned to its size in the kernarg segment."""
OTHER_FLOAT8: Mapping[str, str] = {row.name: row.other_float8 for row in DTYPES.values() if row.other_float8}
INTEGERS = tuple(name for name, row in DTYPES.items() if row.kind in ("int", "uint"))
INDEX_DTYPES = tuple(name for name, row in DTYPES.items() if row.kind == "int" and row.size >= 4)
"""Dtypes of tensors that hold offsets and positions."""
INT32_OR_INT64 = f"{INT32.name}|{INT64.name}"
"""Dtype, in manifests, of a tensor of int32 that may also be passed as int64."""
FLAG_TYPES = ("flag", BOOL.triton)
"""Types of scalars that are true or false."""
INTEGER_TYPES = tuple(name for name, row in SCALAR_TYPES.items() if row.kind in ("int", "uint"))
FLOAT_TYPES = tuple(name for name, row in SCALAR_TYPES.items() if row.kind == "float")


def packable(type_name: str, value: Any) -> Any:
    """Return the object to pass to `struct.pack` for a scalar: its bits if it is a bfloat16. Raises OverflowError."""
    return bfloat16_bits(value) if type_name == BFLOAT16.triton else value


def bfloat16_bits(value: float) -> int:
    """Round to the nearest bfloat16, ties to even. Raises OverflowError if the result is not finite."""
    sign = 0x8000 if math.copysign(1, value) < 0 else 0
    if not math.isfinite(value):
        return sign | (0x7FC0 if math.isnan(value) else 0x7F80)
    exponent = max(math.frexp(value)[1] - 1, -126) if value else -126
    bits = (exponent + 126 << 7) + round(math.ldexp(abs(value), 7 - exponent))  # a significand of 8 bits carries over
    if bits >= 0x7F80:
        raise OverflowError(f"{value} is too large for a bfloat16")
    return sign | bits


@lru_cache(maxsize=64)
def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy dtype of a name. Imports ml_dtypes for dtypes that numpy lacks."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype. Raises `ArgumentError` if it is not supported."""
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
