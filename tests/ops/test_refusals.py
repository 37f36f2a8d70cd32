"""Arguments refused for their values: indices out of range, and sums that would overflow.

`aotbuild check` draws calls from the contracts, so it fails for a contract that allows calls its kernel cannot handle.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle
from tests.ops.attention.quantised import Quantised, make_call
from tests.ops.decode.cases import all_blocks, paged
from tests.support.dtypes import FP16, FP32, INT8

LONG = np.zeros((1, 131072), INT8)
CODES = {"w": np.zeros((8, 32), np.uint8), "scales": np.ones((2, 8), FP16), "group_size": 32}
GEMM: dict[str, dict[str, Any]] = {
    "integer_matmul": {"a": LONG, "b": LONG.T},
    "int8_linear": {"a": LONG, "w": LONG, "d": np.zeros((1, 1), INT8), "alpha": 1.0},
    "linear_int4": {"x": np.zeros((1, 64), FP16), **CODES},
    "linear_int4_a8": {"x": np.zeros((3, 64), INT8), "row_scales": np.ones(3, FP32), "e": np.zeros((3, 8), FP16),
                       **CODES},
}  # fmt: skip


@pytest.mark.parametrize("op, changes, message", (
    ("integer_matmul", {}, "131071"), ("int8_linear", {}, "131071"),
    ("linear_int4", {"order": np.full(64, 64, np.int32)}, "order.*has 64 at"),
    ("linear_int4", {"w": np.zeros((1, 16, 32), np.int32)}, "'w' has 3 dims"),  # prepacked
    ("linear_int4_a8", {"zeros": np.full((2, 8), 17, np.uint8)}, "zeros.*has 17 at"),
))  # fmt: skip
def test_products(gemm: Bundle, op: str, changes: dict[str, Any], message: str):
    with pytest.raises(ArgumentError, match=message):
        getattr(gemm, op)(**GEMM[op] | changes)


@pytest.mark.parametrize("message, changes", (
    ("'cu_seqlens_q' decreases", {"cu_seqlens_q": [0, 12, 11]}),
    ("'cu_seqlens_q' begins", {"cu_seqlens_q": [-1, 12, 20]}),
    ("'cu_seqlens_k' ends .* tokens_k", {"cu_seqlens_k": [0, 12, 31]}),
    ("'cu_seqlens_q' .* max_seqlen_q", {"max_seqlen_q": 14}),
    ("not causal or window_right <= 0", {"causal": True, "window_right": 1}),
    ("'cu_seqlens_k' .* max_seqlen_k", {"bias": np.zeros((1, 20, 17), FP16), "max_seqlen_k": 17}),
))  # fmt: skip
def test_sequences(attention: Bundle, message: str, changes: dict[str, Any]):
    given = {"q": np.zeros((20, 2, 64), FP16)} | dict.fromkeys("kv", np.zeros((30, 2, 64), FP16))
    given |= {"cu_seqlens_q": [0, 5, 20], "cu_seqlens_k": [0, 12, 30]} | changes
    with pytest.raises(ArgumentError, match=message):
        attention.flash_attention_varlen(
            **{name: np.array(x, np.int32) if isinstance(x, list) else x for name, x in given.items()}
        )


def test_probabilities_of_int8_of_many_keys(attention_quantised: Bundle):
    call = make_call(attention_quantised, Quantised("int8", int8_p=True, return_lse=False))
    given = {name: getattr(item, "values", item) for name, item in (call.inputs | call.outputs).items()}
    given |= dict.fromkeys("kv", np.zeros((2, 1, 131073, 64), INT8))
    with pytest.raises(ArgumentError, match="seqlen_k <= 131072"):
        attention_quantised.flash_attention_int8(**given, **call.scalars)


def paged_arguments() -> dict[str, Any]:
    case = paged([(1, 60), (1, 20)], 16)
    case.block_tables[case.block_tables > 100] = -1
    return vars(case) | case.longest


def flex_arguments(**changes: Any) -> dict[str, Any]:
    lists = all_blocks().arguments()
    tensors = {"q": np.zeros((1, 1, 1, 64), FP16)} | dict.fromkeys("kv", np.zeros((1, 1, 300, 64), FP16))
    return {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in lists.items()} | tensors | changes


def on_device(decode: Bundle, arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: decode.device.array(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}


@pytest.mark.parametrize("op, name, at, value, message", (
    ("paged_attention", "block_tables", (0, 1), 99, r"99 at \[0, 1\]; -1 to 8"),
    ("paged_attention", "seqlens_k", 1, 81, r"81 at \[1\]; 0 to 80"),
    ("paged_attention", "cu_seqlens_q", 1, 3, "decreases at 2"),
    ("flex_decode", "kv_indices", (0, 0, 1), 5, r"5 at \[0, 0, 1\]; -1 to 4"),
    ("flex_decode", "full_kv_indices", (0, 0, 0), -2, r"-2 at \[0, 0, 0\]"),
    ("flex_decode", "kv_num_blocks", (0, 0), 6, r"6 at \[0, 0\]; 0 to 5"),
    ("flex_decode", "full_kv_num_blocks", (0, 0), -1, "has -1"),
))  # fmt: skip
def test_contents_that_point_outside(
    decode: Bundle, looking: Bundle, op: str, name: str, at: object, value: int, message: str
):
    """Contents are checked where the host sees them, and on the device if the bundle was opened to look there."""
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
