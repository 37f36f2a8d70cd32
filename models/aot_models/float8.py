"""Numbers of float8 in the other flavour, in numpy: OCP's (`float8_e4m3fn`, `float8_e5m2`), which checkpoints have, and
FNUZ (`float8_e4m3fnuz`, `float8_e5m2fnuz`), which gfx942 multiplies. That is done once, offline.

FNUZ has an exponent bias that is larger by one, no infinities and no -0, whose code is its only NaN. So the same bits
stand for half the number, and OCP's numbers reach further by as much: to 448 or 57344 beside 240 or 57344.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from aot_runtime.contract.dtypes import OTHER_FLOAT8, dtype_name, numpy_dtype

Array = np.ndarray

_FNUZ_NAN = 0x80


class Cast(NamedTuple):
    """Numbers of the other flavour: each number was `array` times `scale`."""

    array: Array
    scale: float


def cast(array: Array, dtype: str | np.dtype | type) -> Cast:
    """Numbers of float8 in the other flavour of the same format; in the same one they are the array itself.

    OCP in FNUZ keeps the bits, and the scale is 2: every number stays what it was, and so does NaN. -0 becomes 0, and
    the infinities of e5m2, for which FNUZ has nothing, NaN.

    FNUZ in OCP keeps the numbers, and the scale is 1. Those below OCP's least normal number (2⁻⁶ of e4m3, 2⁻¹⁴ of
    e5m2), of which OCP has every second, are rounded half to even.

    Args:
        array: of a float8 dtype, any shape.
        dtype: what it becomes, as `float8_e4m3fnuz`.

    Raises:
        ValueError: the two are not flavours of one format.
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
    """What each of the 256 codes becomes, uint8: looking that up is several times as quick as arithmetic."""
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(numpy_dtype(source)).astype(np.float32)
    if not target.endswith("fnuz"):
        return numbers.astype(numpy_dtype(target)).view(np.uint8)
    codes[~np.isfinite(numbers)] = _FNUZ_NAN
    codes[numbers == 0] = 0
    return codes
