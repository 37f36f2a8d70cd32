"""Process logits before sampling, and count tokens for penalties."""

import triton
import triton.language as tl

from kernels.common.softmax import cap
from kernels.common.tensors import Matrix, Vector, given

IN_PROMPT: tl.constexpr = tl.constexpr(1 << 30)
"""Bit of a count: the token is in the prompt. The bits below count how often it was generated."""


@triton.jit
def process_pieces(
    logits: Matrix, bias: Matrix, counts: Matrix, sequences, repetition_penalty: Vector, presence_penalty: Vector,
    frequency_penalty: Vector, out: Matrix, cols, capacity, softcap, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK logits of a row: capped, biased, penalised for being repeated. Grid: (rows, cdiv(cols, BLOCK)).

    logits, out: [rows, cols] of one dtype, columns contiguous; arithmetic is fp32. softcap: softcap * tanh(logit /
    softcap) first; 0: none. bias: fp32 [rows, cols], added then, or a null pointer.

    counts: int32 [capacity, cols] or a null pointer: how often each sequence has generated each token, and IN_PROMPT.
    sequences: int32 [rows], whose counts are a row's, or a null pointer: each row's are its own. A row without counts
    is not penalised. repetition_penalty divides logits > 0 and multiplies the others, of tokens that are in the prompt
    or were generated; of those that were generated frequency_penalty is subtracted as often as they were, and
    presence_penalty once. fp32 [rows] or null pointers.
    """
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < cols
    values = tl.load(logits.ptr + row * logits.stride_rows + columns, mask=inside, other=0.0).to(tl.float32)
    if softcap > 0:
        values = cap(values, 1.0, softcap)
    if given(bias.ptr):
        values += tl.load(bias.ptr + row * bias.stride_rows + columns, mask=inside, other=0.0)
    if given(counts.ptr):
        repetition = _of_row(repetition_penalty, row, 1.0)
        presence, frequency = _of_row(presence_penalty, row, 0.0), _of_row(frequency_penalty, row, 0.0)
        sequence = tl.load(sequences + row, given(sequences), row)
        counted = (sequence >= 0) & (sequence < capacity)
        counted = counted & ((repetition != 1.0) | (presence != 0.0) | (frequency != 0.0))
        at = counts.ptr + sequence.to(tl.int64) * counts.stride_rows
        count = tl.load(at + columns, mask=inside & counted, other=0)
        repeated = tl.where(values > 0, values / repetition, values * repetition)
        values = tl.where(count != 0, repeated, values)
        times = count & (IN_PROMPT - 1)
        values = tl.where(times > 0, values - (frequency * times.to(tl.float32) + presence), values)
    tl.store(out.ptr + row * out.stride_rows + columns, values.to(out.ptr.dtype.element_ty), mask=inside)


@triton.jit
def _of_row(parameter, row, neutral):
    """Load a row's element of a `Vector`; `neutral` if that is null."""
    return tl.load(parameter.ptr + row * parameter.stride_rows, given(parameter.ptr), neutral)


@triton.jit
def count_tokens(tokens, sequences, counts: Matrix, count, capacity, cols, prompt, BLOCK: tl.constexpr):
    """Add tokens to the counts of their sequences. Grid: (cdiv(count, BLOCK),).

    tokens: int32 [count]; sequences: int32 [count], or a null pointer: token i is sequence i's. counts: int32
        [capacity, cols]. prompt: the tokens are in the prompt; otherwise they were generated. Tokens and sequences out
        of range are ignored.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    present = at < count
    token = tl.load(tokens + at, mask=present, other=-1)
    sequence = tl.load(sequences + at, mask=present & given(sequences), other=-1)
    sequence = tl.where(given(sequences), sequence, at)
    counted = present & (token >= 0) & (token < cols) & (sequence >= 0) & (sequence < capacity)
    target = counts.ptr + sequence.to(tl.int64) * counts.stride_rows + token
    if prompt:
        tl.atomic_or(target, IN_PROMPT, mask=counted, sem="relaxed")
    else:
        tl.atomic_add(target, 1, mask=counted, sem="relaxed")
