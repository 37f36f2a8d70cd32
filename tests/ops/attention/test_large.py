"""Calls that only a GPU makes in good time: long sequences, many lengths, over 2 GiB; and tensors of torch."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from kernels.attention import reference
from kernels.tolerance import assert_close
from tests.ops.attention.calls import FLOORS, check
from tests.ops.attention.cases import Case, make_call
from tests.ops.attention.latent import Latent
from tests.ops.attention.latent import make_call as latent_call
from tests.ops.attention.quantised import Quantised
from tests.ops.attention.quantised import make_call as quantised_call

pytestmark = pytest.mark.on("gpu")

LENGTHS = ((1, 1), (1, 77), (1, 1024), (64, 64), (113, 203), (203, 113), (257, 129), (512, 1000))
EQUAL_DIMS = [(dim, dim) for dim in (32, 33, 64, 65, 80, 96, 128, 160, 256)]
DTYPES = ("float16", "bfloat16")

CASES = (
    *(Case(mask, dims, lengths=lengths, heads=(4, 2), dtype=dtype)
      for mask in ("0", "b") for dims in EQUAL_DIMS for lengths in LENGTHS for dtype in DTYPES),
    *(Case(mask, dims, lengths=lengths) for mask in ("0", "b", "t", "b:300,20", "t:100,-1", "g:-50,300")
      for dims in ((64, 64), (128, 128), (96, 96)) for lengths in ((700, 1000), (1000, 300))),
    *(Case(mask, dims, lengths=(700, 1000), mode="varlen", layout="bshd", dtype="bfloat16", heads=(4, 2))
      for mask in ("0", "b", "b:200,0") for dims in ((64, 64), (128, 128), (80, 80))),
    *(Case(mask, dims, score, (500, 800), heads=(4, 1)) for mask in ("0", "b")
      for dims in ((64, 64), (128, 128), (256, 256)) for score in ("bias", "bias of keys", "alibi", "softcap")),
    *(Case("b", dims, score, (500, 800), mode="varlen") for dims in ((64, 64), (128, 128))
      for score in ("alibi", "softcap")),
    *(Case("b", dims, lengths=(500, 800), dtype=dtype, v_rows=False) for dims in ((64, 64), (128, 128))
      for dtype in DTYPES),
    *(Case(mask, (192, 128), lengths=(500, 800), dtype="bfloat16") for mask in ("0", "b", "b:100,0")),
    *(Case(mask, dims, lengths=(1000, 1200), heads=(16, 4), dtype=dtype, mode=mode, schedule=schedule)
      for mask in ("0", "b") for dims, dtype in (((64, 64), "float16"), ((128, 128), "bfloat16"))
      for mode in ("batch", "varlen") for schedule in ("persistent", "dynamic")),
)  # fmt: skip

LATENT = [
    Latent(dims, lengths, 4, causal, dtype)
    for dims in ((128, 128, 64, 512), (64, 64, 32, 256), (100, 80, 48, 400), (33, 100, 17, 300))
    for lengths in ((700, 1000), (1000, 300)) for causal in (False, True) for dtype in DTYPES
]  # fmt: skip

QUANTISED = [
    Quantised(op, mask, head_dim, (700, 1000), (4, 2), dtype, v_rows=v_rows, int8_p=int8_p)
    for op, v_rows, int8_p in (
        ("int8", True, False), ("int8", True, True), ("int8", False, True), ("int8_kv", True, False),
        ("fp8", True, False), ("fp8", False, False),
    )
    for mask in ("0", "b", "b:200,20")
    for head_dim, dtype in ((64, "float16"), (128, "bfloat16"), (80, "float16"), (256, "float16"))
] + [
    Quantised("fp8", mask, head_dim, (700, 1000), (4, 2), mode="varlen", layout=layout)
    for mask in ("0", "b", "b:200,20") for head_dim, layout in ((64, "bhsd"), (128, "bshd"), (256, "packed"))
] + [
    Quantised("fp8", mask, head_dim, lengths, (4, 2), v_rows=v_rows)
    for mask in ("0", "b", "t:30,4") for head_dim in (64, 128, 256) for v_rows in (True, False)
    for lengths in ((65, 16), (129, 144), (1000, 48), (192, 512))
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(attention: Bundle, case: Case):
    check(attention, make_call(case))


@pytest.mark.parametrize("case", LATENT, ids=str)
def test_latent_attention(attention: Bundle, case: Latent):
    check(attention, latent_call(case))


@pytest.mark.parametrize("case", QUANTISED, ids=str)
def test_quantised_attention(attention_quantised: Bundle, case: Quantised):
    check(attention_quantised, quantised_call(attention_quantised, case))


@pytest.mark.slow
def test_a_tensor_over_two_gib(attention: Bundle):
    """Keys and values in an array of 2.3e9 elements: offsets pass 2**31 bytes and 2**31 elements."""
    rng = np.random.default_rng(8)
    big = attention.device.empty((2, 131072, 70, 128), np.float16)
    q = rng.standard_normal((1, 1, 40, 128)).astype(np.float16)
    tensors, views = [rng.standard_normal((1, 1, 200, 128)).astype(np.float16) for _ in "kv"], []
    for head, host in zip((68, 69), tensors, strict=True):
        # The whole batch, so that the last rows are reached by stride * index.
        view = big[:, -200:, head : head + 1].transpose(0, 2, 1, 3)
        for row in range(200):
            view[1, 0, row].copy_from(host[0, 0, row])
        views.append(view)
    out = attention.flash_attention(attention.device.array(np.concatenate([q, q])), *views).numpy()[1:]
    exact, same = (
        function(q, *tensors, scale=128**-0.5) for function in (reference.attention, reference.attention_same_dtype)
    )
    assert_close(out, exact, same, FLOORS["out"])


def test_tensors_of_torch_are_taken_without_a_copy(attention: Bundle):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(1, 2, 100, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = attention.flash_attention(q, k, v, causal=True)
    torch.cuda.synchronize()
    back = torch.from_dlpack(out)
    assert back.data_ptr() == out.ptr and back.dtype == torch.bfloat16
    wanted = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    assert (back.double() - wanted).abs().max() < 2e-2
    given = torch.empty_like(q)
    attention.flash_attention(q, k, v, causal=True, out=given)
    torch.cuda.synchronize()
    assert torch.equal(given, back)


def test_broadcast_tensors_and_strides_along_extents_of_one(attention: Bundle):
    """Strides of 0, and one that is no multiple of 16 bytes where no second row is."""
    torch = pytest.importorskip("torch")
    q = torch.randn(2, 4, 300, 128, device="cuda", dtype=torch.float16)
    k, v = (torch.randn(1, 1, 500, 128, device="cuda", dtype=torch.float16).expand(2, 2, -1, -1) for _ in range(2))
    out = torch.from_dlpack(attention.flash_attention(q, k, v))
    again = torch.from_dlpack(attention.flash_attention(q, k.contiguous(), v.contiguous()))
    torch.cuda.synchronize()
    assert torch.equal(out, again)
    one = [x[:1, :1].as_strided((1, 1, x.shape[2], 128), (7, 3, 128, 1)) for x in (q, k, v)]
    single = torch.from_dlpack(attention.flash_attention(*one))
    torch.cuda.synchronize()
    assert torch.equal(single[0, 0], out[0, 0])
