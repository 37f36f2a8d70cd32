"""Merge attention over parts of the keys, by the logarithms of the parts' sums of exponentials."""

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.softmax import LN_2, LOG2_E, inverse
from kernels.common.tensors import Matrices, Matrix, given


class States(NamedTuple):
    """A tensor of [tokens, parts, heads, head_dim]."""

    ptr: tl.tensor
    stride_tokens: tl.tensor
    stride_parts: tl.tensor
    stride_heads: tl.tensor
    stride_head_dim: tl.tensor


@triton.jit
def merge_states(
    states: States, lses: Matrices, out: Matrices, lse: Matrix, parts, heads, head_dim,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Merge the parts of BLOCK_H heads of one token, in fp32. Grid: (tokens, cdiv(heads, BLOCK_H)).

    states: [tokens, parts, heads, head_dim], out: [tokens, heads, head_dim], of one dtype, last dims contiguous. lses:
    fp32 [tokens, parts, heads], lse: fp32 [tokens, heads], natural logarithms. A part whose logarithm is infinite saw
    no key, and is not read. Without any other part, out is 0 and lse -inf.
    """
    await_earlier_launches()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    inside = head < heads
    at_lses = lses.ptr + token * lses.stride_batch + head * lses.stride_columns
    peak = tl.full([BLOCK_H], float("-inf"), tl.float32)
    for part in range(parts):
        peak = tl.maximum(peak, _load_lse(at_lses + part * lses.stride_rows, inside))
    total = tl.zeros([BLOCK_H], tl.float32)
    for part in range(parts):
        total += _weight(_load_lse(at_lses + part * lses.stride_rows, inside), peak)
    tl.store(lse.ptr + token * lse.stride_rows + head * lse.stride_columns, _lse(peak, total), mask=inside)

    for start in range(0, head_dim, BLOCK_D):
        columns = (start + tl.arange(0, BLOCK_D))[None, :]
        acc = tl.zeros([BLOCK_H, BLOCK_D], tl.float32)
        for part in range(parts):
            weight = _weight(_load_lse(at_lses + part * lses.stride_rows, inside), peak)[:, None]
            at = states.ptr + token * states.stride_tokens + part * states.stride_parts
            seen = (weight > 0) & (columns < head_dim)
            acc += weight * tl.load(at + head[:, None] * states.stride_heads + columns, mask=seen, other=0.0)
        _store(acc * inverse(total)[:, None], out, token, head, columns, inside[:, None] & (columns < head_dim))


@triton.jit
def merge_two_states(
    a: Matrices, lse_a: Matrix, b: Matrices, lse_b: Matrix, mask, out: Matrices, lse: Matrix, heads, head_dim,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """`merge_states` of two parts, each a tensor of its own; out may be a, and lse may be lse_a.

    mask: bool [tokens], or a null pointer; a token's b is not read where it is false.
    """
    await_earlier_launches()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    inside = head < heads
    merged = tl.load(mask + token, given(mask), 1) != 0
    first = _load_lse(lse_a.ptr + token * lse_a.stride_rows + head * lse_a.stride_columns, inside)
    second = _load_lse(lse_b.ptr + token * lse_b.stride_rows + head * lse_b.stride_columns, inside & merged)
    peak = tl.maximum(first, second)
    of_a, of_b = _weight(first, peak), _weight(second, peak)
    total = of_a + of_b
    tl.store(lse.ptr + token * lse.stride_rows + head * lse.stride_columns, _lse(peak, total), mask=inside)

    for start in range(0, head_dim, BLOCK_D):
        columns = (start + tl.arange(0, BLOCK_D))[None, :]
        there = columns < head_dim
        at_a = a.ptr + token * a.stride_batch + head[:, None] * a.stride_rows + columns
        at_b = b.ptr + token * b.stride_batch + head[:, None] * b.stride_rows + columns
        acc = of_a[:, None] * tl.load(at_a, mask=(of_a > 0)[:, None] & there, other=0.0)
        acc += of_b[:, None] * tl.load(at_b, mask=(of_b > 0)[:, None] & there, other=0.0)
        _store(acc * inverse(total)[:, None], out, token, head, columns, inside[:, None] & there)


@triton.jit
def _load_lse(pointers, inside):
    """Load logarithms of sums; -inf outside, and for +inf, which is another mark of a row without keys."""
    lse = tl.load(pointers, mask=inside, other=float("-inf"))
    return tl.where(lse == float("inf"), float("-inf"), lse)


@triton.jit
def _weight(lse, peak):
    # -inf - -inf is NaN.
    return tl.exp2((lse - tl.where(peak == float("-inf"), 0.0, peak)) * LOG2_E)


@triton.jit
def _lse(peak, total):
    return peak + tl.log2(total) * LN_2


@triton.jit
def _store(values, out, token, head, columns, inside):
    at = out.ptr + token * out.stride_batch + head[:, None] * out.stride_rows + columns
    tl.store(at, values.to(out.ptr.dtype.element_ty), mask=inside)
