"""Scaled dot-product attention in numpy: the exact result, and what its dtypes allow."""

import numpy as np

Result = np.ndarray | tuple[np.ndarray, np.ndarray]


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool = False, return_lse: bool = False
) -> Result:
    """softmax(scale * q k^T + mask) v in float64.

    q: [batch, heads, seqlen_q, head_dim]; k, v: [batch, heads_kv, seqlen_k, head_dim], any float dtype; query head h
    reads key head h // (heads // heads_kv). causal: query i sees keys j <= i + seqlen_k - seqlen_q.

    Returns out [batch, heads, seqlen_q, head_dim], or (out, lse) with lse [batch, heads, seqlen_q], the natural
    logarithm of each row's sum of exponentials. A row that sees no key gives out = 0, lse = -inf.
    """
    return _attention(q, k, v, scale, causal, return_lse, np.dtype(np.float64), np.dtype(np.float64))


def attention_same_dtype(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float, causal: bool = False, return_lse: bool = False
) -> Result:
    """`attention` as hardware does it: fp32 scores, softmax and sums; probabilities and out rounded to q's dtype.

    Returns out of q's dtype, lse float32.
    """
    return _attention(q, k, v, scale, causal, return_lse, np.dtype(np.float32), q.dtype)


def _attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool, return_lse: bool,
    compute: np.dtype, storage: np.dtype,
) -> Result:  # fmt: skip
    batch, heads, seqlen_q, _ = q.shape
    heads_kv, seqlen_k = k.shape[1:3]
    if heads % heads_kv:
        raise ValueError(f"heads = {heads} is not a multiple of heads_kv = {heads_kv}")
    visible = np.arange(seqlen_k) <= np.arange(seqlen_q)[:, None] + (seqlen_k - seqlen_q) if causal else True
    out = np.empty((*q.shape[:3], v.shape[3]), storage)
    lse = np.empty(q.shape[:3], compute)
    for b, h in np.ndindex(batch, heads):  # a head at a time bounds the memory by one matrix of scores
        h_kv = h // (heads // heads_kv)
        scores = (q[b, h].astype(compute) @ k[b, h_kv].astype(compute).T) * compute.type(scale)
        p, lse[b, h] = _exp_rows(np.where(visible, scores, compute.type(-np.inf)))
        row_sum = p.sum(1, keepdims=True)
        weighted = p.astype(storage).astype(compute) @ v[b, h_kv].astype(compute)
        out[b, h] = np.divide(weighted, row_sum, out=np.zeros_like(weighted), where=row_sum != 0).astype(storage)
    return (out, lse) if return_lse else out


def _exp_rows(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """exp(scores - row maximum), and the logarithm of each row's sum of exponentials."""
    maximum = scores.max(1, keepdims=True)
    maximum = np.where(np.isneginf(maximum), scores.dtype.type(0), maximum)  # a row that sees no key
    p = np.exp(scores - maximum)
    with np.errstate(divide="ignore"):
        return p, np.log(p.sum(1)) + maximum[:, 0]
