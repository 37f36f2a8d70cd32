"""Calls that are practical only on a GPU: long ones, tensors beyond 2 GiB, and torch's tensors."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray
from kernels.attention import reference
from kernels.tolerance import assert_close
from tests.ops.attention.calls import FLOORS, check
from tests.ops.attention.cases import AXES, Case, make_call
from tests.ops.attention.latent import Latent
from tests.ops.attention.latent import make_call as latent_call
from tests.ops.attention.quantised import Quantised
from tests.ops.attention.quantised import make_call as quantised_call
from tests.ops.decode.cases import cache_of, check_paged, normal, packed, paged
from tests.ops.decode.cases import check as check_decode
from tests.ops.gemm.checking import matrix
from tests.support.dtypes import BF16, FP16, FP32

pytestmark = pytest.mark.on("gpu")

LONG = ((700, 1000), (1000, 300), (1, 1024), (113, 203))
DTYPES = ("float16", "bfloat16")
CASES = (
    *(Case(mask, dims, lengths=lengths, heads=(4, 2), dtype=dtype, mode=mode)
      for mask in ("0", "b", "b:300,20", "t:100,-1")
      for dims in ((64, 64), (128, 128), (80, 80), (256, 256), (192, 128)) for lengths in LONG for dtype in DTYPES
      for mode in AXES["mode"]),
    *(Case("b", dims, score, (500, 800), heads=(4, 1), mode=mode, v_rows=v_rows) for dims in ((64, 64), (128, 128))
      for score in AXES["score"] for mode in AXES["mode"] for v_rows in (True, False)),
    *(Case(mask, dims, lengths=(1000, 1200), heads=(16, 4), dtype=dtype, schedule=schedule)
      for mask in ("0", "b") for dims, dtype in (((64, 64), "float16"), ((128, 128), "bfloat16"))
      for schedule in ("persistent", "dynamic")),
)  # fmt: skip
LATENT = [
    Latent(dims, lengths, 4, causal, dtype)
    for dims in ((128, 128, 64, 512), (100, 80, 48, 400)) for lengths in LONG[:2] for causal in (False, True)
    for dtype in DTYPES
]  # fmt: skip
QUANTISED = [
    Quantised(op, mask, head_dim, lengths, (4, 2), v_rows=v_rows, mode=mode,
              int8_p=op == "int8" and not v_rows and mode == "batch")
    for op in ("int8", "int8_kv", "fp8") for mask in ("0", "b:200,20") for head_dim in (64, 128, 80, 256)
    for lengths in ((700, 1000), (129, 144)) for v_rows in (True, False) for mode in AXES["mode"]
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


def test_attention_over_two_gib(attention: Bundle):
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


@pytest.mark.parametrize("head_dim", (64, 128, 256))
@pytest.mark.parametrize("keys", (1, 1024, 4097, 32768))
def test_long_caches(decode: Bundle, keys: int, head_dim: int):
    rng = np.random.default_rng(keys)
    k, v = (cache_of(rng, (2, 1, keys, head_dim), FP16) for _ in range(2))
    check_decode(decode, "flash_decode", {"q": normal(rng, 2, 8, 1, head_dim), "k": k, "v": v})


def test_lengths_far_apart(decode: Bundle):
    check_paged(decode, paged([(1, 32768), (1, 1), (1, 4097), (2, 15)], 128, (8, 1), 128))


@pytest.mark.parametrize("splits", (0, 1, 7))
def test_many_workgroups_give_the_same_from_run_to_run(decode: Bundle, splits: int):
    rng = np.random.default_rng(0)
    shapes = (16, 32, 1, 128), (16, 8, 2048, 128), (16, 8, 2048, 128)
    arrays = [packed(decode, normal(rng, *shape)) for shape in shapes]
    runs = [decode.flash_decode(*arrays, num_splits=splits, return_lse=True) for _ in range(20)]
    for run in runs[1:]:
        assert all(np.array_equal(first.numpy(), other.numpy()) for first, other in zip(runs[0], run, strict=True))


EXTENTS = (1, 3, 17, 127, 129, 257, 4099)


@pytest.mark.parametrize("schedule", ("auto", "persistent", "stream_k"))
@pytest.mark.parametrize("m", EXTENTS)
@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
def test_products_of_every_ragged_shape(gemm: Bundle, dtype: np.dtype, m: int, schedule: str):
    """Every layout is used, with integers, whose sums every dtype on the way holds."""
    rng = np.random.default_rng(m)
    for n, k in product(EXTENTS, EXTENTS):
        a, b = (rng.integers(-2, 3, size).astype(np.float32) for size in ((m, k), (k, n)))
        wanted = (a @ b).astype(dtype)
        assert k < 4099 or np.abs(wanted.astype(np.float32)).max() < 2048
        left, right = ([gemm.device.array(x), gemm.device.array(np.ascontiguousarray(x.T)).T] for x in
                       (a.astype(dtype), b.astype(dtype)))  # fmt: skip
        for given in product(left, right):
            found = gemm.matmul(*given, schedule=schedule).numpy()
            assert np.array_equal(found, wanted), (m, n, k, *(x.strides for x in given))


def zeros_and(gemm: Bundle, count: int, last: np.ndarray, zero: int = 0) -> DeviceArray:
    """Return a large array whose first dim ends with `last` and has zeros before."""
    array = gemm.device.empty((count, *last.shape[1:]), last.dtype)
    array.fill(zero)
    array[count - len(last) :].copy_from(last)
    return array


MANY = (1 << 31) // 64 + 64
"""Rows of 64 elements past 2**31 elements."""


def test_more_than_2_gib_of_rows(gemm: Bundle):
    rng = np.random.default_rng(13)
    last, b = matrix(rng, (64, 64), FP16), matrix(rng, (64, 16), FP16)
    result = gemm.matmul(zeros_and(gemm, MANY, last), gemm.device.array(b))
    assert np.array_equal(result[MANY - 64 :].numpy(), gemm.matmul(last, b))
    assert (result[:64].numpy() == 0).all()


@pytest.mark.parametrize("m", (1, 16, 20))
@pytest.mark.parametrize("op", ("matmul", "linear_int4"))
def test_more_than_2_gib_of_columns(gemm: Bundle, op: str, m: int):
    """Columns are the outputs of a linear layer; with weights of 4 bits they pass 2**31 bytes."""
    rng, n = np.random.default_rng(14), MANY if op == "matmul" else 2 * MANY
    a = gemm.device.array(matrix(rng, (m, 64), FP16))
    if op == "matmul":
        last = matrix(rng, (64, 64), FP16)
        result, wanted = gemm.matmul(a, zeros_and(gemm, n, last).T), gemm.matmul(a, gemm.device.array(last).T)
    else:
        last, scales = rng.integers(0, 256, (64, 32)).astype(np.uint8), gemm.device.array(np.ones((1, n), FP16))
        result = gemm.linear_int4(a, zeros_and(gemm, n, last, 0x88), scales)
        wanted = gemm.linear_int4(a, gemm.device.array(last), scales[:, :64])
    for row in range(m):
        assert np.array_equal(result[row, n - 64 :].numpy(), wanted[row].numpy())
        assert (result[row, :64].numpy() == 0).all()


def test_more_than_2_gib_of_batches(gemm: Bundle):
    rng, batch = np.random.default_rng(14), (1 << 31) // 65536 + 2
    last, one = (rng.integers(-2, 3, (256, 256)).astype(FP16) for _ in range(2))
    result = gemm.batched_matmul(zeros_and(gemm, batch, last[None]), gemm.device.array(one[None]))
    assert np.array_equal(result[batch - 1].numpy(), gemm.matmul(last, one))
    assert (result[0].numpy() == 0).all()


def test_more_than_2_gib_of_normalised_rows(rows: Bundle):
    """131,073 rows of 16,384 in bfloat16: over 2**31 elements. Its last rows are right."""
    device = rows.device
    x, out = (device.empty((131_073, 16_384), BF16) for _ in range(2))
    last, weight = matrix(np.random.default_rng(0), (3, 16_384), BF16), np.ones(16_384, BF16)
    x[-3:].copy_from(last)
    x[:1].copy_from(last[:1])
    for op, more in (("rms_norm", (weight,)), ("softmax", ())):
        getattr(rows, op)(x, *map(device.array, more), out=out)
        wanted = getattr(rows, op)(last, *more)
        assert np.array_equal(out[-3:].numpy(), wanted) and np.array_equal(out[:1].numpy(), wanted[:1])
