"""Convert float8 arrays between OCP and FNUZ, in numpy.

Checkpoints have OCP's formats (`float8_e4m3fn`, `float8_e5m2`); gfx942 multiplies FNUZ's (`float8_e4m3fnuz`,
`float8_e5m2fnuz`). FNUZ has a larger exponent bias by one, no infinities, and a single NaN with the code of -0. So the
same bits are half the number. The largest numbers are 448 (OCP) and 240 (FNUZ) for e4m3, and 57344 for e5m2.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from aot_runtime.contract.dtypes import OTHER_FLOAT8, dtype_name, numpy_dtype

Array = np.ndarray

_FNUZ_NAN = 0x80


class Cast(NamedTuple):
    """A converted array. The original numbers are `array * scale`."""

    array: Array
    scale: float


def cast(array: Array, dtype: str | np.dtype | type) -> Cast:
    """Convert an array to the other flavour of its format. An array of the wanted dtype is returned as it is.

    OCP to FNUZ keeps the bits, with a scale of 2. Numbers and NaN are preserved; -0 becomes 0, and infinities of e5m2
    become NaN.

    FNUZ to OCP keeps the numbers, with a scale of 1. Numbers below OCP's least normal number (2⁻⁶ for e4m3, 2⁻¹⁴ for
    e5m2) are rounded half to even.

    Args:
        array: an array of a float8 dtype.
        dtype: the wanted dtype, such as `float8_e4m3fnuz`.

    Raises:
        ValueError: the dtypes are not flavours of the same format.
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
    """The converted code of each of the 256 codes, uint8. A look-up is several times faster than arithmetic."""
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(numpy_dtype(source)).astype(np.float32)
    if not target.endswith("fnuz"):
        return numbers.astype(numpy_dtype(target)).view(np.uint8)
    codes[~np.isfinite(numbers)] = _FNUZ_NAN
    codes[numbers == 0] = 0
    return codes
