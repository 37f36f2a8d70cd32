"""The dtypes that tests of ops take, by short names, and those that depend on the architecture."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from aot_runtime import Bundle
from aot_runtime.contract.arch import ARCHITECTURES

FP16, BF16, FP32 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
INT8, UINT8, INT32 = np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int32)
_FLOAT8 = {
    "fnuz": {"e4m3": ml_dtypes.float8_e4m3fnuz, "e5m2": ml_dtypes.float8_e5m2fnuz},
    "ocp": {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2},
}


def eight_bits(bundle: Bundle, kind: str) -> np.dtype:
    """Return the dtype of a kind, which is int8, e4m3 or e5m2; for float8, the one that the architecture has."""
    return INT8 if kind == "int8" else np.dtype(_FLOAT8[ARCHITECTURES[bundle.device.arch].fp8][kind])
