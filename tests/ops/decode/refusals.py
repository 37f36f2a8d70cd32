"""Calls that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle
from tests.ops.decode.cases import (
    FP16,
    INT8,
    all_blocks,
    paged,
)


def paged_arguments() -> dict[str, np.ndarray]:
    case = paged([(1, 60), (1, 20)], 16)
    case.block_tables[case.block_tables > 100] = -1
    return vars(case)


@pytest.mark.parametrize(
    "name, at, value, message",
    (
        ("block_tables", (0, 1), 99, r"'block_tables' has 99 at \[0, 1\]; -1 to 8 \(-1 to blocks - 1\) is allowed"),
        ("block_tables", (1, 0), -2, r"'block_tables' has -2 at \[1, 0\]"),
        ("seqlens_k", 1, 81, r"'seqlens_k' has 81 at \[1\]; 0 to 80 \(0 to blocks_per_sequence \* block_size\)"),
        ("seqlens_k", 0, -1, "'seqlens_k' has -1"),
        ("cu_seqlens_q", 1, 3, "'cu_seqlens_q' decreases at 2, from 3 to 2"),
        ("cu_seqlens_q", 2, 3, "'cu_seqlens_q' ends with 3, but tokens is 2"),
        ("cu_seqlens_q", 1, 2, "gives sequence 0 a length of 2, but max_seqlen_q is 1"),
    ),
)
def test_tables_that_point_outside(decode: Bundle, looking: Bundle, name: str, at: object, value: int, message: str):
    """Wherever the host can see it; on the device, if the bundle was opened to look there."""
    arguments = paged_arguments()
    arguments[name][at] = value
    with pytest.raises(ArgumentError, match=message):
        decode.paged_attention(**arguments, max_seqlen_q=1)
    arrays = {name: decode.device.array(x) for name, x in arguments.items()}
    for _ in range(2):
        with pytest.raises(ArgumentError, match=message):
            looking.paged_attention(**arrays, max_seqlen_q=1)


@pytest.mark.parametrize(
    "name, at, value, message",
    (
        ("kv_indices", (0, 0, 1), 5,
         r"'kv_indices' has 5 at \[0, 0, 1\]; -1 to 4 \(-1 to cdiv\(seqlen_k, sparse_block_size\) - 1\) is allowed"),
        ("full_kv_indices", (0, 0, 0), -2, r"'full_kv_indices' has -2 at \[0, 0, 0\]"),
        ("kv_num_blocks", (0, 0), 6, r"'kv_num_blocks' has 6 at \[0, 0\]; 0 to 5 \(0 to kv_blocks\)"),
        ("full_kv_num_blocks", (0, 0), -1, "'full_kv_num_blocks' has -1"),
    ),
)  # fmt: skip
@pytest.mark.parametrize("on_device", (False, True))
def test_lists_that_point_outside(
    decode: Bundle, looking: Bundle, name: str, at: tuple[int, ...], value: int, message: str, on_device: bool
):
    arguments = all_blocks().arguments()
    arguments = {key: x.copy() if isinstance(x, np.ndarray) else x for key, x in arguments.items()}
    arguments[name][at] = value
    arguments |= {"q": np.zeros((1, 1, 1, 64), FP16)} | dict.fromkeys("kv", np.zeros((1, 1, 300, 64), FP16))
    bundle = decode
    if on_device:
        bundle = looking
        arguments = {key: decode.device.array(x) if isinstance(x, np.ndarray) else x for key, x in arguments.items()}
    with pytest.raises(ArgumentError, match=message):
        bundle.flex_decode(**arguments)


def test_blocks_of_the_default_size_are_counted(decode: Bundle):
    """300 keys are 3 blocks of 128."""
    lists = all_blocks(size=128).arguments()
    lists.pop("sparse_block_size")
    q, k = np.zeros((1, 1, 1, 64), FP16), np.zeros((1, 1, 300, 64), FP16)
    decode.flex_decode(q, k, k, **lists)
    with pytest.raises(ArgumentError, match=r"'kv_indices' has 3 at \[0, 0, 2\]; -1 to 2"):
        decode.flex_decode(q, k, k, **{**lists, "kv_indices": np.array([[[0, 1, 3]]], np.int32)})


def test_other_tensors_that_point_outside(decode: Bundle):
    q, k = np.zeros((2, 2, 1, 64), FP16), np.zeros((2, 1, 20, 64), FP16)
    with pytest.raises(ArgumentError, match=r"'seqlens_k' has 21 at \[1\]; 0 to 20"):
        decode.flash_decode(q, k, k, np.array([20, 21], np.int32))
    new, cache = np.zeros((1, 1, 64), FP16), np.zeros((2, 16, 1, 64), FP16)
    with pytest.raises(ArgumentError, match=r"'slots' has 32 at \[0\]; -1 to 31"):
        decode.append_kv(new, new, cache, cache.copy(), np.array([32], np.int32))


def test_contents_that_are_right_pass(decode: Bundle, looking: Bundle):
    arguments = paged_arguments()
    arrays = {name: decode.device.array(x) for name, x in arguments.items()}
    results = [op(**arrays).numpy() for op in (looking.paged_attention, decode.paged_attention)]
    assert np.array_equal(*results)


@pytest.mark.parametrize(
    "changes, message",
    (
        ({"q": np.zeros((2, 3, 64), FP16)}, "heads % heads_kv"),
        ({"k_scale": np.ones((1, 1, 1), np.float32)}, r"given\(k_scale\)"),
        ({"block_tables": np.zeros((3, 2), np.int32)}, "batch"),
        ({"q": np.zeros((2, 4, 300), FP16)}, "head_dim"),
    ),
)
def test_arguments_that_disagree(decode: Bundle, changes: dict, message: str):
    with pytest.raises(ArgumentError, match=message):
        decode.paged_attention(**paged_arguments() | changes)


def test_what_no_variant_has(decode: Bundle):
    """A number of groups, a size of blocks, a latent dim, and heads that do not divide, of the other ops."""
    q, k = np.zeros((1, 2, 1, 64), FP16), np.zeros((1, 1, 20, 64), FP16)
    packed, lengths = np.zeros((1, 1, 20, 32), np.uint8), np.array([20], np.int32)
    pairs = np.zeros((1, 1, 20, 3, 2), FP16)
    with pytest.raises(ArgumentError, match="groups"):
        decode.flash_decode_int4(q, packed, packed, pairs, pairs, lengths)
    pairs = np.zeros((1, 1, 20, 4, 2), FP16)
    with pytest.raises(ArgumentError, match=r"'k_scale' has shape .*: dim 4"):
        decode.flash_decode_int4(q, packed, packed, pairs[..., :1], pairs, lengths)
    with pytest.raises(ArgumentError, match="heads % heads_kv"):
        decode.flash_decode(np.zeros((1, 3, 1, 64), FP16), *(np.zeros((1, 2, 20, 64), FP16),) * 2)
    with pytest.raises(ArgumentError, match="sparse_block_size % 64"):
        decode.flex_decode(q, k, k, **{**all_blocks(20).arguments(), "sparse_block_size": 100})
    with pytest.raises(ArgumentError, match="leads % 2"):
        decode.flex_decode_relative_bias(q, k, k, **all_blocks(20).arguments(), bias=np.zeros((2, 40), np.float32))
    documents = {"documents": np.zeros((1, 20), np.int32), "first_query": 20}
    with pytest.raises(ArgumentError, match="first_query"):
        decode.flex_decode_document(q, k, k, **all_blocks(20).arguments(), **documents)
    with pytest.raises(ArgumentError, match="sparse_block_size"):
        decode.flex_decode(q, k, k, **{**all_blocks(20).arguments(), "sparse_block_size": 0})
    with pytest.raises(ArgumentError, match="latent"):
        decode.mla_decode(
            np.zeros((1, 2, 364), FP16), np.zeros((1, 16, 364), FP16), np.zeros((1, 1), np.int32),
            np.ones(1, np.int32), np.array([0, 1], np.int32), scale=1.0,
        )  # fmt: skip


def test_scales_that_are_missing_or_misshapen(decode: Bundle):
    case = paged([(1, 60)], 16, cache=INT8)
    arrays = [decode.device.array(x) for x in case.values()]
    with pytest.raises(ArgumentError, match=r"given\(k_scale\)"):
        decode.paged_attention(*arrays)
    with pytest.raises(ArgumentError, match="k_scale"):
        decode.paged_attention(*arrays, k_scale=np.ones((1, 1, 3), np.float32), v_scale=np.ones((1, 1, 2), np.float32))
