"""Calls that are refused: by the name of what is wrong, and for contents by where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle
from tests.ops.decode.cases import all_blocks, packed, paged
from tests.support.dtypes import FP16, INT8


def paged_arguments() -> dict[str, Any]:
    case = paged([(1, 60), (1, 20)], 16)
    case.block_tables[case.block_tables > 100] = -1
    return vars(case) | case.longest


def flex_arguments(**changes: Any) -> dict[str, Any]:
    lists = all_blocks().arguments()
    tensors = {"q": np.zeros((1, 1, 1, 64), FP16)} | dict.fromkeys("kv", np.zeros((1, 1, 300, 64), FP16))
    return {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in lists.items()} | tensors | changes


def on_device(decode: Bundle, arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: packed(decode, x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}


@pytest.mark.parametrize(
    "op, name, at, value, message",
    (
        ("paged_attention", "block_tables", (0, 1), 99, r"99 at \[0, 1\]; -1 to 8"),
        ("paged_attention", "block_tables", (1, 0), -2, r"-2 at \[1, 0\]"),
        ("paged_attention", "seqlens_k", 1, 81, r"81 at \[1\]; 0 to 80"),
        ("paged_attention", "seqlens_k", 0, -1, "has -1"),
        ("paged_attention", "cu_seqlens_q", 1, 3, "decreases at 2"),
        ("paged_attention", "cu_seqlens_q", 2, 3, "ends with 3, but tokens is 2"),
        ("paged_attention", "cu_seqlens_q", 1, 2, "sequence 0 a length of 2, but max_seqlen_q is 1"),
        ("flex_decode", "kv_indices", (0, 0, 1), 5, r"5 at \[0, 0, 1\]; -1 to 4"),
        ("flex_decode", "full_kv_indices", (0, 0, 0), -2, r"-2 at \[0, 0, 0\]"),
        ("flex_decode", "kv_num_blocks", (0, 0), 6, r"6 at \[0, 0\]; 0 to 5"),
        ("flex_decode", "full_kv_num_blocks", (0, 0), -1, "has -1"),
    ),
)
def test_contents_that_point_outside(
    decode: Bundle, looking: Bundle, op: str, name: str, at: object, value: int, message: str
):
    """Wherever the host can see it; on the device, if the bundle was opened to look there."""
    arguments = paged_arguments() if op == "paged_attention" else flex_arguments()
    arguments[name][at] = value
    there = on_device(decode, arguments)
    for bundle, given in ((decode, arguments), (looking, there), (looking, there)):
        with pytest.raises(ArgumentError, match=f"'{name}' .*{message}"):
            getattr(bundle, op)(**given)


def test_contents_that_are_right_pass(decode: Bundle, looking: Bundle):
    arrays = on_device(decode, paged_arguments())
    assert np.array_equal(*(bundle.paged_attention(**arrays).numpy() for bundle in (looking, decode)))


def test_blocks_of_the_default_size_are_counted(decode: Bundle):
    """300 keys are 3 blocks of 128."""
    arguments = flex_arguments(**all_blocks(size=128).arguments())
    arguments.pop("sparse_block_size")
    decode.flex_decode(**arguments)
    arguments["kv_indices"][0, 0, 2] = 3
    with pytest.raises(ArgumentError, match=r"'kv_indices' has 3 at \[0, 0, 2\]; -1 to 2"):
        decode.flex_decode(**arguments)


ZEROS = {"q": np.zeros((1, 2, 1, 64), FP16)} | dict.fromkeys("kv", np.zeros((1, 1, 20, 64), FP16))
INT4 = ZEROS | {"seqlens_k": np.array([20], np.int32)} | dict.fromkeys("kv", np.zeros((1, 1, 20, 32), np.uint8))
INT4_OF_40 = INT4 | {"q": ZEROS["q"][..., :40]} | dict.fromkeys("kv", np.zeros((1, 1, 20, 20), np.uint8))
PAIRS, INT8_CACHE = np.zeros((1, 1, 20, 3, 2), FP16), np.zeros((9, 16, 2, 64), INT8)
NEW = dict.fromkeys(("k_new", "v_new"), np.zeros((1, 1, 64), FP16)) | dict.fromkeys("v", np.zeros((2, 16, 1, 64), FP16))
TABLES = {name: paged_arguments()[name] for name in ("block_tables", "seqlens_k", "cu_seqlens_q")}


LATENT = TABLES | {"q": np.zeros((2, 2, 564), FP16), "cache": np.zeros((9, 16, 564), FP16), "scale": 1.0}


@pytest.mark.parametrize(
    "op, message, arguments",
    (
        ("flash_decode", "'seqlens_k' has 21", ZEROS | {"seqlens_k": np.array([21], np.int32)}),
        ("flash_decode", "heads % heads_kv", ZEROS | dict.fromkeys("kv", np.zeros((1, 4, 20, 64), FP16))),
        ("append_kv", "'slots' has 32", NEW | {"k": NEW["v"].copy(), "slots": np.array([32], np.int32)}),
        ("paged_attention", r"given\(k_scale\)", paged_arguments() | {"k_scale": np.ones((1, 1, 1), np.float32)}),
        ("paged_attention", r"given\(k_scale\)", paged_arguments() | dict.fromkeys("kv", INT8_CACHE)),
        ("paged_attention", "batch", paged_arguments() | {"block_tables": np.zeros((3, 2), np.int32)}),
        ("flash_decode_int4", "groups", INT4 | {"k_scale": PAIRS, "v_scale": PAIRS}),
        ("flash_decode_int4", "head_dim % 16", INT4_OF_40 | dict.fromkeys(("k_scale", "v_scale"), PAIRS[..., :1, :])),
        ("flex_decode", "sparse_block_size % 64", flex_arguments(sparse_block_size=100)),
        ("flex_decode", "sparse_block_size", flex_arguments(sparse_block_size=0)),
        ("flex_decode_relative_bias", "leads % 2", flex_arguments(bias=np.zeros((1, 40), np.float32))),
        ("flex_decode_document", "first_query",
         flex_arguments(documents=np.zeros((1, 300), np.int32), first_query=300)),
        ("mla_decode", "row_dim - rope <= 512", LATENT | {"rope": 51}),
        ("mla_decode", "'rope' is 65", LATENT | {"rope": 65}),
        ("mla_decode", "row_dim > rope",
         LATENT | {"q": np.zeros((2, 2, 40), FP16), "cache": np.zeros((9, 16, 40), FP16), "rope": 40}),
    ),
)  # fmt: skip
def test_arguments_that_disagree(decode: Bundle, op: str, message: str, arguments: dict[str, Any]):
    with pytest.raises(ArgumentError, match=message):
        getattr(decode, op)(**arguments)
