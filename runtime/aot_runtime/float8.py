"""Convert float8 arrays between OCP and FNUZ formats, in numpy. Meant to be done once, offline.

Checkpoints use OCP's formats (`float8_e4m3fn`, `float8_e5m2`); gfx942 multiplies FNUZ ones (`float8_e4m3fnuz`,
`float8_e5m2fnuz`). FNUZ has an exponent bias that is larger by 1, no infinities, and no -0, whose code is its only NaN.
So the same bits have half the value in FNUZ. The largest numbers are 448 (OCP) and 240 (FNUZ) for e4m3, and 57344 for
both e5m2 formats.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from aot_runtime.contract.dtypes import OTHER_FLOAT8, dtype_name, numpy_dtype

Array = np.ndarray

_FNUZ_NAN = 0x80


class Cast(NamedTuple):
    """A converted array: the original is `array * scale`."""

    array: Array
    scale: float


def cast(array: Array, dtype: str | np.dtype | type) -> Cast:
    """Convert a float8 array to the other variant of its format. An array that already has `dtype` is returned as is.

    OCP to FNUZ keeps the bits, with scale 2: all numbers and NaN are preserved. -0 becomes 0, and the infinities of
    e5m2 become NaN.

    FNUZ to OCP keeps the values, with scale 1. Numbers below OCP's least normal one (2⁻⁶ for e4m3, 2⁻¹⁴ for e5m2),
    where OCP has half as many, are rounded half to even.

    Args:
        array: float8 array of any shape.
        dtype: the dtype to convert to, such as `float8_e4m3fnuz`.

    Raises:
        ValueError: the dtypes are not variants of one format.
    """
    source, target = dtype_name(array.dtype), dtype_name(dtype)
    if source not in OTHER_FLOAT8 or target not in (source, OTHER_FLOAT8[source]):
        allowed = f"{OTHER_FLOAT8[source]} is allowed" if source in OTHER_FLOAT8 else "float8 numbers are allowed"
        raise ValueError(f"the array is {source}, to become {target}; {allowed}")
    if source == target:
        return Cast(array, 1.0)
    codes = _table(source, target)[array.view(np.uint8)]
    return Cast(codes.view(numpy_dtype(target)), 2.0 if target.endswith("fnuz") else 1.0)


@lru_cache(maxsize=4)
def _table(source: str, target: str) -> Array:
    """Return the conversion of all 256 codes, uint8. A look-up is several times faster than arithmetic."""
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(numpy_dtype(source)).astype(np.float32)
    if not target.endswith("fnuz"):
        return numbers.astype(numpy_dtype(target)).view(np.uint8)
    codes[~np.isfinite(numbers)] = _FNUZ_NAN
    codes[numbers == 0] = 0
    return codes
