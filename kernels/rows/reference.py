"""Row operations in numpy: the exact results, and what their dtypes allow."""

import numpy as np


def softmax(x: np.ndarray) -> np.ndarray:
    """exp(x) / sum(exp(x)) over the last dim, float64. x: [rows, cols], any float dtype.

    A row that holds a NaN or +inf, or nothing but -inf, becomes NaN throughout.
    """
    return _softmax(x.astype(np.float64))


def softmax_same_dtype(x: np.ndarray) -> np.ndarray:
    """`softmax` in fp32, rounded to x's dtype."""
    return _softmax(x.astype(np.float32)).astype(x.dtype)


def _softmax(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        p = np.exp(x - x.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True)
