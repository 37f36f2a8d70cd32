"""Functions that a manifest may name to change attention's scores or visible keys. They are inlined when built.

    score_mod(score, batch, head, query, key, *operands)    returns the new scores: fp32 [BLOCK_M, BLOCK_N]
    mask_mod(batch, head, query, key, *operands)            returns the visible keys: bool [BLOCK_M, BLOCK_N]

`batch` and `head` (of queries) are scalars; `query` is int32 [BLOCK_M, 1] and `key` int32 [1, BLOCK_N], both within the
sequence. Scores are scaled, in natural units; -inf hides a key. Operands are bound by the manifest: addresses, strides,
scalars. Any module of a project may define further functions.
"""

import triton
import triton.language as tl

from kernels.common.softmax import cap


@triton.jit
def identity(score, batch, head, query, key):
    """Scores as they are."""
    return score


@triton.jit
def alibi(score, batch, head, query, key, slopes):
    """Linear biases: slopes[head] for each step that the key is ahead. slopes: fp32 [heads]."""
    return score + tl.load(slopes + head) * (key - query).to(tl.float32)


@triton.jit
def relative_bias(score, batch, head, query, key, table, stride_heads, farthest):
    """A learned bias for each distance up to `farthest`, which serves all beyond it.

    table: any float dtype [heads, 2 * farthest + 1], the key's lead over the query counted from -farthest.
    """
    lead = tl.minimum(tl.maximum(key - query, -farthest), farthest)
    return score + tl.load(table + head * stride_heads + farthest + lead).to(tl.float32)


@triton.jit
def soft_cap(score, batch, head, query, key, softcap):
    """softcap * tanh(score / softcap)."""
    return cap(score, 1.0, softcap)


@triton.jit
def causal(batch, head, query, key):
    """Keys up to the query's own place."""
    return key <= query


@triton.jit
def sliding_window(batch, head, query, key, width):
    """The last `width` keys, the one at the query's own place included."""
    return (key <= query) & (query - key < width)


@triton.jit
def prefix_lm(batch, head, query, key, prefixes):
    """Causal, but that all see the first prefixes[batch] keys. prefixes: int32 [batch]."""
    return (key <= query) | (key < tl.load(prefixes + batch))


@triton.jit
def document(batch, head, query, key, documents_q, stride_q, documents_k, stride_k):
    """Keys of the query's own document. documents_*: int32 [batch, seqlen], with strides along batch."""
    own = tl.load(documents_q + batch * stride_q + query)
    return own == tl.load(documents_k + batch * stride_k + key)
