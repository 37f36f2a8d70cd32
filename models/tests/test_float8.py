"""Casts between the flavours of float8 for every code, against ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot_models import float8
from aot_runtime.contract.dtypes import numpy_dtype

FLAVOURS = {"float8_e4m3fn": "float8_e4m3fnuz", "float8_e5m2": "float8_e5m2fnuz"}
CODES = np.arange(256, dtype=np.uint8).reshape(2, 128)


def numbers(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def every_code(name: str) -> np.ndarray:
    return CODES.view(getattr(ml_dtypes, name))


@pytest.mark.parametrize(("ocp", "fnuz"), FLAVOURS.items())
def test_ocp_in_fnuz_is_exact(ocp: str, fnuz: str):
    source = every_code(ocp)
    array, scale = float8.cast(source, fnuz)
    assert array.dtype.name == fnuz and array.shape == source.shape and scale == 2
    expected = np.where(np.isinf(numbers(source)), np.nan, numbers(source))
    np.testing.assert_array_equal(numbers(array) * scale, expected)
    assert (array.view(np.uint8) == CODES)[np.isfinite(expected) & (CODES != 0x80)].all()
    strided, _ = float8.cast(source[:, ::3].T, fnuz)
    assert strided.tobytes() == np.ascontiguousarray(array[:, ::3].T).tobytes()


@pytest.mark.parametrize(("ocp", "fnuz"), FLAVOURS.items())
def test_fnuz_in_ocp_keeps_numbers_and_rounds_the_least_ones(ocp: str, fnuz: str):
    source = every_code(fnuz)
    array, scale = float8.cast(source, ocp)
    assert array.dtype.name == ocp and array.shape == source.shape and scale == 1
    info = ml_dtypes.finfo(ocp)
    least, step = float(info.smallest_normal), float(info.smallest_subnormal)
    exact = numbers(source)
    expected = np.where(abs(exact) < least, np.rint(exact / step) * step, exact)
    np.testing.assert_array_equal(numbers(array), expected)
    assert np.count_nonzero(expected != exact) == 2 * round(least / step) + 1, "every second of them, and NaN"
    back, twice = float8.cast(array, fnuz)
    np.testing.assert_array_equal(numbers(back) * twice, expected)


def test_numbers_of_the_same_flavour_are_the_array_itself():
    for name in (*FLAVOURS, *FLAVOURS.values()):
        source = every_code(name)
        for dtype in (name, source.dtype):
            array, scale = float8.cast(source, dtype)
            assert array is source and scale == 1


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("float8_e4m3fn", "float8_e5m2fnuz", "is float8_e4m3fn, to become float8_e5m2fnuz; float8_e4m3fnuz is allowed"),
        ("float8_e5m2fnuz", "float16", "is float8_e5m2fnuz, to become float16; float8_e5m2 is allowed"),
        ("float32", "float8_e4m3fn", "is float32, to become float8_e4m3fn; float8 numbers are allowed"),
    ],
)
def test_other_casts_are_refused(source: str, target: str, message: str):
    with pytest.raises(ValueError, match=message):
        float8.cast(np.zeros(3, numpy_dtype(source)), target)
