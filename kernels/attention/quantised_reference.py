"""Attention of 8-bit tensors in numpy: the exact result of the dequantised values, and the result in their dtypes.

q: [batch, heads, seqlen_q, head_dim]; k, v: [batch, heads_kv, seqlen_k, head_dim]; q_scale, k_scale, v_scale: fp32,
broadcast to [batch, heads or heads_kv]. Masks, biases and results are as `attention` has them; The result has the dtype
of the argument `out`, which is not used otherwise. The `_varlen` functions take concatenated sequences as `by_sequence`
does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from kernels.attention.reference import Array, Result, Rounding, attention, by_sequence

PROBABILITIES = {
    np.dtype(ml_dtypes.float8_e4m3fn): ml_dtypes.float8_e4m3fn,
    np.dtype(ml_dtypes.float8_e5m2): ml_dtypes.float8_e4m3fn,
    np.dtype(ml_dtypes.float8_e4m3fnuz): ml_dtypes.float8_e4m3fnuz,
    np.dtype(ml_dtypes.float8_e5m2fnuz): ml_dtypes.float8_e4m3fnuz,
}
"""Dtype of probabilities for each dtype of values."""
HEADROOM = 7
"""Exponent of 2 of the largest probability before rounding to float8."""


def attention_int8(
    q: Array, k: Array, v: Array, out: Array, q_scale: Array, k_scale: Array, v_scale: Array, **options: Any
) -> Result:
    """softmax(scores) v of the dequantised values, in float64."""
    options.pop("int8_probabilities", None)
    return attention(scaled(q, q_scale), scaled(k, k_scale), scaled(v, v_scale), **options)


def attention_int8_same_dtype(
    q: Array, k: Array, v: Array, out: Array, q_scale: Array, k_scale: Array, v_scale: Array, *,
    int8_probabilities: bool = False, **options: Any,
) -> Result:  # fmt: skip
    """`attention_int8` with probabilities of float16, or of int8 with int8_probabilities."""
    rounding = _to_127ths if int8_probabilities else _to(np.float16)
    return _rounded(q, k, v, (q_scale, k_scale, v_scale), out.dtype, rounding, **options)


def attention_kv(q: Array, k: Array, v: Array, k_scale: Array, v_scale: Array, **options: Any) -> Result:
    """softmax(scores) v with dequantised k and v, in float64."""
    return attention(q, scaled(k, k_scale), scaled(v, v_scale), **options)


def attention_kv_same_dtype(q: Array, k: Array, v: Array, k_scale: Array, v_scale: Array, **options: Any) -> Result:
    """`attention_kv` with probabilities of q's dtype."""
    return _rounded(q, k, v, (np.ones((1, 1)), k_scale, v_scale), q.dtype, _to(q.dtype), **options)


def attention_fp8(
    q: Array, k: Array, v: Array, out: Array, q_scale: Array, k_scale: Array, v_scale: Array, *, out_scale: Array | None
    = None, **options: Any,
) -> Result:  # fmt: skip
    """softmax(scores) v of the dequantised values, divided by out_scale [1] if that is given, in float64."""
    return attention(scaled(q, q_scale), scaled(k, k_scale), scaled(v, _over(v_scale, out_scale)), **options)


def attention_fp8_same_dtype(
    q: Array, k: Array, v: Array, out: Array, q_scale: Array, k_scale: Array, v_scale: Array, *, out_scale: Array | None
    = None, **options: Any,
) -> Result:  # fmt: skip
    """`attention_fp8` with probabilities of e4m3, even if v is e5m2."""
    rounding = _to(PROBABILITIES[np.dtype(v.dtype)], HEADROOM)
    return _rounded(q, k, v, (q_scale, k_scale, _over(v_scale, out_scale)), out.dtype, rounding, **options)


def attention_int8_varlen(**call: Any) -> Result:
    """`attention_int8` of concatenated sequences."""
    return _varlen(attention_int8, **call)


def attention_int8_varlen_same_dtype(**call: Any) -> Result:
    """`attention_int8_same_dtype` of concatenated sequences."""
    return _varlen(attention_int8_same_dtype, **call)


def attention_kv_varlen(**call: Any) -> Result:
    """`attention_kv` of concatenated sequences."""
    return _varlen(attention_kv, **call)


def attention_kv_varlen_same_dtype(**call: Any) -> Result:
    """`attention_kv_same_dtype` of concatenated sequences."""
    return _varlen(attention_kv_same_dtype, **call)


def attention_fp8_varlen(**call: Any) -> Result:
    """`attention_fp8` of concatenated sequences."""
    return _varlen(attention_fp8, **call)


def attention_fp8_varlen_same_dtype(**call: Any) -> Result:
    """`attention_fp8_same_dtype` of concatenated sequences."""
    return _varlen(attention_fp8_same_dtype, **call)


def _varlen(
    function: Callable[..., Any], q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array,
    bias: Array | None = None, **rest: Any,
) -> Result:  # fmt: skip
    of_batch = {name: rest.pop(name, None) for name in ("q_scale", "k_scale", "v_scale", "alibi_slopes")}
    return by_sequence(function, q, k, v, cu_seqlens_q, cu_seqlens_k, bias, of_batch, **rest)


def _over(v_scale: Array, out_scale: Array | None) -> Array:
    """Return factors of v that divide the result by out_scale, too."""
    return v_scale if out_scale is None else v_scale.astype(np.float64) / out_scale


def scaled(x: Array, factors: Array) -> Array:
    """Dequantise values [batch, heads, rows, columns] to float64."""
    return x.astype(np.float64) * np.broadcast_to(factors, x.shape[:2])[:, :, None, None]


def _rounded(
    q: Array, k: Array, v: Array, scales: tuple[Array, Array, Array], dtype: Any, rounding: Rounding, **options: Any
) -> Result:
    """Compute `attention` in float32, except for the probabilities; the result has the dtype `dtype`."""
    wide = (scaled(x, factors).astype(np.float32) for x, factors in zip((q, k, v), scales, strict=True))
    return attention(*wide, **options, compute=np.float32, storage=dtype, rounding=rounding)


def _to(dtype: Any, headroom: int = 0) -> Rounding:
    """Return the function that rounds probabilities, scaled to at most 2 ** headroom, to a dtype."""

    def rounding(p: Array) -> tuple[Array, Array]:
        return np.ldexp(np.ldexp(p, headroom).astype(dtype).astype(p.dtype), -headroom), p

    return rounding


def _to_127ths(p: Array) -> tuple[Array, Array]:
    rounded = np.rint(p * 127) / 127
    return rounded, rounded
