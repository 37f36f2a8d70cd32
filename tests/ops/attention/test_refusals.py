"""Calls of the attention ops that make no sense: refused before anything is launched, by the name of what is wrong."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle, NoVariantError
from tests.ops.attention.quantised import Quantised, make_call

DENSE: dict[str, Any] = {"q": (1, 2, 8, 64), "k": (1, 2, 9, 64), "v": (1, 2, 9, 64)}
VARLEN: dict[str, Any] = {"q": (20, 2, 64), "k": (30, 2, 64), "v": (30, 2, 64), "cu_seqlens_q": [0, 5, 20],
                          "cu_seqlens_k": [0, 12, 30]}  # fmt: skip
LATENT: dict[str, Any] = {"q_nope": (2, 2, 40, 64), "q_pe": (2, 2, 40, 64), "kv": (2, 70, 256), "k_pe": (2, 70, 64),
                          "wkv_b": (2, 128, 256)}  # fmt: skip
ARGUMENTS = {"flash_attention": DENSE, "flash_attention_varlen": VARLEN, "mla_prefill": LATENT}


OTHER = {"float8_e4m3fnuz": ml_dtypes.float8_e4m3fn, "float8_e4m3fn": ml_dtypes.float8_e4m3fnuz}
"""The float8 of other hardware for each float8."""


def made(value: Any) -> Any:
    """Zeros of a shape, int32 of a list; other arguments are as they are."""
    if isinstance(value, tuple):
        return np.zeros(value, np.float16)
    return np.array(value, np.int32) if isinstance(value, list) else value


@pytest.mark.parametrize(("op", "message", "changes"), (
    ("flash_attention", r"heads % heads_kv", {"q": (1, 3, 8, 64)}), ("flash_attention", "'v'", {"v": (1, 1, 9, 64)}),
    ("flash_attention", "head_dim is", {name: (*shape[:3], 264) for name, shape in DENSE.items()}),
    ("flash_attention", "head_dim_v is", {"v": (1, 2, 9, 257)}), ("flash_attention", "'k'", {"k": (1, 2, 9, 32)}),
    ("flash_attention", "'mask_align'", {"mask_align": "left"}), ("flash_attention", "'softcap'", {"softcap": -1.0}),
    ("flash_attention", "not causal or window_right <= 0", {"causal": True, "window_right": 3}),
    ("flash_attention", "window_left", {"mask_align": "generic", "window_left": -5, "window_right": 4}),
    ("flash_attention", "window_left", {"mask_align": "generic", "causal": True}),
    ("flash_attention", "'bias'", {"bias": (1, 2, 8, 10)}),
    ("flash_attention", "'bias'", {"bias": np.zeros((1, 2, 8, 9), np.float32)}),
    ("flash_attention", "'alibi_slopes'", {"alibi_slopes": np.zeros((1, 3), np.float32)}),
    ("flash_attention_varlen", "not causal or window_right <= 0", {"causal": True, "window_right": 1}),
    ("flash_attention_varlen", "heads % heads_kv", {"q": (20, 3, 64)}),
    ("flash_attention_varlen", "'mask_align'", {"mask_align": "generic"}),
    ("flash_attention_varlen", "'cu_seqlens_q' decreases", {"cu_seqlens_q": [0, 12, 11]}),
    ("flash_attention_varlen", "'cu_seqlens_q' begins", {"cu_seqlens_q": [-1, 12, 20]}),
    ("flash_attention_varlen", "'cu_seqlens_k' ends .* tokens_k", {"cu_seqlens_k": [0, 12, 31]}),
    ("flash_attention_varlen", "'cu_seqlens_q' .* max_seqlen_q", {"max_seqlen_q": 14}),
    ("flash_attention_varlen", "max_seqlen_k <= bias_columns", {"bias": (1, 20, 18)}),
    ("flash_attention_varlen", "'cu_seqlens_k' .* max_seqlen_k", {"bias": (1, 20, 17), "max_seqlen_k": 17}),
    ("flash_attention_varlen", "'bias'", {"bias": (1, 19, 18), "max_seqlen_k": 18}),
    ("flash_attention_varlen", "'cu_seqlens_k' .*batch", {"cu_seqlens_k": [0, 12, 20, 30]}),
    ("mla_prefill", "'k_pe'", {"k_pe": (2, 70, 32)}), ("mla_prefill", "latent is", {"kv": (2, 70, 520)}),
    ("mla_prefill", "'wkv_b'", {"wkv_b": (3, 128, 256)}),
))  # fmt: skip
def test_what_does_not_fit(attention: Bundle, op: str, message: str, changes: dict[str, Any]):
    with pytest.raises(ArgumentError, match=message):
        getattr(attention, op)(**{name: made(value) for name, value in (ARGUMENTS[op] | changes).items()})


@pytest.mark.parametrize(("op", "error", "message", "changes"), (
    ("int8", TypeError, "'q_scale'", {"q_scale": None}), ("int8", TypeError, "'v_scale'", {"v_scale": None}),
    ("int8_kv", TypeError, "'k_scale'", {"k_scale": None}), ("fp8", TypeError, "'v_scale'", {"v_scale": None}),
    ("int8", ArgumentError, "'q_scale' .* is 3", {"q_scale": np.ones((1, 3), np.float32)}),
    ("int8", ArgumentError, "'q' is float16", {"q": (2, 2, 70, 64)}),
    ("int8", ArgumentError, "'out' is float32", {"out": np.zeros((2, 2, 70, 64), np.float32)}),
    ("fp8", ArgumentError, "'k'", {"k": "other"}),
    ("fp8", ArgumentError, "not causal or window_right <= 0", {"causal": True, "window_right": 1}),
    ("fp8", NoVariantError, "float8_e4m3fn", dict.fromkeys("qkv", "other")),
    ("int8_p", ArgumentError, "seqlen_k <= 131072", dict.fromkeys("kv", np.zeros((2, 1, 131073, 64), np.int8))),
))  # fmt: skip
def test_what_does_not_fit_of_8_bits(
    attention_quantised: Bundle, op: str, error: type[Exception], message: str, changes: dict[str, Any]
):
    case = Quantised(op.removesuffix("_p"), int8_p=op.endswith("_p"), return_lse=False)
    call = make_call(attention_quantised, case)
    given = {name: getattr(item, "values", item) for name, item in (call.inputs | call.outputs).items()}
    for name, value in changes.items():
        given[name] = given[name].astype(OTHER[given[name].dtype.name]) if isinstance(value, str) else made(value)
    with pytest.raises(error, match=message):
        getattr(attention_quantised, call.op)(**{k: x for k, x in given.items() if x is not None}, **call.scalars)
