"""Calls of the attention ops that make no sense: refused before anything is launched, by the name of what is wrong."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle, NoVariantError
from tests.ops.attention.quantised import Quantised, float8_of, make_call

DENSE: dict[str, Any] = {"q": (1, 2, 8, 64), "k": (1, 2, 9, 64), "v": (1, 2, 9, 64)}
VARLEN: dict[str, Any] = {"q": (20, 2, 64), "k": (30, 2, 64), "v": (30, 2, 64), "cu_seqlens_q": [0, 5, 20],
                          "cu_seqlens_k": [0, 12, 30]}  # fmt: skip
LATENT: dict[str, Any] = {"q_nope": (2, 2, 40, 64), "q_pe": (2, 2, 40, 64), "kv": (2, 70, 256), "k_pe": (2, 70, 64),
                          "wkv_b": (2, 128, 256)}  # fmt: skip
ARGUMENTS = {"flash_attention": DENSE, "flash_attention_varlen": VARLEN, "mla_prefill": LATENT}


def made(value: Any) -> Any:
    """Zeros of a shape, int32 of a list; other arguments are as they are."""
    if isinstance(value, tuple):
        return np.zeros(value, np.float16)
    return np.array(value, np.int32) if isinstance(value, list) else value


@pytest.mark.parametrize(("op", "message", "changes"), (
    ("", r"heads % heads_kv == 0; given: heads=3, heads_kv=2", {"q": (1, 3, 8, 64)}),
    ("", "'v' .* dim 1", {"v": (1, 1, 9, 64)}),
    ("", "head_dim is 264", {name: (*shape[:3], 264) for name, shape in DENSE.items()}),
    ("", "head_dim_v is 257", {"v": (1, 2, 9, 257)}), ("", "'k' .* dim 3", {"k": (1, 2, 9, 32)}),
    ("", "'mask_align' is 'left'", {"mask_align": "left"}),
    ("", "not causal or window_right <= 0", {"causal": True, "window_right": 3}),
    ("", r"window_left \+ window_right >= 0", {"mask_align": "generic", "window_left": -5, "window_right": 4}),
    ("", r"window_left \+ window_right >= 0", {"mask_align": "generic", "causal": True}),
    ("", "'bias' .* dim 3", {"bias": (1, 2, 8, 10)}),
    ("", "'bias' is float32", {"bias": np.zeros((1, 2, 8, 9), np.float32)}),
    ("", "'alibi_slopes' .* is 3", {"alibi_slopes": np.zeros((1, 3), np.float32)}),
    ("", "'softcap'", {"softcap": -1.0}),
    ("_varlen", "heads % heads_kv", {"q": (20, 3, 64)}), ("_varlen", "'mask_align'", {"mask_align": "generic"}),
    ("_varlen", "'bias'", {"bias": (1, 2, 8, 10)}),
    ("_varlen", "'cu_seqlens_q' decreases", {"cu_seqlens_q": [0, 12, 11]}),
    ("_varlen", "'cu_seqlens_q' begins", {"cu_seqlens_q": [-1, 12, 20]}),
    ("_varlen", "'cu_seqlens_k' ends .* tokens_k", {"cu_seqlens_k": [0, 12, 31]}),
    ("_varlen", "'cu_seqlens_q' .* max_seqlen_q", {"max_seqlen_q": 14}),
    ("_varlen", "'cu_seqlens_k' .*batch", {"cu_seqlens_k": [0, 12, 20, 30]}),
    ("_varlen", "'cu_seqlens_q' is int64", {"cu_seqlens_q": np.array([0, 5, 20])}),
    ("mla_prefill", "'k_pe' .* dim 2", {"k_pe": (2, 70, 32)}), ("mla_prefill", "latent is 520", {"kv": (2, 70, 520)}),
    ("mla_prefill", "'wkv_b' .* is 3", {"wkv_b": (3, 128, 256)}),
    ("mla_prefill", "'kv' is bfloat16", {"kv": np.zeros((2, 70, 256), ml_dtypes.bfloat16)}),
))  # fmt: skip
def test_what_does_not_fit(attention: Bundle, op: str, message: str, changes: dict[str, Any]):
    name = op if op.startswith("mla") else f"flash_attention{op}"
    with pytest.raises((ArgumentError, TypeError), match=message):
        getattr(attention, name)(**{key: made(value) for key, value in (ARGUMENTS[name] | changes).items()})


@pytest.mark.parametrize(("op", "error", "message", "changes"), (
    ("int8", TypeError, "'q_scale'", {"q_scale": None}), ("int8", TypeError, "'v_scale'", {"v_scale": None}),
    ("int8_kv", TypeError, "'k_scale'", {"k_scale": None}), ("fp8", TypeError, "'v_scale'", {"v_scale": None}),
    ("int8", ArgumentError, "'q_scale' .* is 3", {"q_scale": np.ones((1, 3), np.float32)}),
    ("int8", ArgumentError, "'q' is float16", {"q": (2, 2, 70, 64)}),
    ("int8", ArgumentError, "'out' is float32", {"out": np.zeros((2, 2, 70, 64), np.float32)}),
    ("fp8", ArgumentError, "'k'", {"k": "other"}),
    ("fp8", NoVariantError, "float8_e4m3fn", dict.fromkeys("qkv", "other")),
    ("int8_p", ArgumentError, "seqlen_k <= 131072", dict.fromkeys("kv", np.zeros((2, 1, 131073, 64), np.int8))),
))  # fmt: skip
def test_what_does_not_fit_of_8_bits(
    attention_quantised: Bundle, op: str, error: type[Exception], message: str, changes: dict[str, Any]
):
    arch = attention_quantised.device.arch
    case = Quantised(op.removesuffix("_p"), int8_p=op.endswith("_p"), return_lse=False)
    call = make_call(case, arch)
    given = {name: getattr(item, "values", item) for name, item in (call.inputs | call.outputs).items()}
    for name, value in changes.items():
        wrong = given[name].astype(float8_of(arch, other=True)) if isinstance(value, str) else made(value)
        given |= {name: wrong}
    with pytest.raises(error, match=message):
        getattr(attention_quantised, call.op)(**{k: x for k, x in given.items() if x is not None}, **call.scalars)
