"""Functions that a manifest may name to change the scores of attention, or which keys are seen; inlined when built.

    score_mod(score, batch, head, query, key, *operands)    the score that is used instead: fp32 [BLOCK_M, BLOCK_N]
    mask_mod(batch, head, query, key, *operands)            whether the query sees the key: bool, as wide

`batch` and `head` (of queries) are scalars; `query` is int32 [BLOCK_M, 1] and `key` int32 [1, BLOCK_N], both within the
sequence. A score comes scaled, in natural units; -inf hides a key. Operands are what the manifest binds: addresses,
strides, scalars. Any module of the project may have more of these.
"""

import triton
import triton.language as tl

from kernels.common.softcap import cap


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
