"""Speculative decoding: which of the tokens that a draft proposes are kept, and what follows them."""

import triton
import triton.language as tl

from kernels.common.softmax import LOG2_E
from kernels.common.tensors import Matrices, Matrix, Vector, given
from kernels.rows.sample import COLD, LOWEST_NUMBER, OF_DRAFTS, drafted, merged, order_key, uniform


@triton.jit
def accept_drafts(
    logits: Matrix, draft_tokens: Matrix, draft_probs: Matrices, temperature: Vector, seeds, positions, thresholds,
    peaks, log_sums, part_keys, part_columns, tokens: Matrix, accepted, cols, parts, group, PARTS: tl.constexpr,
    PROBABILITIES: tl.constexpr = False,
):  # fmt: skip
    """Accept each request's drafts up to the first that is refused. Grid: (batch,).

    Row request * group + place of logits [batch * group, cols] is what the model says in the place of a draft, and the
    last of a group what it says behind them all. part_keys, part_columns: int32 [rows, parts], of which
    `sample.choose_parts` has made the token to choose if the draft is refused, or if there is none.

    draft_tokens: int32 [batch, group - 1]; where no column has that number, there is no draft, nor one behind it.
    draft_probs: fp32 [batch, group - 1, cols], with what probabilities tokens were drafted, or a null pointer: a draft
    is accepted where it is the token to choose. thresholds, peaks, log_sums: those of `sample.threshold_rows`.
    PROBABILITIES: logits are probabilities, of any sum. An absent temperature is 1.

    tokens: int32 [batch, group]: the drafts that are accepted, one more token, and -1. accepted: int32 [batch].
    """
    request = tl.program_id(0)
    heat = 1.0
    if temperature.ptr is not None:
        heat = tl.load(temperature.ptr + request * temperature.stride_rows)
    seed = tl.load(seeds + request)
    position = tl.load(positions + request)
    weighed = given(draft_probs.ptr) & (heat > COLD)
    count = 0
    going = True
    for place in range(group):
        row = request * group + place
        key, choice = merged(part_keys, part_columns, row, parts, PARTS)
        draft = drafted(draft_tokens, request, place, group, cols)
        there = draft >= 0
        accept = there & (choice == draft)
        if weighed & there:
            logit = tl.load(logits.ptr + row.to(tl.int64) * logits.stride_rows + draft).to(tl.float32)
            if PROBABILITIES:
                p = logit * tl.exp2(-tl.load(log_sums + row))
            else:
                p = tl.exp2((logit - tl.load(peaks + row)) * (LOG2_E / heat) - tl.load(log_sums + row))
            p = tl.where(order_key(logit) >= tl.load(thresholds + row), p, 0.0)
            at = request.to(tl.int64) * draft_probs.stride_batch + place * draft_probs.stride_rows + draft
            u = uniform(seed, position + place, 0 * draft, OF_DRAFTS)
            # Where nothing exceeds the draft's probabilities, they are the model's own, but for rounding.
            accept = (u * tl.load(draft_probs.ptr + at) < p) | (key <= LOWEST_NUMBER)
        token = tl.where(going, tl.where(accept, draft, choice), -1)
        tl.store(tokens.ptr + request.to(tl.int64) * tokens.stride_rows + place, token)
        going = going & accept
        count += going.to(tl.int32)
    tl.store(accepted + request, count)
