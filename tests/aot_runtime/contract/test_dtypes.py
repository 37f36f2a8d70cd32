"""The table of dtypes agrees with numpy, Triton, DLPack and CUDA; scalars as kernels get them."""

from __future__ import annotations

import math
import re
import struct

import ml_dtypes
import numpy as np
import pytest

from aot_runtime.contract.dtypes import DTYPES, SCALAR_TYPES, ElementType, bfloat16_bits, numpy_dtype, packable

every_dtype = pytest.mark.parametrize("row", DTYPES.values(), ids=DTYPES)


@every_dtype
def test_a_row_agrees_with_numpy(row: ElementType):
    dtype = numpy_dtype(row.name)
    kinds = {"b": "bool", "i": "int", "u": "uint"}
    assert (dtype.name, dtype.itemsize, kinds.get(dtype.kind, "float")) == (row.name, row.size, row.kind)
    if row.kind == "float":
        assert row.low is row.high is None
    elif row.kind == "bool":
        assert (row.low, row.high) == (0, 1)
    else:
        assert (row.low, row.high) == (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if row.format:
        value = -1 if row.kind in ("int", "float") else row.high
        packed = struct.pack("<" + row.format, packable(row.triton, value))
        assert packed == np.full((), value, dtype).tobytes()
        unpacked = {"bool": bool, "float": float}.get(row.kind, int) if row.name != "bfloat16" else int
        assert type(struct.unpack("<" + row.format, packed)[0]) is unpacked


@every_dtype
def test_triton_calls_the_same_format_by_this_name(row: ElementType):
    language = pytest.importorskip("triton.language")
    found = language.str_to_ty(row.triton, None)
    if row.kind != "float":
        words = {language.int1: "bool", **{getattr(language, name): name for name in DTYPES if "int" in name}}
        assert words[found] == row.name
        return
    numbers = ml_dtypes.finfo(numpy_dtype(row.name))
    assert (found.primitive_bitwidth, found.fp_mantissa_width) == (8 * row.size, numbers.nmant)
    assert found.exponent_bias == 1 - numbers.minexp


@every_dtype
def test_dlpack_has_this_code(row: ElementType):
    """The codes are kDLInt, kDLUInt, kDLFloat, kDLBfloat, kDLBool; from kDLFloat8_e4m3fn on, formats of 8 bits are in
    alphabetical order."""
    plain = {"int": 0, "uint": 1, "float": 2, "bool": 6}
    small = sorted(name for name in DTYPES if name.startswith("float8"))
    expected = {"bfloat16": 4, **{name: 10 + number for number, name in enumerate(small)}}
    assert row.dlpack == expected.get(row.name, plain[row.kind])


@every_dtype
def test_cuda_has_this_code_of_tensor_maps(row: ElementType):
    cuda = pytest.importorskip("cuda.bindings.driver")
    assert (row.tensor_map is not None) == (row.kind != "bool" and row.size < 8)
    if row.tensor_map is not None:
        # Integers of 8 and 16 bits and 8-bit floats are copied as unsigned ones of their size.
        name = f"uint{8 * row.size}" if row.size == 1 or row.name == "int16" else row.name
        found = cuda.CUtensorMapDataType(row.tensor_map).name
        assert found == f"CU_TENSOR_MAP_DATA_TYPE_{name.upper()}"


def test_names_tell_dtypes_apart():
    rows = DTYPES.values()
    for names in ([row.short for row in rows], [row.triton for row in rows], [n for row in rows for n in row.torch]):
        assert len(set(names)) == len(names)
    words = {"uint": "u", "int": "i", "bfloat": "bf", "float": "f"}
    for row in rows:  # no underscore, at which variant names are split
        small = row.name.removeprefix("float8_")
        short = re.sub("fn$", "", small) if small != row.name else re.sub("u?int|b?float", lambda m: words[m[0]], small)
        assert row.short == short
    torch = {"short": "i16", "int": "i32", "long": "i64", "half": "f16", "float": "f32", "double": "f64"}
    assert {name: row.short for row in rows for name in row.torch} == torch
    pairs = {row.name: row.other_float8 for row in rows if row.other_float8}
    assert pairs == {other: name for name, other in pairs.items()} and len(pairs) == 4
    assert all(name != other for name, other in pairs.items())
    for name, other in pairs.items():
        assert other.removesuffix("uz").removesuffix("fn") == name.removesuffix("uz").removesuffix("fn")
    assert [*SCALAR_TYPES] == [row.triton for row in rows if not row.name.startswith("float8")]


def test_bfloat16_bits():
    """float32 numbers are rounded as ml_dtypes does: of every exponent, near ties and at them, infinities and NaN."""
    random = np.random.default_rng(0)
    words = random.integers(0, 2**32, 20_000, np.uint32)
    words[::3] = words[::3] & 0xFFFF0000 | 0x8000  # ties
    values = words.view(np.float32)
    values = values[np.isfinite(values) & (np.abs(values) < 3.38e38)]
    expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert [bfloat16_bits(value) for value in values.tolist()] == expected.tolist()
    special = (0.0, -0.0, 1, -2, math.inf, -math.inf, math.nan)
    assert [bfloat16_bits(value) for value in special] == [0, 0x8000, 0x3F80, 0xC000, 0x7F80, 0xFF80, 0x7FC0]
    assert bfloat16_bits(1 + 2**-8 + 2**-40) == 0x3F81, "a number that float32 has not is rounded once"
    for value in (3.39e38 * 1.01, -1e39, 1e300):
        with pytest.raises(OverflowError):
            bfloat16_bits(value)
