"""Choosing a token by its logit: the largest, or at random among the largest.

Logits are compared as integer keys in the same order, so that sets of the largest are those at or above a key. To draw
one in proportion to exp(logit / temperature), noise of Gumbel's distribution is added to each logit / temperature, and
the largest sum is taken: a row may be cut into parts for that.
"""

import triton
import triton.language as tl

from kernels.common.pdl import await_earlier_launches
from kernels.common.softmax import LOG2_E
from kernels.common.tensors import Matrices, Matrix, Vector, given

LOWEST: tl.constexpr = tl.constexpr(-(2**31))
"""A key below all logits'."""
LOWEST_NUMBER: tl.constexpr = tl.constexpr(-2139095041)
"""The key of -inf."""
COLD: tl.constexpr = tl.constexpr(1e-20)
"""At temperatures up to this, the largest logit is chosen: its noise would be lost in rounding anyway."""
OF_TOKENS: tl.constexpr = tl.constexpr(0)
"""Streams of random numbers: for choosing tokens, accepting drafts, and choosing tokens in place of refused drafts."""
OF_DRAFTS: tl.constexpr = tl.constexpr(1)
OF_RESIDUALS: tl.constexpr = tl.constexpr(2)


@triton.jit
def choose_parts(
    logits: Matrix, part_keys, part_columns, cols, parts, STEP: tl.constexpr,
    temperature: Vector = None, seeds=None, positions=None, thresholds=None,
    # Of the verification of drafts
    group=1, draft_tokens: Matrix = None, draft_probs: Matrices = None, peaks=None, log_sums=None,
    PROBABILITIES: tl.constexpr = False,
):  # fmt: skip
    """The best column of each part of each row, the first of equal ones. Grid: (rows, parts).

    logits: [rows, cols], columns contiguous. part_keys, part_columns: int32 [rows, parts].

    seeds: int64 [rows] or None: the best is the one with the largest logit. Else it is the one with the largest logit /
    temperature + noise, the noise a function of seeds, positions (int32 [rows]) and the column; temperature: fp32
    [rows], or None: 1. PROBABILITIES: logits are probabilities, and their logarithms the logits.
    thresholds: int32 [rows] or None; columns with keys below them do not take part.

    group: rows that share an element of temperature, seeds and positions, of which each takes the position behind that
    of the row before. peaks, log_sums: those of `threshold_rows`, or None. With them rows are those of
    `verify.accept_drafts`: where draft_probs has probabilities of the token that was drafted for a row, the best is
    drawn in proportion to what the row's own probabilities exceed them by, with noise of its own.
    """
    await_earlier_launches()
    row, part = tl.program_id(0), tl.program_id(1)
    request, place = row // group, row % group
    source = logits.ptr + row * logits.stride_rows
    length = tl.cdiv(tl.cdiv(cols, parts), STEP) * STEP
    begin = part * length
    end = tl.minimum(cols, begin + length)

    heat = 0.0
    threshold = LOWEST
    seed = 0
    position = 0
    if seeds is not None:
        heat = 1.0
        if temperature.ptr is not None:
            heat = tl.load(temperature.ptr + request * temperature.stride_rows)
        seed = tl.load(seeds + request)
        position = tl.load(positions + request) + place
    if thresholds is not None:
        threshold = tl.load(thresholds + row)
    use = OF_TOKENS
    peak = 0.0
    if log_sums is not None:
        peak, log_sum = tl.load(peaks + row), tl.load(log_sums + row)
        is_residual = given(draft_probs.ptr) & (drafted(draft_tokens, request, place, group, cols) >= 0)
        drafts = draft_probs.ptr + request.to(tl.int64) * draft_probs.stride_batch + place * draft_probs.stride_rows
        use = tl.where(is_residual, OF_RESIDUALS, OF_TOKENS)

    lane_key = tl.full([STEP], LOWEST, tl.int32)
    lane_column = tl.zeros([STEP], tl.int32)
    for start in range(begin, end, STEP):
        columns = start + tl.arange(0, STEP)
        inside = columns < end
        values = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
        kept = inside & (order_key(values) >= threshold)
        if heat > COLD:
            if PROBABILITIES:
                scores = tl.where(values > 0, tl.log(values), float("-inf"))
            else:
                scores = (values - peak) * (1.0 / heat)
            if log_sums is not None:
                if PROBABILITIES:
                    rest = values * tl.exp2(-log_sum)
                else:
                    rest = tl.exp2((values - peak) * (LOG2_E / heat) - log_sum)
                rest -= tl.load(drafts + columns, mask=inside & is_residual, other=0.0)
                scores = tl.where(is_residual, tl.where(rest > 0, tl.log(rest), float("-inf")), scores)
            values = scores + _gumbel(seed, position, columns, use)
        keys = tl.where(kept, order_key(values), LOWEST)
        better = keys > lane_key
        lane_column = tl.where(better, columns, lane_column)
        lane_key = tl.where(better, keys, lane_key)
    _store_best(lane_key, lane_column, part_keys + row.to(tl.int64) * parts + part,
                part_columns + row.to(tl.int64) * parts + part)  # fmt: skip


@triton.jit
def merge_choices(part_keys, part_columns, out, parts, PARTS: tl.constexpr):
    """The best of the parts of each row. Grid: (rows,). out: int32 [rows]; PARTS: power of two >= parts."""
    await_earlier_launches()
    row = tl.program_id(0)
    _, column = merged(part_keys, part_columns, row, parts, PARTS)
    tl.store(out + row, column)


@triton.jit
def threshold_rows(
    logits: Matrix, temperature: Vector, top_k: Vector, top_p: Vector, min_p: Vector, thresholds, cols,
    STEP: tl.constexpr, SAME_BITS: tl.constexpr,
    # Of the verification of drafts
    group=1, draft_probs: Matrices = None, peaks=None, log_sums=None,
    joint=0, PROBABILITIES: tl.constexpr = False,
):  # fmt: skip
    """The key at and above which logits take part. Grid: (rows,).

    First the top_k largest are kept, and with them those equal to the last; all if it is 0 or a null pointer. Of these
    as few of the largest as have top_p of the probability; all if it is 1 or a null pointer. Of these those that have
    min_p of the probability of the largest; all if it is 0 or a null pointer. joint: top_p is a part of the probability
    of all, not of the top_k largest.

    PROBABILITIES: logits are probabilities, of any sum. An absent temperature is 1.
    SAME_BITS: low bits of keys that follow from the others, an even number. group: rows that share an element of
    temperature, top_k, top_p and min_p. peaks, log_sums: fp32 [rows] or None; each row's largest logit, and the
    logarithm, to base 2, of the sum of exp((logit - that) / temperature) of what is kept; 0 without draft_probs.
    """
    row = tl.program_id(0)
    request = row // group
    source = logits.ptr + row * logits.stride_rows
    heat = 1.0
    if temperature.ptr is not None:
        heat = tl.load(temperature.ptr + request * temperature.stride_rows)
    k = tl.load(top_k.ptr + request * top_k.stride_rows, given(top_k.ptr), 0)
    p = tl.load(top_p.ptr + request * top_p.stride_rows, given(top_p.ptr), 1.0)
    least = tl.load(min_p.ptr + request * min_p.stride_rows, given(min_p.ptr), 0.0)
    threshold = LOWEST
    largest = 0.0
    log_sum = 0.0
    summed = False
    if log_sums is not None:
        summed = given(draft_probs.ptr)
    if heat > COLD:
        if (k > 0) & (k < cols):
            threshold = search(source, cols, LOWEST, 0.0, 0.0, k.to(tl.float32), STEP, SAME_BITS, False, False)
        factor = LOG2_E / heat
        if (p < 1.0) | (least > 0.0) | summed:
            lanes = tl.full([STEP], float("-inf"), tl.float32)
            for start in range(0, cols, STEP):
                columns = start + tl.arange(0, STEP)
                values = tl.load(source + columns, mask=columns < cols, other=float("-inf")).to(tl.float32)
                lanes = tl.maximum(lanes, values)
            largest = tl.max(lanes, 0)
        if p < 1.0:
            floor = threshold
            if joint:
                floor = LOWEST
            mass, _, _ = _masses(source, cols, floor, floor, floor, floor, largest, factor, STEP, True, PROBABILITIES)
            # The largest alone has so much, which is always kept.
            needed = tl.maximum(p * mass, largest if PROBABILITIES else 1.0)
            found = search(source, cols, floor, largest, factor, needed, STEP, SAME_BITS, True, PROBABILITIES)
            threshold = tl.maximum(threshold, found)
        if least > 0.0:
            bound = largest * least if PROBABILITIES else largest + heat * tl.log(least)
            threshold = tl.maximum(threshold, order_key(bound))
        if summed:
            mass, _, _ = _masses(
                source, cols, threshold, threshold, threshold, threshold, largest, factor, STEP, True, PROBABILITIES
            )
            log_sum = tl.log2(mass)
    tl.store(thresholds + row, threshold)
    if log_sums is not None:
        tl.store(peaks + row, tl.where(summed, largest, 0.0))
        tl.store(log_sums + row, log_sum)


@triton.jit
def search(
    logits, cols, floor, largest, factor, needed, STEP: tl.constexpr, SAME_BITS: tl.constexpr, WEIGHTED: tl.constexpr,
    PROBABILITIES: tl.constexpr,
):  # fmt: skip
    """The largest key at and above which columns have a mass of `needed`, of those from `floor` on; two bits a pass."""
    key = LOWEST
    for step in range((32 - SAME_BITS) // 2):
        unit = 1 << (30 - 2 * step)
        # In three steps of `unit` from the lowest key: no sum here leaves the range of int32.
        one, two, three = key + unit, key + unit + unit, key + unit + unit + unit
        first, second, third = _masses(
            logits, cols, floor, one, two, three, largest, factor, STEP, WEIGHTED, PROBABILITIES
        )
        if first >= needed:
            key += unit
        if second >= needed:
            key += unit
        if third >= needed:
            key += unit
    return key


@triton.jit
def _masses(
    logits, cols, floor, first, second, third, largest, factor, STEP: tl.constexpr, WEIGHTED: tl.constexpr,
    PROBABILITIES: tl.constexpr,
):  # fmt: skip
    """Count the columns with keys from `floor` on that have keys from `first`, from `second` and from `third` on.

    WEIGHTED: sum exp2((logit - largest) * factor) over them instead, or the PROBABILITIES themselves.
    """
    first_sum = tl.zeros([STEP], tl.float32)
    second_sum = tl.zeros([STEP], tl.float32)
    third_sum = tl.zeros([STEP], tl.float32)
    for start in range(0, cols, STEP):
        columns = start + tl.arange(0, STEP)
        inside = columns < cols
        values = tl.load(logits + columns, mask=inside, other=0.0).to(tl.float32)
        keys = order_key(values)
        weights = tl.where(inside & (keys >= floor), 1.0, 0.0)
        if WEIGHTED:
            powers = values if PROBABILITIES else tl.exp2((values - largest) * factor)
            weights = tl.where(weights > 0, powers, 0.0)
        first_sum += tl.where(keys >= first, weights, 0.0)
        second_sum += tl.where(keys >= second, weights, 0.0)
        third_sum += tl.where(keys >= third, weights, 0.0)
    return tl.sum(first_sum, 0), tl.sum(second_sum, 0), tl.sum(third_sum, 0)


@triton.jit
def order_key(values):
    """int32 in the order of fp32: zeros alike, NaN above all, and none as low as LOWEST."""
    bits = tl.where(values == 0, 0.0, values).to(tl.int32, bitcast=True)
    return tl.where(values == values, tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits), 0x7FFFFFFF)


@triton.jit
def drafted(draft_tokens, request, place, group, cols):
    """The token that was drafted for a row, or -1 where there is none: for the last row of a group there never is."""
    at = draft_tokens.ptr + request.to(tl.int64) * draft_tokens.stride_rows + place
    token = tl.load(at, place < group - 1, -1)
    return tl.where(token < cols, token, -1)


@triton.jit
def merged(part_keys, part_columns, row, parts, PARTS: tl.constexpr):
    """(key, column) of the best of a row's parts."""
    part = tl.arange(0, PARTS)
    at = row.to(tl.int64) * parts + part
    keys = tl.load(part_keys + at, mask=part < parts, other=LOWEST)
    columns = tl.load(part_columns + at, mask=part < parts, other=0)
    largest = tl.max(keys, 0)
    return largest, tl.min(tl.where((keys == largest) & (part < parts), columns, 2147483647), 0)


@triton.jit
def uniform(seed, position, columns, use):
    """Draw a random number in (0, 1), one of 2**23, for each column. use: the stream; each has random numbers of its
    own."""
    nothing = columns * 0
    bits, _, _, _ = tl.philox(seed, columns, nothing + position, nothing + use, nothing)
    return ((bits >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)


@triton.jit
def _gumbel(seed, position, columns, use):
    """-log(-log(u)) of `uniform`."""
    return -tl.log(-tl.log(uniform(seed, position, columns, use)))


@triton.jit
def _store_best(keys, columns, best_key, best_column):
    largest = tl.max(keys, 0)
    tl.store(best_key, largest)
    tl.store(best_column, tl.min(tl.where(keys == largest, columns, 2147483647), 0))
