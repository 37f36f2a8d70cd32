"""Calls of the attention ops that make no sense: each is an error that says so, before anything is launched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle
from tests.ops.attention.cases import Case, make_call

DENSE = {"q": (1, 2, 8, 64), "k": (1, 2, 9, 64), "v": (1, 2, 9, 64)}
VARLEN = {"q": (20, 2, 64), "k": (30, 2, 64), "v": (30, 2, 64)}
CU = {"cu_seqlens_q": [0, 5, 20], "cu_seqlens_k": [0, 12, 30]}


def refused(bundle: Bundle, op: str, message: str, shapes: dict[str, tuple[int, ...]], **changes: Any) -> None:
    arguments: dict[str, Any] = {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}
    if op == "flash_attention_varlen":
        arguments |= {name: np.array(values, np.int32) for name, values in CU.items()}
    before = bundle.device.driver.last
    with pytest.raises((ArgumentError, TypeError), match=message):
        getattr(bundle, op)(**(arguments | changes))
    assert bundle.device.driver.last is before, "something was launched"


def dense(bundle: Bundle, message: str, shapes: dict[str, tuple[int, ...]] | None = None, **changes: Any) -> None:
    refused(bundle, "flash_attention", message, DENSE | (shapes or {}), **changes)


def varlen(bundle: Bundle, message: str, shapes: dict[str, tuple[int, ...]] | None = None, **changes: Any) -> None:
    changes = {name: np.array(value, np.int32) if isinstance(value, list) else value for name, value in changes.items()}
    refused(bundle, "flash_attention_varlen", message, VARLEN | (shapes or {}), **changes)


def test_heads(bundle: Bundle):
    dense(bundle, "requires heads % heads_kv == 0; given: heads=3, heads_kv=2", {"q": (1, 3, 8, 64)})
    dense(bundle, "'v' has shape .* dim 1 .*heads_kv.* is 1, but must be 2", {"v": (1, 1, 9, 64)})
    varlen(bundle, "requires heads % heads_kv == 0; given: heads=3, heads_kv=2", {"q": (20, 3, 64)})


def test_head_dims(bundle: Bundle):
    wide = {name: (*shape[:3], 264) for name, shape in DENSE.items()}
    dense(bundle, "head_dim is 264; allowed: 1 to 256", wide)
    dense(bundle, "head_dim_v is 257; allowed: 1 to 256", {"v": (1, 2, 9, 257)})
    dense(bundle, "'k' has shape .* dim 3 .*head_dim.* is 32, but must be 64", {"k": (1, 2, 9, 32)})


def test_masks(bundle: Bundle):
    dense(bundle, "'mask_align' is 'left'; allowed: bottom_right, top_left, generic", mask_align="left")
    dense(bundle, "requires not causal or window_right <= 0", causal=True, window_right=3)
    dense(bundle, "window_left \\+ window_right >= 0", mask_align="generic", window_left=-5, window_right=4)
    dense(bundle, "window_left \\+ window_right >= 0", mask_align="generic", causal=True)
    varlen(bundle, "'mask_align' is 'generic'; allowed: bottom_right, top_left", mask_align="generic")


def test_scores(bundle: Bundle):
    bias = np.zeros((1, 2, 8, 10), np.float16)
    dense(bundle, "'bias' has shape .* dim 3 .*seqlen_k.* is 10, but must be 9", bias=bias)
    dense(bundle, "'bias' is float32; allowed: float16, bfloat16", bias=bias[..., :9].astype(np.float32))
    dense(bundle, "'alibi_slopes' has shape .* is 3, but must be 2", alibi_slopes=np.zeros((1, 3), np.float32))
    dense(bundle, "'softcap' is -1.0; allowed: 0", softcap=-1.0)
    varlen(bundle, "unexpected keyword argument 'bias'", bias=bias)


def test_sequences(bundle: Bundle):
    varlen(bundle, "'cu_seqlens_q' decreases at 2, from 12 to 11", cu_seqlens_q=[0, 12, 11])
    varlen(bundle, "'cu_seqlens_q' begins with -1; 0 or more", cu_seqlens_q=[-1, 12, 20])
    varlen(bundle, "'cu_seqlens_k' ends with 31, but tokens_k is 30", cu_seqlens_k=[0, 12, 31])
    varlen(bundle, "'cu_seqlens_q' gives sequence 1 a length of 15, but max_seqlen_q is 14", max_seqlen_q=14)
    varlen(bundle, "'cu_seqlens_k' .*batch \\+ 1", cu_seqlens_k=[0, 12, 20, 30])
    varlen(bundle, "'cu_seqlens_q' is int64; allowed: int32", cu_seqlens_q=np.array([0, 5, 20]))


@pytest.mark.parametrize(("name", "values"), (
    ("cu_seqlens_q", [0, 80, 40, 43, 200]), ("cu_seqlens_q", [-7, 10, 20, 30, 40]),
    ("cu_seqlens_k", [0, 2**31 - 1, 5, 5, 9]), ("cu_seqlens_k", [500, 600, 700, 800, 900]),
))  # fmt: skip
def test_offsets_on_the_device_are_clamped(bundle: Bundle, name: str, values: list[int]):
    """What the host does not see reads and writes nothing but the tensors: strict mode sees everything."""
    call = make_call(Case("t", (64, 64), lengths=(1, 65), layout="bshd", heads=(3, 1), mode="varlen", dtype="bfloat16",
                          v_rows=False))  # fmt: skip
    offsets = bundle.device.array(np.array(values, np.int32))
    arguments = {key: bundle.device.array(item.whole) for key, item in call.inputs.items() if key in "qkv"}
    placed = {key: call.inputs[key].place(array) for key, array in arguments.items()}
    others = {key: item for key, item in call.inputs.items() if key not in "qkv"} | {name: offsets}
    out = call.outputs["out"]
    whole = bundle.device.array(out.whole)
    getattr(bundle, call.op)(**placed, **others, **(call.scalars | {"return_lse": False}), out=out.place(whole))
    assert out.is_alone(whole.numpy()), "written beside out"
