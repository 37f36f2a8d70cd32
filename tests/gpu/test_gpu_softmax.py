"""Softmax from its code objects on a real GPU, against the fp64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.rows.reference import softmax, softmax_same_dtype
from kernels.tolerance import assert_close

pytestmark = pytest.mark.gpu

DTYPES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cols", (1, 15, 16, 255, 256, 257, 1000, 1024, 4096, 5000, 16384, 16385, 40000, 131072))
def test_matches_the_reference(rows: Bundle, cols: int, dtype: np.dtype):
    rng = np.random.default_rng(cols)
    x = (rng.standard_normal((7, cols)) * 5).astype(dtype)
    whole = rows.device.array(np.pad(x, ((1, 1), (16, 16)), constant_values=np.nan))
    out = rows.device.array(np.full(x.shape, np.nan, dtype))
    rows.softmax(whole[1:-1, 16:-16], out=out)
    assert_close(out.numpy(), softmax(x), softmax_same_dtype(x), 1e-7)


def test_a_row_of_minus_infinity_is_nan(rows: Bundle):
    x = np.zeros((2, 300), np.float32)
    x[1] = -np.inf
    out = rows.softmax(x)
    assert np.isfinite(out[0]).all() and np.isnan(out[1]).all()
