"""numpy references of the ops of small.yaml: in the kernels' own dtypes, and exact in float64."""

import functools

import ml_dtypes
import numpy as np


def exact(same_dtype):
    """The reference of an op in float64."""

    @functools.wraps(same_dtype)
    def reference(x, **others):
        return same_dtype(x.astype(np.float64), **others)

    return reference


def affine_same_dtype(x, scale, shift, mode, bias=None):
    dtype = np.promote_types(x.dtype, np.float32).type
    value = x.astype(dtype) * dtype(scale) + (0 if bias is None else bias.astype(dtype))
    return ((-value if mode == "negated" else value) + dtype(shift)).astype(x.dtype)


def row_sums_same_dtype(x, offset, return_largest):
    total = x.sum(1) + x.dtype.type(offset)
    return (total, x.max(1)) if return_largest else total


def accumulate_same_dtype(x, state):
    return x + state


def scale_segments_same_dtype(x, starts, factors, longest, return_largest):
    out = x * np.repeat(factors, np.diff(starts))[:, None]
    return (out, out.max(1)) if return_largest else out


def copy_same_dtype(x):
    return x


def ramp_same_dtype(n, start, step, dtype=np.float32):
    at = np.arange(n)
    halved = dtype(step / 2).astype(ml_dtypes.bfloat16)
    return dtype(start) + at.astype(dtype) * dtype(step) + (at % 2).astype(dtype) * halved.astype(dtype)


def ramp(n, start, step):
    return ramp_same_dtype(n, start, step, np.float64)


def histogram_same_dtype(x, bins):
    inside = (x >= 0) & (x < bins)
    return np.bincount(x[inside].astype(np.int64), minlength=bins).astype(np.int32), np.int32((~inside).sum())


affine, row_sums, accumulate = exact(affine_same_dtype), exact(row_sums_same_dtype), exact(accumulate_same_dtype)
scale_segments, copy, histogram = map(exact, (scale_segments_same_dtype, copy_same_dtype, histogram_same_dtype))
