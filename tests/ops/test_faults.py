"""Faults in the kernels' sources, such as a dropped rescale: the checks of the families' tests notice each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")

from aot_emulator.errors import EmulationError
from aot_runtime import Bundle
from tests.ops.attention import calls, test_attention, test_cdna3
from tests.ops.attention.cases import Case, make_call
from tests.ops.attention.quantised import Quantised
from tests.ops.attention.quantised import make_call as make_quantised
from tests.ops.decode import test_append, test_contiguous, test_flex, test_float8, test_masks, test_paged
from tests.ops.gemm import test_cdna3 as products_cdna3
from tests.ops.gemm import test_eight_bits, test_float8_weights, test_grouped, test_lora
from tests.ops.gemm.checking import check as check_product
from tests.ops.moe import test_moe, test_quantised
from tests.ops.moe.checking import check_moe, made_codes, made_scaled
from tests.ops.moe.test_permute import check_align
from tests.ops.rows import (
    checking,
    test_limits,
    test_merge,
    test_processing,
    test_qk_norm,
    test_sampling,
    test_softmax_and_norms,
    test_verify,
)
from tests.support.dtypes import BF16, FP16, FP32, INT8, UINT8
from tests.support.op_bundles import OpBundles
from tests.support.plans import plan_of
from tests.support.session_builds import ROOT, session_cache

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(3)]

FNUZ = np.dtype(ml_dtypes.float8_e4m3fnuz)
Check = tuple[str, str, Callable[[Bundle], Any]]
"""A manifest, the filters of the variants that are needed, and what is to fail."""


def attention(mask: str = "0", lengths: tuple[int, int] = (37, 53), **options: Any) -> Check:
    case = Case(mask, lengths=lengths, **options)
    filters = f"op={case.op},T={case.dtype},HEAD_DIM=64"
    return "attention", filters, lambda bundle: calls.check(bundle, make_call(case))


def quantised(case: Quantised) -> Check:
    op = f"flash_attention_{case.op}" + "_varlen" * (case.mode == "varlen")
    return "attention_quantised", f"op={op},O=float16,HEAD_DIM=64", partial(_check_quantised, case=case)


def _check_quantised(bundle: Bundle, case: Quantised) -> None:
    calls.check(bundle, make_quantised(bundle, case))


def decode(op: str, test: Callable[..., None], *arguments: Any) -> Check:
    return "decode", f"op={op},T=float16", lambda bundle: test(bundle, *arguments)


def experts(op: str, made: Callable[..., dict[str, np.ndarray]], *arguments: Any) -> Check:
    given = made(np.random.default_rng(0), *arguments)
    return "moe", f"op={op},T=float16", partial(check_moe, op=op, **given)


def rows(op: str, vectors: str = "", cols: int = 50, **options: Any) -> Check:
    given = checking.given(np.random.default_rng(0), op, vectors, (5, cols), FP16) | options
    if "norm" in op:
        given["x"] += FP16.type(9)
    return "rows", f"op={op},T=float16", partial(checking.check, op=op, **given)


WHOLE, FEW_KEYS = attention(lengths=(64, 128)), attention("t", (53, 37))
CAUSAL, RAGGED, TOP_LEFT = attention("b", (64, 64)), attention(heads=(2, 2)), attention("t")
WINDOW, WIDE = attention("b:20,5", (60, 90)), attention("b:60,30", (64, 130))
VARLEN = attention(mode="varlen")
VARLEN_ALIBI = attention("t:10,4", (53, 37), score="alibi of batches", mode="varlen")
BIAS, ALIBI = attention(score="bias"), attention("b", score="alibi")
SOFTCAP = attention(score="softcap", magnitude=8.0, scale=-0.3)
COLUMNS = attention("b", v_rows=False)
OF_VALUES = (
    "attention", "op=flash_attention_varlen,T=float16,HEAD_DIM_V=512",
    lambda bundle: calls.check(bundle, make_call(Case("b", score="qv", lengths=(37, 53), mode="varlen"))),
)  # fmt: skip
EXACT = quantised(Quantised("int8", "b", lengths=(90, 50), int8_p=True, score="bias"))
INT8_VARLEN = quantised(Quantised("int8", "b", mode="varlen", score="bias"))
FLOAT32 = attention(dtype="float32", scale=1.0)
E5M2 = quantised(Quantised("fp8", float8="e5m2"))

FLOAT8_OUT = "attention_quantised", "op=flash_attention_fp8", partial(
    _check_quantised, case=Quantised("fp8", "b", score="sinks", dtype="float8"))  # fmt: skip

CDNA3 = attention(lengths=(70, 200))
CDNA3_WINDOW = attention("b:200,-1", (150, 400))
CDNA3_GROWING = *CDNA3[:2], partial(test_cdna3.test_maxima_that_grow, mask="0", dtype="float16", head_dim=64)
CDNA3_SINKS = *CDNA3[:2], partial(test_cdna3.test_sinks, case=Case("b", (64, 64), lengths=(70, 100)))

FLASH = decode("flash_decode", test_contiguous.test_flash_decode, 64, FP16, 3, 4, 1)
LENGTHS, PARTS = (decode("flash_decode", test_contiguous.test_lengths_within_a_batch, splits) for splits in (1, 4))
INT4 = decode("flash_decode_int4", test_contiguous.test_caches_of_4_bits, 64, 4, test_contiguous.packed, 1)
BLOCKS, ODD = (decode("paged_attention", test_paged.test_block_sizes, size, 2) for size in (64, 17))
PAGED_WINDOW = decode("paged_attention", test_paged.test_window, 20, 1)
RAGGED_QUERIES = decode("paged_attention", test_paged.test_ragged_queries, FP16, 56, (3, 3), 1)
AHEAD, CHUNKS, SHORT_CHUNKS, PADDING, SLOPES = (
    decode("paged_attention", test_masks.test_paged_attention, seed) for seed in (6, 14, 20, 2, 17)
)
FLOAT8 = "decode", "op=paged_attention_fp8", partial(test_float8.test_float8_queries, seed=6)
TO_FLOAT8 = (
    "decode",
    "op=paged_attention_fp8",
    partial(test_float8.test_float8_results, queries=FP16, head_dim=64, splits=1),
)
OTHER_DIMS = decode("paged_attention", test_paged.test_values_of_other_dims, 64, 128, FP16, 1)
TREE = "decode", "op=paged_attention_masked", partial(test_masks.test_custom_masks, seed=4)
LATENT = decode("mla_decode", test_paged.test_latent_vectors, 256, 64, 16, 64, 1)
APPEND = decode("append_kv", test_append.test_append, 40, FP16)
APPEND_INT8 = decode("append_kv|append_kv_per_token", test_append.test_append_of_8_bits, "int8")


def gemm(filters: str, test: Callable[..., None], *arguments: Any) -> Check:
    return "gemm", f"op={filters}", lambda bundle: test(bundle, *arguments)


GROUPED = gemm("grouped_matmul,T=float16", test_grouped.test_matrices_by_index, "float16")
MANY_GROUPS = gemm("grouped_matmul,T=float16", test_grouped.test_more_groups_than_are_looked_at_together)
SLOTS = gemm("grouped_scaled_matmul,T=float8_e4m3fnuz,E=float16", test_grouped.test_slots_partly_filled, "e4m3")
GROUPED_BLOCKS = gemm("grouped_block_scaled_matmul,T=int8,E=float16", test_grouped.test_eight_bits, (5, 0, 40),
                      "int8 blocks", False, (144, 272))  # fmt: skip
ZEROS = gemm("scaled_matmul,T=int8,E=float16", test_eight_bits.test_zeros_of_a, (33, 48, 64), False)
BATCHES = gemm("batched_scaled_matmul,T=int8,E=bfloat16", test_eight_bits.test_batched_scaled_matmul, (33, 48, 64),
               "int8", False, True, False)  # fmt: skip
BOUND = gemm("quantise,Q=int8", test_eight_bits.test_bounds_and_powers_of_two, 33, "int8")
SHIFTED = gemm("quantise_shifted", test_eight_bits.test_quantise_shifted, (3, 1040), FP16)
FLOAT8_WEIGHTS = gemm("linear_fp8,T=float16", test_float8_weights.test_linear_fp8, (33, 48, 272), FP16, "blocks")
LORA = "gemm", "op=lora_add,T=float16", partial(test_lora.check_added, call=test_lora.given(20, 48, 1040, 40))


def scaled(kind: str, shape: tuple[int, int, int]) -> Check:
    """A product with scales by the Gluon kernel for CDNA 3; of a long k, it has parts."""
    return "gemm", "op=scaled_matmul,E=bfloat16", lambda bundle: check_product(
        bundle, "scaled_matmul", BF16, **products_cdna3.scaled_operands(bundle, kind, shape, "bias"))  # fmt: skip


TILE_OF_8_BITS, PARTS_OF_8_BITS = scaled("e4m3", (65, 48, 80)), scaled("int8", (65, 48, 1200))
PARTS_OF_BLOCKS = "gemm", "op=block_scaled_matmul,E=bfloat16", lambda bundle: check_product(
    bundle, "block_scaled_matmul", BF16, **products_cdna3.scaled_blocks(bundle, (33, 48, 1200), 1))  # fmt: skip

ANYWHERE = gemm("matmul,T=float16,UNALIGNED=true", products_cdna3.test_lengths_of_rows_at_any_address, 71, True)

LONG = 20001  # columns of a row of several steps
SOFTMAX, LONG_SOFTMAX = (rows("softmax", cols=cols) for cols in (50, LONG))
LAYER, LONG_LAYER = (rows("layer_norm", "weight bias", cols) for cols in (50, LONG))
FUSED = rows("layer_norm", "weight", residual=np.random.default_rng(1).standard_normal((5, 50)).astype(FP16))
MASKED = rows("softmax", mask=np.random.default_rng(1).random((5, 50)) < 0.5)
HEADS = "rows", "op=qk_norm_rotary,T=float16", partial(test_qk_norm.check, call=test_qk_norm.given(40, 12, FP16))
SCALED = experts("moe_scaled", made_scaled, INT8, (5, 4, 2, 64, 48), FP16)
SCALED_BLOCKS = experts("moe_block_scaled", made_scaled, FNUZ, (5, 3, 2, 160, 144), FP16, (128, 128))
CLAMPED = "moe", "op=moe,T=bfloat16", partial(
    test_moe.test_clamped_and_shifted_products, shape=(33, 4, 2, 48, 33), activation="gelu_quick", limit=1.0,
    shift=1.0)  # fmt: skip
CODES = experts("moe_int4", made_codes, UINT8, (5, 3, 2, 64, 32), FP16, (2, 1), True)
STATIC_EXPERTS = "moe", "op=moe_scaled,T=bfloat16,W=int8", lambda bundle: test_quantised.test_static_scales(
    bundle, "int8", (5, 4, 2, 64, 48))  # fmt: skip
ORDERED = experts("moe_int8", made_codes, INT8, (5, 3, 2, 64, 32), FP16, (2, 1), False, True)
ALIGNED = "moe", "op=moe_align", partial(check_align, shape=(700, 3, 5), block_size=16)
KEPT = "rows", "op=sample,T=float32", test_sampling.test_the_kept_set_is_exact
PENALTIES = "rows", "op=process_logits,T=float32", test_processing.test_penalties_are_those_of_their_definitions
COUNTED = (
    "rows",
    "op=count_tokens",
    partial(test_processing.test_count_tokens, indexed=True, prompt=False, n=1000, capacity=5, cols=37),
)
JOINT = (
    "rows",
    "op=renorm_probs,T=float32",
    partial(test_limits.check_renormalised, cols=111, dtype=FP32, names=("top_k", "top_p"), joint=True),
)
STATIC, BOUNDED = (
    (
        "rows",
        "op=rms_norm_quantised,T=bfloat16",
        partial(test_softmax_and_norms.test_static_and_bounded_scales, cols=100, op="rms_norm", kind="int8", how=how),
    )
    for how in ({"scale": np.array([0.02], FP32)}, {"bound": 1.5})
)
MERGED = "rows", "op=merge_states,T=float16", partial(test_merge.check_merged, shape=(3, 3, 9, 33), dtype=FP16)
DRAFTS = (
    "rows",
    "op=verify_drafts,T=float32",
    partial(test_verify.check, call=test_verify.given(100, FP32, "draft_probs", "top_k")),
)

# What shows it, the file, what is right there, and what is wrong.
FAULTS: dict[str, tuple[Check, str, str, str]] = {
    "acc not rescaled": (WHOLE, "attention/inner", "acc * rescale[:, None],", "acc,"),
    # As in tinygrad's kernel for RDNA, whose own test, of small numbers and a mean of squares, does not notice it.
    "block not rescaled": (WHOLE, "common/softmax", "return p, rescale",
        "return p * tl.exp2(origin - block_max)[:, None], rescale"),
    "sum not rescaled": (WHOLE, "common/softmax", "row_sum * rescale + tl.sum(p, 1)", "row_sum + tl.sum(p, 1)"),
    "batch stride dropped": (WHOLE, "attention/forward", "batch * tensor.stride_batch", "0 * tensor.stride_batch"),
    "lse in base 2": (WHOLE, "attention/forward", "log2_sum(row_max, row_sum) * LN_2", "log2_sum(row_max, row_sum)"),
    "V of the wrong block": (WHOLE, "attention/inner", "rows_from(keys.v, start)", "rows_from(keys.v, span.begin)"),
    "exp for exp2": (CAUSAL, "attention/inner", "products * (scoring.scale * LOG2_E)", "products * scoring.scale"),
    "right edge one key short": (CAUSAL, "attention/inner", "offsets[None, :] < 0\n    elif",
        "offsets[None, :] <= 0\n    elif"),
    "diagonal block unmasked": (CAUSAL, "attention/masks", "first_query.last + 1", "last_query.last + 1"),
    "last block dropped": (CAUSAL, "attention/masks", "last_query.last + 1", "first_query.last"),
    "left edge one key long": (WINDOW, "attention/inner", "(tile.first_key - start)[:, None] < 0)",
        "(tile.first_key - start)[:, None] < -1)"),
    "left edge unmasked": (WIDE, "attention/masks", "tl.cdiv(tl.maximum(last_query.first, 0), BLOCK_N)",
        "tl.cdiv(begin, BLOCK_N)"),
    "hole not skipped": (WIDE, "attention/inner", "at + (span.hole_end - span.hole)) if HOLE", "at) if HOLE"),
    "chunk of attention one key long": ((*WIDE[:2], partial(test_attention.test_chunks, seed=8)), "attention/masks",
        "begin + window.chunk - 1", "begin + window.chunk"),
    "mask always bottom-right": (TOP_LEFT, "attention/forward",
        "tl.where(window.bottom_right, seqlen_k - seqlen_q, 0)", "seqlen_k - seqlen_q"),
    "keys past the end seen": (FEW_KEYS, "attention/forward", "tl.minimum(seen.last, seqlen_k - 1)", "seen.last"),
    "no sum in a row without keys": (attention("b", (53, 37)), "common/softmax", "tl.where(total == 0, 1.0, total)",
        "total"),
    "end one key long": (RAGGED, "attention/inner", "start - offsets <= 0", "start - offsets < 0"),
    "row past the end read": (RAGGED, "attention/inner", "rows[:, None] < row_end, o", "rows[:, None] <= row_end, o"),
    "queries past the end written": (RAGGED, "attention/forward", "= rows < seqlen_q", "= rows <= seqlen_q"),
    "padding of head_dim written": (attention(head_dims=(40, 24)), "attention/forward",
        "    if form.PADDED:\n        mask", "    if False:\n        mask"),
    "heads not grouped": (attention(heads=(6, 2)), "attention/forward", "head // (extents.heads // extents.heads_kv)",
        "head % (extents.heads // extents.heads_kv)"),
    "XCDs overlap": (attention(lengths=(40, 20), heads=(5, 5)), "attention/forward",
        " + tl.minimum(xcd, count % NUM_XCDS)", ""),
    "strides of K for V": (COLUMNS, "attention/inner", "rows_from(keys.v, start)",
        "Matrix(keys.v.ptr + start * keys.k.stride_rows, keys.v.stride_rows, keys.v.stride_columns)"),
    # The result is the ratio of the truncated probabilities' sum to the sum: without the correction a bias shows.
    "loss of truncation not corrected": (attention(lengths=(37, 90), dtype="bfloat16", values=1.0), "attention/inner",
        "row_sum *= 2.0**-LOST", "pass"),
    "sequences overlap": (VARLEN, "attention/forward", "minimum(tl.load(cu_seqlens + batch + 1), rows) - first",
        "minimum(tl.load(cu_seqlens + batch + 1), rows)"),
    "sequences of K begin with Q's": (VARLEN, "attention/forward", "(problem.k, batch, head_kv, first_row_k)",
        "(problem.k, batch, head_kv, first_row_q)"),
    "bias of the wrong block": (BIAS, "attention/inner", "(scoring.bias + start)[:, None]", "scoring.bias[:, None]"),
    "bias of other queries": (BIAS, "attention/forward", "rows_q * bias.stride_rows",
        "rows_q % form.BLOCK_N * bias.stride_rows"),
    "bias of the first sequence": (attention("b", score="bias", mode="varlen"), "attention/forward",
        "batch, head, first_row_q + tile.queries, form", "batch, head, tile.queries, form"),
    "slope of another head": (ALIBI, "attention/forward", "head_of(slopes, batch, head)", "head_of(slopes, batch, 0)"),
    "ALiBi with a sign": (VARLEN_ALIBI, "attention/inner", "tl.abs(distance) *", "distance *"),
    "soft-cap of the wrong width": (SOFTCAP, "common/softmax", "softcap - 2 * softcap / (e + 1)", "1 - 2 / (e + 1)"),
    "sign of scale lost": (SOFTCAP, "attention/forward", "tl.where(scale < 0, -q_tile, q_tile)", "q_tile + 0.0"),
    "products of less than float32": (FLOAT32, "attention/inner", "acc * rescale[:, None], input_precision=\"ieee\"",
        "acc * rescale[:, None], input_precision=\"tf32\""),
    "probabilities of e5m2": (E5M2, "attention/inner", "tl.float8e5b16: tl.float8e4b8}", "}"),
    "scores of a masked row": (EXACT, "attention/int8", 'tl.where(best == float("-inf"), 0.0, best)[:, None]',
        "best[:, None]"),
    "maximum without the bias": (EXACT, "attention/int8", "products = visible_scores(products.to(tl.float32), tile,",
        "products = visible_scores(products.to(tl.float32) * 0, tile,"),
    "scales of the first sequence": (INT8_VARLEN, "attention/forward", "factor_of(problem.k_scale, batch, head_kv)",
        "factor_of(problem.k_scale, 0, head_kv)"),
    # The kernel for CDNA 3
    "acc of earlier maxima": (CDNA3_GROWING, "attention/cdna3", "acc[at] * factor[:, None]", "acc[at]"),
    "maxima never raised": (CDNA3_GROWING, "attention/cdna3", "v_cmp_gt_f32 vcc, $1, $2", "v_cmp_gt_f32 vcc, $2, $2"),
    "keys in the order of rows": (CDNA3, "attention/cdna3", "(n & ~12) | ((n & 4) << 1) | ((n & 8) >> 1)\n\n\n@gluon.c",
        "n\n\n\n@gluon.c"),
    "keys written before all have read them": (CDNA3, "attention/cdna3",
        "        if at == HALF - 4:\n            gl.barrier()\n", ""),
    "block of a window's edge unmasked": (CDNA3_WINDOW, "attention/cdna3", "span.full // BLOCK_N - 1",
        "span.full // BLOCK_N - 2"),
    "sink of the first head alone": (CDNA3_SINKS, "attention/cdna3", "gl.load(sinks + head)", "gl.load(sinks)"),
    # Decoding
    "part's acc not rescaled": (FLASH, "decode/split", "acc * rescale[:, None], input", "acc, input"),
    "heads of another key head": (FLASH, "decode/parts", "head_kv * group + rows % group", "head_kv + rows % group"),
    "keys past the end read": (LENGTHS, "decode/masks", "tl.minimum(tl.maximum(keys, first_key), sequence.keys - 1)",
        "tl.maximum(keys, first_key)"),
    "lengths not clamped": (LENGTHS, "decode/parts", "tl.minimum(tl.maximum(tl.load(seqlens_k + batch), 0), seqlen_k)",
        "tl.load(seqlens_k + batch)"),
    "parts overlap": (PARTS, "decode/parts", "begin + split * length", "begin + split * length // 2"),
    "parts not rescaled": (decode("paged_attention", test_paged.test_parts_change_no_more_than_rounding, (128,)),
        "decode/parts", "acc = acc * rescale[:, None] + tl.sum", "acc = acc + tl.sum"),
    "scales of V for K": (decode("flash_decode", test_contiguous.test_caches_of_8_bits, "int8", (True, False), 1),
        "decode/split", "products *= tl.load(k_factors)", "products *= tl.load(v_factors)"),
    "columns left interleaved": (INT4, "decode/split", "acc = deinterleave(acc)", "acc = acc"),
    "block of another tile": (BLOCKS, "decode/cache", "tl.load(table + start // tables.block_size)", "tl.load(table)"),
    "first sequence's table": (ODD, "decode/cache", "tables.ptr + batch * tables.stride_batch", "tables.ptr"),
    "queries see the future": (RAGGED_QUERIES, "decode/masks", "(sequence.keys - sequence.queries)", "sequence.keys"),
    "window one key short": (PAGED_WINDOW, "decode/masks", "mask.left) - mask.left", "mask.left) - mask.left + 1"),
    "right window one key short": (AHEAD, "decode/masks", "- 1 - mask.right) + mask.right",
        "- 1 - mask.right) + mask.right - 1"),
    "last tile of a right window left out": (AHEAD, "decode/masks", "last.first + last.count, 0)",
        "tl.minimum(last.first + last.count, sequence.keys - sequence.queries + 1), 0)"),
    "chunks from key 0": (CHUNKS, "decode/masks", "tl.maximum(diagonal - first_key, 0)", "tl.maximum(diagonal, 0)"),
    "chunk one key long": (SHORT_CHUNKS, "decode/masks", "mask.attention_chunk - 1)", "mask.attention_chunk)"),
    "padding seen": (PADDING, "decode/masks", "- mask.left, first_key)", "- mask.left, 0)"),
    "padding read": (PADDING, "decode/masks", "tl.maximum(keys, first_key)", "tl.maximum(keys, 0)"),
    "values of the keys' head dim": (OTHER_DIMS, "decode/split", "place, head_dim_v, groups",
        "place, head_dim, groups"),
    "mask of the first sequence": (TREE, "decode/split", "sequence.first_query + rows.tokens, mask",
        "rows.tokens, mask"),
    "keys of the mask's other words": (TREE, "decode/masks", "start % 32 + tl.arange", "tl.arange"),
    "slopes of the first sequence": (SLOPES, "decode/split", "batch * alibi_slopes.stride_batch", "0"),
    "sink of the first head": (decode("paged_attention|flash_decode", test_masks.test_sinks, 3, 64), "decode/parts",
        "tl.load(sinks + head + tl.arange(0, 1))", "tl.load(sinks + tl.arange(0, 1))"),
    "sink in the largest logit alone": (decode("paged_attention|flash_decode", test_masks.test_sinks, 1, 64),
        "common/softmax", "row_sum * rescale + tl.exp2(logit - origin)", "row_sum * rescale"),
    "queries of values without the sign": (("attention", "op=flash_attention,T=float16,HEAD_DIM_V=512",
        lambda bundle: calls.check(bundle, make_call(Case("b", (64, 300), "qv", scale=-0.05)))),
        "attention/forward", "tl.where(scale < 0, -qv_tile, qv_tile)", "qv_tile"),
    "queries of values of the first sequence": (OF_VALUES, "attention/forward",
        "matrix_of(problem.qv, batch, head, first_row_q)", "matrix_of(problem.qv, batch, head, 0)"),
    "float8 result not divided": (FLOAT8_OUT, "attention/forward", "factor /= tl.load", "factor *= tl.load"),
    "factors of the first sequence": (FLOAT8, "decode/split", "batch * factors.k_stride_batch", "0"),
    "factor of v left out": (TO_FLOAT8, "decode/split", "one_or(factors.v_factor, at)", "1.0"),
    "scale of latent vectors for the scores alone": (("decode", "op=mla_decode,T=float16,C=float8_e4m3fnuz",
        partial(test_paged.test_latent_vectors_of_other_dims_and_dtypes, latent=96, rope=48, dtype=FP16, cache="e4m3",
                splits=3)), "decode/mla", "* result_factor(factors, batch, 0)", "* 1.0"),
    "rotated part left out": (LATENT, "decode/mla",
        "tl.dot(q_rope, tl.trans(rope_tile), scores, input_precision=\"ieee\")", "scores"),
    "list of the first head": (decode("flex_decode", test_flex.test_blocks_in_any_order, 64, 3), "decode/flex",
        "batch * indices.stride_batch + head_kv * indices.stride_heads", "batch * indices.stride_batch"),
    "slots outside written": (APPEND, "decode/append", "place < 0 or place // block_size >= blocks:", "place < 0:"),
    "not saturated": (APPEND_INT8, "decode/append", "-LARGEST), LARGEST)", "-LARGEST), 2 * LARGEST)"),
    # Adapters
    "largest rank for all": (LORA, "gemm/lora", "tl.minimum(tl.load(ranks + adapter, given(ranks), rank), rank)",
        "rank"),
    "last adapter left out": (LORA, "gemm/lora", "range(lowest, highest + 1)", "range(lowest, highest)"),
    "first part of k alone": (LORA, "gemm/lora", "(part * m + rows", "(0 * m + rows"),
    "scale of the first adapter": (LORA, "gemm/lora", "adapter_scales + adapter,", "adapter_scales,"),
    # Groups, batches and zero points
    "matrix of the first group": (GROUPED, "gemm/grouped", "given(indices.ptr), group)", "group < 0, group)"),
    "bias of the first group": (GROUPED, "gemm/grouped", "group.to(tl.int64) * bias.stride_rows", "0"),
    "groups of the first look again": (MANY_GROUPS, "gemm/grouped", "before += tl.sum(tiles, 0)", "before += 0"),
    "counts left out": (SLOTS, "gemm/grouped", "(index < groups) & given(counts.ptr), rows)", "index < 0, rows)"),
    "scales of the first group's rows": (SLOTS, "gemm/grouped", "scale_a_at += first * scale_a.stride_rows",
        "scale_a_at += 0"),
    "scales of the first group's columns": (SLOTS, "gemm/grouped", "scale_b_at += group * scale_b.stride_rows",
        "scale_b_at += 0"),
    "blocks of the first group's rows": (GROUPED_BLOCKS, "gemm/grouped", "_run_of(scale_a, first)", "scale_a"),
    "zeros added": (ZEROS, "gemm/epilogue", "acc -= zero[:, None]", "acc += zero[:, None]"),
    "scales of the first batch": (BATCHES, "gemm/cdna3", "batch, epilogue.stride_scale_b_batch", "batch, 0"),
    "bias of the first batch": (BATCHES, "gemm/cdna3", "batch, epilogue.stride_bias_batch", "batch, 0"),
    # Gluon kernels for CDNA 3
    "steps of a part left out": (PARTS_OF_8_BITS, "gemm/cdna3", "part + gl.minimum(part, steps % parts)", "part"),
    "last step not cut short": (TILE_OF_8_BITS, "gemm/cdna3", "at, LOADS, ROWS, k - last)", "at, LOADS, ROWS, STEP)"),
    "elements of two steps counted twice": (ANYWHERE, "gemm/cdna3", "(inner >= skipped)", "(inner >= 0 * skipped)"),
    "scale of the first column": (TILE_OF_8_BITS, "gemm/cdna3", "at, columns * epilogue.stride_scale_b_n",
        "at, 0 * columns"),
    "scales of the first part": (PARTS_OF_BLOCKS, "gemm/cdna3_blocks", "moved(scale_a, begin // 128)", "scale_a"),
    "scale beyond its bound": (BOUND, "gemm/quantise", "tl.where(bound > 0, bound,", "tl.where(bound < 0, bound,"),
    "scales rounded down": (BOUND, "gemm/quantise", "power_of_two_above(factor), factor)",
        "0.5 * power_of_two_above(factor), factor)"),
    "scales by rows alone": (BOUND, "gemm/quantise", "tl.program_id(1) * scale.stride_columns", "tl.program_id(1)"),
    "columns past the end looked at": (SHIFTED, "gemm/quantise", "tl.where(inside, tl.maximum(most, value), most)",
        "tl.maximum(most, value)"),
    "scale of the first block of k": (FLOAT8_WEIGHTS, "gemm/block_scaled",
        "factor = tl.load(scale_b_at + start // BLOCK * scale_b_step)", "factor = tl.load(scale_b_at)"),
    # Sampling
    "last column not counted": (KEPT, "rows/sample", "        inside = columns < cols\n",
        "        inside = columns < cols - 1\n"),
    "min_p of another temperature": (KEPT, "rows/sample", "largest + heat * tl.log(least)", "largest + tl.log2(least)"),
    "prompts counted as generated": (PENALTIES, "rows/process", "times = count & (IN_PROMPT - 1)", "times = count"),
    "penalty of negative logits": (PENALTIES, "rows/process", "values * repetition)", "values / repetition)"),
    "counts lost": (COUNTED, "rows/process", "tl.atomic_add(target, 1, mask=counted, sem=\"relaxed\")",
        "tl.store(target, tl.load(target, counted, 0) + 1, mask=counted)"),
    "draft not subtracted": (DRAFTS, "rows/sample", "rest -= tl.load(drafts", "rest -= 0.0 * tl.load(drafts"),
    "noise of the tokens for refused drafts": (DRAFTS, "rows/sample", "is_residual, OF_RESIDUALS, OF_TOKENS",
        "is_residual, OF_TOKENS, OF_TOKENS"),
    "drafts that top_k leaves out": (DRAFTS, "rows/verify", "thresholds + row), p, 0.0)", "thresholds + row), p, p)"),
    "accepted behind a refused one": (DRAFTS, "rows/verify", "going = going & accept", "going = accept"),
    "top_p of the top_k": (JOINT, "rows/sample", "                floor = LOWEST", "                floor = threshold"),
    "sum of all probabilities": (JOINT, "rows/limit", "lanes += tl.where(order_key(values) >= threshold, values, 0.0)",
        "lanes += values"),
    # Merging of attention over parts
    "logarithms in base 2": (MERGED, "rows/merge", "0.0, peak)) * LOG2_E)", "0.0, peak)))"),
    "part without keys read": (MERGED, "rows/merge", "seen = (weight > 0) &", "seen = (weight >= 0) &"),
    "no sum without keys": (MERGED, "rows/merge", 'tl.where(peak == float("-inf"), 0.0, peak)', "peak"),
    # Heads of queries and keys
    "weights of the queries for keys": (HEADS, "rows/qk_norm", "_heads(k, k_weight", "_heads(k, q_weight"),
    "norm of what is rotated": (HEADS, "rows/qk_norm", "squares += rest * rest", "squares += 0.0 * rest"),
    "weights of the first half": (HEADS, "rows/qk_norm", "_gain(weight, pairs + pair,", "_gain(weight, pair,"),
    # Mixtures of experts
    "up not limited below": (CLAMPED, "moe/product", "tl.where(up < -gating.limit, -gating.limit, up)", "up"),
    "up not shifted": (CLAMPED, "moe/product", "(up + gating.shift)", "up"),
    "scales of the first expert": (SCALED, "moe/dequantise", "expert.to(tl.int64) * n + columns", "columns"),
    "scale of the first assignment": (SCALED, "moe/quantise", "row * scale.stride_rows", "0 * row"),
    "8 bits truncated": (SCALED, "gemm/quantise", "value = half_to_even(tl.minimum(", "value = (tl.minimum("),
    "scales of gate for up": (SCALED_BLOCKS, "moe/product", "(2 * expert + is_up) *", "(2 * expert) *"),
    "scale of the first block": (SCALED_BLOCKS, "moe/quantise", "row * scale.stride_rows + part",
        "row * scale.stride_rows"),
    "zeros of the first expert": (CODES, "moe/dequantise", "tl.where(given(zeros), before, 0)", "0"),
    "order of the first expert": (ORDERED, "moe/dequantise", "tl.where(given(order), expert.to(tl.int64) * k, 0)", "0"),
    "static scale left out": (STATIC_EXPERTS, "gemm/quantise", "tl.load(static) if given(static) else factor",
        "factor"),
    "counts of the last run": (ALIGNED, "moe/order", "tl.where(is_own_index, tl.sum(counted, 0)[None, :], 0)",
        "tl.where(is_own_index, (tl.sum(counted, 0) - earlier)[None, :], 0)"),
    "places of other experts": (ALIGNED, "moe/order", "place[:, None] + before, is_own)", "before, is_own)"),
    "nobody's places left out": (ALIGNED, "moe/order", "(expert < 0) | (expert >= experts)", "(expert < 0)"),
    "end of the order left out": (ALIGNED, "moe/order", "for start in range(total, blocks * BLOCK_M, STEP)",
        "for start in range(total + 1, blocks * BLOCK_M, STEP)"),
    # Softmax and norms
    "given scale not taken": (STATIC, "rows/norm", "tl.where(given(scale), tl.load", "tl.where(bound < 0, tl.load"),
    "scale without a bound": (BOUNDED, "rows/norm", "tl.where(bound > 0, bound,", "tl.where(bound < 0, bound,"),
    "padding counted": (SOFTMAX, "rows/softmax", 'tl.where(inside, values, float("-inf"))', "values"),
    "one column too many": (SOFTMAX, "rows/softmax", "    inside = (row < rows) & (columns < cols)",
        "    inside = (row < rows) & (columns <= cols)"),
    "packed out": (SOFTMAX, "rows/softmax", "(out.ptr + row * out.stride_rows", "(out.ptr + row * cols"),
    "first row's mask for all": (MASKED, "rows/softmax", "mask.ptr + row * mask.stride_rows", "mask.ptr + 0 * row"),
    "lanes not rescaled": (LONG_SOFTMAX, "rows/softmax", "lane_sum * _exp(lane_max - _finite(most))", "lane_sum"),
    "padding in the variance": (LAYER, "rows/norm",
        "tl.where(inside, values - (tl.sum(values, 1) / cols)[:, None], 0.0)",
        "values - (tl.sum(values, 1) / cols)[:, None]"),
    "no eps": (rows("rms_norm", "weight", eps=0.25), "rows/norm", "(values * values, 1) / cols + eps",
        "(values * values, 1) / cols"),
    "sum not written": (FUSED, "rows/norm",
        "tl.store(residual.ptr + row * residual.stride_rows + columns, rounded, mask=there)", "pass"),
    "lanes not joined": (LONG_LAYER, "rows/norm", "counts * (means - mean) * (means - mean)", "0.0"),
    "Welford's second factor": (LONG_LAYER, "rows/norm", "delta * (values - lane_mean)", "delta * delta"),
}  # fmt: skip


def planted(fault: str) -> str:
    """Return the source of a kernel's file with a fault."""
    _, file, right, wrong = FAULTS[fault]
    text = (ROOT / f"kernels/{file}.py").read_text()
    assert text.count(right) == 1, f"the kernel changed: {right!r} of '{fault}' occurs {text.count(right)} times"
    return text.replace(right, wrong)


def test_every_fault_can_be_planted():
    for fault in FAULTS:
        planted(fault)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_noticed(op_bundles: OpBundles, tmp_path: Path, fault: str):
    from tests.support.on_demand import BundleOnDemand

    (manifest, filters, check), file, *_ = FAULTS[fault]
    check(op_bundles.open(manifest, filters))
    for folder in ("kernels", "manifests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / f"kernels/{file}.py").write_text(planted(fault))
    path = tmp_path / f"manifests/{manifest}.yaml"
    faulty = BundleOnDemand(plan_of(path, op_bundles.device.arch, filters), op_bundles.device, session_cache())
    with pytest.raises((AssertionError, EmulationError)):
        check(faulty)
