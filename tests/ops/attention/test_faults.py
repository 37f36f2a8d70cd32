"""Faults in the attention kernels: each is noticed by the very checks of `test_attention`."""

from __future__ import annotations

import pytest

from aot_runtime import Bundle
from tests.ops.attention.calls import check
from tests.ops.attention.cases import Case, make_call
from tests.support.planted_faults import Plant, assert_noticed

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(5)]

CASES = {
    "whole": Case(lengths=(64, 128)),
    "causal": Case("b", lengths=(64, 64)),
    "ragged": Case(lengths=(37, 53), heads=(2, 2)),
    "ragged causal": Case("b", lengths=(37, 53)),
    "top-left": Case("t", lengths=(37, 53)),
    "few keys": Case("b", lengths=(53, 37)),
    "top-left, few keys": Case("t", lengths=(53, 37)),
    "window": Case("b:20,5", lengths=(70, 90)),
    "wide window": Case("b:60,30", lengths=(64, 130)),
    "grouped": Case(lengths=(20, 33), heads=(6, 2)),
    "dies": Case(lengths=(40, 20), heads=(5, 5)),
    "columns": Case("b", lengths=(37, 53), v_rows=False),
    "padded": Case(lengths=(37, 53), head_dims=(40, 24)),
    "equal": Case(lengths=(37, 90), dtype="bfloat16", values=1.0),
    "varlen": Case(lengths=(37, 53), mode="varlen"),
    "varlen alibi": Case("t:10,4", score="alibi of batches", lengths=(53, 37), mode="varlen"),
    "bias": Case(score="bias", lengths=(37, 53)),
    "bias of keys": Case(score="bias of keys", lengths=(37, 64)),
    "alibi": Case("b", score="alibi", lengths=(37, 53)),
    "softcap": Case(score="softcap", lengths=(37, 53), magnitude=8.0),
    "softcap, negative": Case(score="softcap", lengths=(37, 64), magnitude=8.0, scale=-0.3),
}

# Name: the case that shows it, the file, what is right there, and what is wrong.
FAULTS = {
    "acc not rescaled": ("whole", "inner", "acc * rescale[:, None])", "acc)"),
    # As in tinygrad's kernel for RDNA, whose own test, of small numbers and a mean of squares, does not notice it.
    "block not rescaled": ("whole", "common/softmax", "return p, rescale",
        "return p * tl.exp2(origin - block_max)[:, None], rescale"),
    "sum not rescaled": ("whole", "common/softmax", "row_sum * rescale + ", "row_sum + "),
    "maximum not kept": ("whole", "common/softmax", "rescale, new_max,", "rescale, row_max,"),
    "batch stride dropped": ("whole", "forward", "batch * tensor.stride_batch", "0 * tensor.stride_batch"),
    "lse in base 2": ("whole", "forward", "log2_sum(row_max, row_sum) * LN_2", "log2_sum(row_max, row_sum)"),
    "lse never written": ("whole", "forward", "if lse.ptr.to(tl.int64) != 0:", "if False:"),
    "exp for exp2": ("whole", "inner", "scoring.scale * LOG2_E, EMPTY", "scoring.scale, EMPTY"),
    "V of the wrong block": ("whole", "inner", "rows_from(keys.v, start)", "rows_from(keys.v, span.begin)"),
    "exp for exp2 where masked": ("causal", "inner", "products * (scoring.scale * LOG2_E)", "products * scoring.scale"),
    "right edge one key short": ("causal", "inner", "offsets[None, :] < 0\n    elif",
        "offsets[None, :] <= 0\n    elif"),
    "right edge one key long": ("causal", "inner", "offsets[None, :] < 0\n    elif", "offsets[None, :] < -1\n    elif"),
    "diagonal block unmasked": ("causal", "masks", "first_diagonal + right + 1", "last_diagonal + right + 1"),
    "last block dropped": ("causal", "masks", "last_diagonal + right + 1", "first_diagonal + right"),
    "left edge one key short": ("window", "inner", "(tile.first_key - start)[:, None] < 0)",
        "(tile.first_key - start)[:, None] <= 0)"),
    "left edge one key long": ("window", "inner", "(tile.first_key - start)[:, None] < 0)",
        "(tile.first_key - start)[:, None] < -1)"),
    "left edge unmasked": ("wide window", "masks", "tl.cdiv(tl.maximum(last_diagonal - left, 0), BLOCK_N)",
        "tl.cdiv(begin, BLOCK_N)"),
    "first block dropped": ("wide window", "masks", "tl.maximum(first_diagonal - left, 0) //",
        "tl.maximum(last_diagonal - left, 0) //"),
    "hole not skipped": ("wide window", "inner", "at + (span.hole_end - span.hole)) if HOLE", "at) if HOLE"),
    "mask always top-left": ("ragged causal", "forward", "tl.where(window.bottom_right, seqlen_k - seqlen_q, 0)", "0"),
    "mask always bottom-right": ("top-left", "forward",
        "tl.where(window.bottom_right, seqlen_k - seqlen_q, 0)", "seqlen_k - seqlen_q"),
    "keys past the end seen": ("top-left, few keys", "forward", "tl.minimum(diagonal + right, seqlen_k - 1)",
        "diagonal + right"),
    "no sum in a row without keys": ("few keys", "common/softmax", "tl.where(total == 0, 1.0, total)", "total"),
    "no origin in a row without keys": ("few keys", "common/softmax",
        'tl.where(new_max == float("-inf"), 0.0, new_max) if', "new_max if"),
    "end one key long": ("ragged", "inner", "seqlen_k - start - offsets <= 0", "seqlen_k - start - offsets < 0"),
    "end one key short": ("ragged", "inner", "seqlen_k - start - offsets <= 0", "seqlen_k - start - offsets <= 1"),
    "last block of keys dropped": ("ragged", "masks", "    end = seqlen_k\n",
        "    end = seqlen_k // BLOCK_N * BLOCK_N\n"),
    "row past the end read": ("ragged", "inner", "mask=rows[:, None] < row_end,", "mask=rows[:, None] <= row_end,"),
    "queries past the end written": ("ragged", "forward", "stored = rows < seqlen_q", "stored = rows <= seqlen_q"),
    "padding of head_dim read": ("padded", "inner", "(columns[None, :] < column_end), other",
        "(columns[None, :] <= column_end), other"),
    "padding of head_dim written": ("padded", "forward", "    if form.PADDED:\n        mask",
        "    if False:\n        mask"),
    "heads not grouped": ("grouped", "forward", "head // (extents.heads // extents.heads_kv)",
        "head % (extents.heads // extents.heads_kv)"),
    "dies overlap": ("dies", "forward", " + tl.minimum(die, count % NUM_XCDS)", ""),
    "strides of K for V": ("columns", "inner", "rows_from(keys.v, start)",
        "Matrix(keys.v.ptr + start * keys.k.stride_rows, keys.v.stride_rows, keys.v.stride_columns)"),
    "V by columns read by rows": ("columns", "inner", "columns[None, :] * matrix.stride_columns", "columns[None, :]"),
    # The result is the ratio of the rounded probabilities' sum to the sum: a bias of the rounding shows.
    "bfloat16 truncated": ("equal", "common/rounding", "bitcast=True) + 0x8000)", "bitcast=True))"),
    "sequences overlap": ("varlen", "forward", "minimum(tl.load(cu_seqlens + batch + 1), rows) - first",
        "minimum(tl.load(cu_seqlens + batch + 1), rows)"),
    "sequences begin at 0": ("varlen", "forward", "matrix_of(out, batch, head, first_row)",
        "matrix_of(out, batch, head, 0)"),
    "sequences of K begin with Q's": ("varlen", "forward", "matrix_of(problem.k, batch, head_kv, first_row_k)",
        "matrix_of(problem.k, batch, head_kv, first_row_q)"),
    "bias of the wrong block": ("bias", "inner", "(scoring.bias + start)[:, None]", "scoring.bias[:, None]"),
    "bias in units of log2": ("bias", "inner", "bias.to(tl.float32) * LOG2_E", "bias.to(tl.float32)"),
    "bias of other queries": ("bias", "forward", "queries * bias.stride_rows",
        "queries % form.BLOCK_N * bias.stride_rows"),
    "bias without its heads": ("bias of keys", "forward", "head_of(bias, batch, head)", "head_of(bias, batch, 0)"),
    "slope of another head": ("alibi", "forward", "head_of(slopes, batch, head)", "head_of(slopes, batch, 0)"),
    "slope not taken": ("alibi", "inner", "if scoring.has_slope:", "if False:"),
    "ALiBi from the first key": ("alibi", "inner", "tile.diagonal - start", "tile.queries - start"),
    "slope of another batch": ("varlen alibi", "forward", "head_of(slopes, batch, head)", "head_of(slopes, 0, head)"),
    "ALiBi with a sign": ("varlen alibi", "inner", "tl.abs(distance) *", "distance *"),
    "no soft-cap": ("softcap", "inner", "if scoring.softcap > 0:", "if False:"),
    "soft-cap without its factor": ("softcap", "inner", "cap(scores, LN_2, scoring.softcap)",
        "cap(scores, 1.0, scoring.softcap)"),
    "soft-cap of the wrong width": ("softcap", "common/softcap", "softcap - 2 * softcap / (e + 1)", "1 - 2 / (e + 1)"),
    "sign of scale lost": ("softcap, negative", "forward", "q_tile = tl.where(scale < 0, -q_tile, q_tile)",
        "q_tile = q_tile + 0.0"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_right_kernels_pass(attention: Bundle, name: str):
    check(attention, make_call(CASES[name]))


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_noticed(planted: Plant, fault: str):
    name, file, right, wrong = FAULTS[fault]
    case = CASES[name]
    source = file if "/" in file else f"attention/{file}"
    bundle = planted("attention", f"op={case.op},T={case.dtype},HEAD_DIM=64", f"{source}.py", right, wrong)
    assert_noticed(lambda: check(bundle, make_call(case)))
