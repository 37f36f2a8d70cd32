"""Row operations in numpy: the exact results, and what their dtypes allow.

Each `f` computes in float64, and each `f_same_dtype` in float32, as the kernels do, with results in the dtype of the
inputs. Shapes are those of manifests/rows.yaml. Sums with a residual are rounded to its dtype in both.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

Array = np.ndarray
Results = Array | tuple[Array, ...]


def softmax(x: Array, mask: Array | None = None, scale: float = 1.0) -> Array:
    """exp(scale * x) / sum(exp(scale * x)) over the last dim. x: [rows, cols], any float dtype; mask: bool or None.

    A row that holds a NaN or +inf, or nothing but -inf, becomes NaN throughout.
    """
    return _softmax(x.astype(np.float64), mask, scale)


def softmax_same_dtype(x: Array, mask: Array | None = None, scale: float = 1.0) -> Array:
    return _softmax(x.astype(np.float32), mask, np.float32(scale)).astype(x.dtype)


def _softmax(x: Array, mask: Array | None, scale: float) -> Array:
    with np.errstate(invalid="ignore"):
        x = x * scale
        if mask is not None:
            x = np.where(mask.astype(bool), x, x.dtype.type(-np.inf))
        p = np.exp(x - x.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True)


# Norms


def rms_norm(x: Array, weight: Array, residual: Array | None = None, **options: object) -> Results:
    """x / sqrt(mean(x ** 2) + eps) * weight; (the new residual, that) with a residual."""
    return _plain(np.float64, None, False, x, residual, weight, None, **options)


def rms_norm_same_dtype(x: Array, weight: Array, residual: Array | None = None, **options: object) -> Results:
    return _plain(np.float32, x.dtype, False, x, residual, weight, None, **options)


def layer_norm(
    x: Array, weight: Array, bias: Array | None = None, residual: Array | None = None, **options: object
) -> Results:
    """(x - mean) / sqrt(variance + eps) * weight + bias; (the new residual, that) with a residual."""
    return _plain(np.float64, None, True, x, residual, weight, bias, **options)


def layer_norm_same_dtype(
    x: Array, weight: Array, bias: Array | None = None, residual: Array | None = None, **options: object
) -> Results:
    return _plain(np.float32, x.dtype, True, x, residual, weight, bias, **options)


def rms_norm_quantised(x: Array, weight: Array, out: Array, residual: Array | None = None, **options: object) -> Results:
    """(rms_norm / scale, [the new residual,] scale of each row); the first is exact, and not rounded to out's dtype."""
    return _quantised(np.float64, False, out, False, x, residual, weight, None, **options)


def rms_norm_quantised_same_dtype(
    x: Array, weight: Array, out: Array, residual: Array | None = None, **options: object
) -> Results:
    return _quantised(np.float32, True, out, False, x, residual, weight, None, **options)


def layer_norm_quantised(
    x: Array, weight: Array, out: Array, bias: Array, residual: Array | None = None, **options: object
) -> Results:
    """As `rms_norm_quantised`."""
    return _quantised(np.float64, False, out, True, x, residual, weight, bias, **options)


def layer_norm_quantised_same_dtype(
    x: Array, weight: Array, out: Array, bias: Array, residual: Array | None = None, **options: object
) -> Results:
    return _quantised(np.float32, True, out, True, x, residual, weight, bias, **options)


def _plain(compute: type, storage: np.dtype | None, *arguments: object, **options: object) -> Results:
    values, total = _norm(compute, *arguments, **options)
    values = values.astype(storage or compute)
    return values if total is None else (total, values)


def _quantised(compute: type, rounded: bool, out: Array, *arguments: object, **options: object) -> Results:
    values, total = _norm(compute, *arguments, **options)
    scale = row_scale(values, out.dtype)
    values = scaled(values, scale, out.dtype)
    values = rounded_to(values, out.dtype) if rounded else values
    return tuple(result for result in (values, total, scale) if result is not None)


def _norm(
    compute: type, subtract_mean: bool, x: Array, residual: Array | None, weight: Array, bias: Array | None,
    eps: float, zero_centred: bool = False,
) -> tuple[Array, Array | None]:  # fmt: skip
    """(the result, the new residual if there is one)."""
    total = None
    if residual is not None:
        x = total = (residual.astype(np.float32) + x.astype(np.float32)).astype(x.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        x = x.astype(compute)
        if subtract_mean:
            x = x - x.mean(-1, keepdims=True, dtype=compute)
        variance = np.square(x).mean(-1, keepdims=True, dtype=compute)
        values = x / np.sqrt(variance + compute(eps)) * (weight.astype(compute) + compute(zero_centred))
        return (values if bias is None else values + bias.astype(compute)), total


# Quantising


def largest(dtype: np.dtype) -> float:
    return 127.0 if dtype == np.int8 else float(ml_dtypes.finfo(dtype).max)


def row_scale(values: Array, dtype: np.dtype) -> Array:
    """The scale with which each row's largest magnitude is the largest of `dtype`."""
    return np.abs(values).max(-1) * values.dtype.type(1 / largest(dtype))


def scaled(values: Array, scale: Array, dtype: np.dtype) -> Array:
    """values / scale between the limits of `dtype`, where a scale of 0 counts as 1. Not rounded."""
    divisor = np.where(scale == 0, scale.dtype.type(1), scale)[:, None]
    return np.clip(values / divisor, -largest(dtype), largest(dtype))


def rounded_to(values: Array, dtype: np.dtype) -> Array:
    """Rounded half to even."""
    return (np.rint(values) if dtype == np.int8 else values).astype(dtype)
