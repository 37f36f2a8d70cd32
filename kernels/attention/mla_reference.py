"""Multi-head latent attention in numpy, by both formulas of the literature.

q_nope: [batch, heads, seqlen_q, head_dim], q_pe: [batch, heads, seqlen_q, rope], kv: [batch, seqlen_k, latent], k_pe:
[batch, seqlen_k, rope], wkv_b: [heads, head_dim + head_dim_v, latent].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.attention.reference import Array, Result, attention


def mla_prefill(
    q_nope: Array, q_pe: Array, kv: Array, k_pe: Array, wkv_b: Array, *, scale: float, causal: bool = False,
    return_lse: bool = False,
) -> Result:  # fmt: skip
    """The "naive" formula in float64, which computes each head's keys and values.

    Returns out [batch, heads, seqlen_q, head_dim_v], or (out, lse) with lse [batch, heads, seqlen_q].
    """
    (keys, values), heads = projections(wkv_b.astype(np.float64), q_nope.shape[3]), q_nope.shape[1]
    latent = kv.astype(np.float64)
    k_nope, v = (np.einsum("btc,hdc->bhtd", latent, x) for x in (keys, values))
    k = np.concatenate([k_nope, np.repeat(k_pe.astype(np.float64)[:, None], heads, 1)], 3)
    q = np.concatenate([q_nope.astype(np.float64), q_pe.astype(np.float64)], 3)
    return attention(q, k, v, scale=scale, causal=causal, return_lse=return_lse)


def mla_absorbed(
    q_nope: Array, q_pe: Array, kv: Array, k_pe: Array, wkv_b: Array, *, scale: float, causal: bool = False,
    return_lse: bool = False, compute: type = np.float64, storage: Any = np.float64,
) -> Result:  # fmt: skip
    """The "absorb" formula, which projects the queries, and afterwards the sum of latent vectors.

    compute: dtype of the computation; storage: dtype of the queries, the probabilities, the sums and out.
    """
    keys, values = projections(wkv_b.astype(compute), q_nope.shape[3])
    absorbed = np.einsum("bhsd,hdc->bhsc", q_nope.astype(compute), keys).astype(storage)
    q = np.concatenate([absorbed, q_pe.astype(storage)], 3)
    k = np.concatenate([kv, k_pe], 2)[:, None]
    sums, lse = attention(
        q, k, kv[:, None], scale=scale, causal=causal, return_lse=True, compute=compute, storage=storage
    )
    out = np.einsum("bhsc,hdc->bhsd", sums.astype(compute), values).astype(storage)
    return (out, lse) if return_lse else out


def mla_prefill_same_dtype(q_nope: Array, *rest: Array, **options: Any) -> Result:
    """`mla_absorbed` as hardware does it: sums are in fp32, and operands of later products are rounded to q_nope's
    dtype.
    """
    return mla_absorbed(q_nope, *rest, **options, compute=np.float32, storage=q_nope.dtype)


def projections(wkv_b: Array, head_dim: int) -> tuple[Array, Array]:
    """Return the projections (of keys [heads, head_dim, latent], of values [heads, head_dim_v, latent])."""
    return wkv_b[:, :head_dim], wkv_b[:, head_dim:]
