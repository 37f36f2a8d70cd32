"""Faults in the kernels of decoding: each is noticed by the very tests of its op."""

from __future__ import annotations

import pytest

from tests.ops.decode import test_append, test_contiguous, test_flex, test_paged
from tests.ops.decode.cases import FP16, packed
from tests.support.planted_faults import Plant, assert_noticed

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(4)]

# Name: the op, and the test that is to fail, with its arguments.
TESTS = {
    "plain": ("flash_decode", test_contiguous.test_flash_decode, 64, FP16, 3, 4, 1),
    "padded": ("flash_decode", test_contiguous.test_flash_decode, 40, FP16, 3, 4, 1),
    "last tile": ("flash_decode", test_contiguous.test_a_last_tile_of_a_key_more_or_less, 201),
    "lengths": ("flash_decode", test_contiguous.test_lengths_within_a_batch, 1),
    "parts": ("flash_decode", test_contiguous.test_lengths_within_a_batch, 4),
    "many parts": ("paged_attention", test_paged.test_parts_change_no_more_than_rounding, (128,)),
    "int8": ("flash_decode", test_contiguous.test_caches_of_8_bits, "int8", (True, False), 1),
    "int4": ("flash_decode_int4", test_contiguous.test_caches_of_4_bits, 4, packed, 1),
    "blocks": ("paged_attention", test_paged.test_block_sizes, 64, 1),
    "odd blocks": ("paged_attention", test_paged.test_block_sizes, 17, 2),
    "ragged": ("paged_attention", test_paged.test_ragged_queries, FP16, 56, (3, 3), 1),
    "table outside": ("paged_attention", test_paged.test_a_table_that_points_outside_reads_nothing_outside),
    "no sequence": ("paged_attention", test_paged.test_rows_of_no_sequence_are_left_out, 3),
    "window": ("paged_attention", test_paged.test_window, 20, 1),
    "alibi": ("paged_attention", test_paged.test_scores, True, {"softcap": 1.5}),
    "latent": ("mla_decode", test_paged.test_latent_vectors, 256, 16, 64, 1),
    "lists": ("flex_decode", test_flex.test_blocks_in_any_order, 64, 3),
    "full": ("flex_decode_causal", test_flex.test_functions_are_not_asked_about_full_blocks),
    "append": ("append_kv", test_append.test_append, 40),
    "rotated": ("append_kv", test_append.test_append_rotated, 8, True),
    "append int8": ("append_kv|append_kv_per_token", test_append.test_append_of_8_bits, "int8"),
    "append int4": ("append_kv_int4", test_append.test_append_of_4_bits, 4),
}

# Name: the test that shows it, the file, what is right there, and what is wrong.
FAULTS = {
    "acc not rescaled": ("plain", "split", "acc * rescale[:, None])", "acc)"),
    "first key head for all": ("plain", "split", "cache.ptr + head_kv * cache.stride_heads", "cache.ptr"),
    "one key too many": ("window", "split", "(distance | (scoring.reach - distance)) >= 0",
        "(distance + 1 | (scoring.reach - distance)) >= 0"),
    "last key dropped": ("last tile", "parts", "minimum(end, first + length)", "minimum(end - 1, first + length)"),
    "keys past the end read": ("lengths", "split", "tl.minimum(keys, sequence.keys - 1)", "keys"),
    "lengths not clamped": ("lengths", "parts", "tl.minimum(tl.maximum(tl.load(seqlens_k + batch), 0), seqlen_k)",
        "tl.load(seqlens_k + batch)"),
    "lse in base 2": ("lengths", "parts", "row_lse * LN_2", "row_lse"),
    "parts overlap": ("parts", "parts", "first = begin + split * length", "first = begin + split * length // 2"),
    "parts not rescaled": ("many parts", "parts", "acc = acc * rescale[:, None] + tl.sum", "acc = acc + tl.sum"),
    "parts of other heads": ("parts", "parts", "token).to(tl.int64) * heads + head)", "token).to(tl.int64) * heads)"),
    "padding of head_dim written": ("padded", "parts", "mask=(columns < head_dim)[None, :])",
        "mask=(columns < HEAD_DIM)[None, :])"),
    "heads not grouped": ("plain", "parts", "head_kv * group + rows % group", "head_kv + rows % group"),
    "scales of V for K": ("int8", "split", "products *= tl.load(k_factors)", "products *= tl.load(v_factors)"),
    "gain left in": ("int8", "split", "acc *= 1.0 / GAIN", "acc *= 1.0"),
    "nibbles swapped": ("int4", "int4", "low = tl.join(tl.join(low0, low2)", "low = tl.join(tl.join(low2, low0)"),
    "columns left interleaved": ("int4", "split", "acc = deinterleave(acc)", "acc = acc"),
    "pairs of the first group": ("int4", "int4", "tl.arange(0, GROUPS) * groups // GROUPS)[None, :]\n    factor",
        "tl.arange(0, GROUPS) * 0)[None, :]\n    factor"),
    "block of another tile": ("blocks", "cache", "tl.load(table + start // tables.block_size)", "tl.load(table)"),
    "place past its block": ("odd blocks", "cache", "place = tokens % tables.block_size", "place = tokens"),
    "first sequence's table": ("odd blocks", "cache", "tables.ptr + batch * tables.stride_batch", "tables.ptr"),
    "blocks not clamped": ("table outside", "cache", "tl.minimum(tl.maximum(block, 0), tables.blocks - 1)", "block"),
    "first sequence's queries": ("ragged", "parts", "(sequence.first_token + rows.tokens)", "(rows.tokens)"),
    "queries see the future": ("ragged", "split", "offset = sequence.keys - sequence.queries",
        "offset = sequence.keys"),
    "rows of no sequence": ("no sequence", "parts", "token >= tl.load(cu_seqlens_q + sequences)", "token < 0"),
    "window one key short": ("window", "split", "window if window >= 0", "window - 1 if window >= 0"),
    "slopes of other heads": ("alibi", "split", "tl.load(alibi_slopes + heads,", "tl.load(alibi_slopes + 0 * heads,"),
    "rotated part left out": ("latent", "mla", "tl.dot(q_rope, tl.trans(rope_tile), scores)", "scores"),
    "mask of a tile forgotten": ("latent", "mla", "keys[None, :] <= last[:, None]", "keys[None, :] <= end"),
    "list of the first head": ("lists", "flex", "batch * indices.stride_batch + head_kv * indices.stride_heads",
        "batch * indices.stride_batch"),
    "full blocks asked about": ("full", "flex", "(shown != 0) | (not masked)", "shown != 0"),
    "slot's block dropped": ("append", "append", "slot.block * cache.stride_batch +", ""),
    "slots outside written": ("append", "append", "if place < 0 or place // block_size >= blocks:", "if place < 0:"),
    "pairs as halves": ("rotated", "append", "columns // 2, columns ^ 1, columns % 2 == 0",
        "columns // 2, columns ^ 1, columns < pairs"),
    "rounded down": ("append int8", "append", "x = (x + ROUNDER) - ROUNDER", "x = tl.floor(x)"),
    "not saturated": ("append int8", "append", "-LARGEST), LARGEST)", "-LARGEST), 2 * LARGEST)"),
    "groups not told apart": ("append int4", "int4", "groups <= MOST_GROUPS >> halvings", "groups <= MOST_GROUPS"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_noticed(planted: Plant, fault: str):
    name, file, right, wrong = FAULTS[fault]
    op, test, *arguments = TESTS[name]
    source = file if "/" in file else f"decode/{file}"
    bundle = planted("decode", f"op={op},T=float16", f"{source}.py", right, wrong)
    assert_noticed(lambda: test(bundle, *arguments))
