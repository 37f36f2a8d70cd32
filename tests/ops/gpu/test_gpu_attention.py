"""Attention from its code objects on a real GPU, against the fp64 reference."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import ArgumentError, Bundle, DeviceArray
from kernels.attention.reference import attention as exact_attention
from kernels.attention.reference import attention_same_dtype
from kernels.tolerance import assert_close

pytestmark = pytest.mark.gpu

FLOOR = 1e-6
BF16 = np.dtype(ml_dtypes.bfloat16)
HEAD_DIMS = (32, 33, 64, 65, 96, 128, 160, 256)
LENGTHS = ((1, 1), (1, 77), (1, 1024), (64, 64), (113, 203), (203, 113), (257, 129), (512, 1000))


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(dtype)


def poisoned(bundle: Bundle, host: np.ndarray, padding: int = 8) -> DeviceArray:
    """`host` on the device, as a view with NaN all around each dim but the last."""
    shape = [extent + 2 * padding for extent in host.shape[:-1]] + [host.shape[-1] + 16]
    whole = np.full(shape, np.nan, host.dtype)
    inner = (*(slice(padding, -padding) for _ in host.shape[:-1]), slice(0, host.shape[-1]))
    whole[inner] = host
    return bundle.device.array(whole)[inner]


def nan_output(bundle: Bundle, shape: tuple[int, ...], dtype: np.dtype) -> DeviceArray:
    return bundle.device.array(np.full(shape, np.nan, dtype))


def check(bundle: Bundle, q, k, v, given, causal: bool, scale: float | None = None) -> None:
    """Run with outputs that hold NaN beforehand; compare out and lse with the reference."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    out, lse = nan_output(bundle, q.shape, q.dtype), nan_output(bundle, q.shape[:3], np.dtype(np.float32))
    result = bundle.flash_attention(*given, scale=scale, causal=causal, return_lse=True, out=out, lse=lse)
    assert result.out is out and result.lse is lse
    exact = exact_attention(q, k, v, scale=scale, causal=causal, return_lse=True)
    same = attention_same_dtype(q, k, v, scale=scale, causal=causal, return_lse=True)
    assert_close(out.numpy(), exact[0], same[0], FLOOR, "out")
    assert_close(lse.numpy(), exact[1], same[1], 1e-5, "lse")


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("dtype", (np.dtype(np.float16), BF16), ids=str)
def test_matches_the_reference(attention: Bundle, dtype: np.dtype, head_dim: int, lengths, causal: bool):
    rng = np.random.default_rng(head_dim)
    seqlen_q, seqlen_k = lengths
    q = normal(rng, (2, 4, seqlen_q, head_dim), dtype)
    k, v = (normal(rng, (2, 2, seqlen_k, head_dim), dtype) for _ in range(2))
    check(attention, q, k, v, [attention.device.array(x) for x in (q, k, v)], causal)


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_poisoned_padding_is_never_read(attention: Bundle, head_dim: int, causal: bool):
    rng = np.random.default_rng(1)
    q = normal(rng, (2, 4, 67, head_dim), np.dtype(np.float16))
    k, v = (normal(rng, (2, 1, 93, head_dim), np.dtype(np.float16)) for _ in range(2))
    check(attention, q, k, v, [poisoned(attention, x) for x in (q, k, v)], causal)


@pytest.mark.parametrize("heads_kv", (1, 2, 4, 8))
@pytest.mark.parametrize("head_dim", (64, 80, 128))
def test_grouped_query_heads(attention: Bundle, heads_kv: int, head_dim: int):
    rng = np.random.default_rng(2)
    q = normal(rng, (3, 8, 130, head_dim), BF16)
    k, v = (normal(rng, (3, heads_kv, 150, head_dim), BF16) for _ in range(2))
    check(attention, q, k, v, [attention.device.array(x) for x in (q, k, v)], True)


@pytest.mark.parametrize("head_dim", (33, 64, 96, 128))
@pytest.mark.parametrize("packed", (False, True), ids=("bshd", "bs3hd"))
def test_strided_layouts(attention: Bundle, head_dim: int, packed: bool):
    """bhsd views of bshd tensors, and of one packed [batch, seqlen, 3, heads, head_dim]."""
    rng = np.random.default_rng(3)
    host = normal(rng, (2, 100, 3, 4, head_dim), np.dtype(np.float16))
    if packed:
        whole = attention.device.array(host)
        given = [whole[:, :, i].transpose(0, 2, 1, 3) for i in range(3)]
    else:
        given = [attention.device.array(host[:, :, i]).transpose(0, 2, 1, 3) for i in range(3)]
    check(attention, *(host[:, :, i].transpose(0, 2, 1, 3) for i in range(3)), given, True)


@pytest.mark.parametrize("scale", (8.0, -0.3, 0.0))
def test_large_negative_and_zero_scale(attention: Bundle, scale: float):
    rng = np.random.default_rng(4)
    q, k, v = (normal(rng, (1, 2, 150, 64), np.dtype(np.float16), 3.0) for _ in range(3))
    check(attention, q, k, v, [attention.device.array(x) for x in (q, k, v)], False, scale)


def test_one_hot_values_give_the_probabilities(attention: Bundle):
    """With equal scores and V the identity, each output row is exactly 1/seqlen_k."""
    q = np.zeros((1, 1, 70, 64), np.float16)
    k = np.zeros((1, 1, 64, 64), np.float16)
    v = np.eye(64, dtype=np.float16)[None, None]
    assert (attention.flash_attention(q, k, v) == np.float16(1 / 64)).all()


def test_rows_that_see_no_key(attention: Bundle):
    rng = np.random.default_rng(5)
    q = normal(rng, (1, 2, 200, 128), np.dtype(np.float16))
    k, v = (normal(rng, (1, 2, 50, 128), np.dtype(np.float16)) for _ in range(2))
    result = attention.flash_attention(q, k, v, causal=True, return_lse=True)
    assert (result.out[:, :, :150] == 0).all() and np.isneginf(result.lse[:, :, :150]).all()
    assert np.isfinite(result.lse[:, :, 150:]).all()


def test_numpy_in_numpy_out_and_device_in_device_out(attention: Bundle):
    rng = np.random.default_rng(6)
    q, k, v = (normal(rng, (1, 2, 64, 64), np.dtype(np.float16)) for _ in range(3))
    host = attention.flash_attention(q, k, v)
    on_device = attention.flash_attention(*map(attention.device.array, (q, k, v)))
    assert isinstance(host, np.ndarray) and isinstance(on_device, DeviceArray)
    np.testing.assert_array_equal(host, on_device.numpy())


def test_results_on_streams_and_in_graphs(attention: Bundle):
    rng = np.random.default_rng(7)
    q, k, v = (attention.device.array(normal(rng, (2, 4, 256, 64), np.dtype(np.float16))) for _ in range(3))
    expected = attention.flash_attention(q, k, v).numpy()
    stream = attention.device.stream()
    np.testing.assert_array_equal(attention.flash_attention(q, k, v, stream=stream).numpy(stream), expected)
    out = nan_output(attention, q.shape, np.dtype(np.float16))
    with attention.device.capture(stream) as graph:
        attention.flash_attention(q, k, v, out=out, stream=stream)
    assert np.isnan(out.numpy()).all()
    graph.launch(stream)
    np.testing.assert_array_equal(out.numpy(stream), expected)


@pytest.mark.slow
def test_a_tensor_over_two_gib(attention: Bundle):
    """65536 keys of 32 heads of 128 in fp16, in a layout whose offsets pass 2**31 bytes and 2**31 elements."""
    rng = np.random.default_rng(8)
    device = attention.device
    big = device.empty((2, 131072, 70, 128), np.float16)  # 2.3e9 elements
    k, v = (normal(rng, (1, 1, 200, 128), np.dtype(np.float16)) for _ in range(2))
    views = []
    for slot, host in ((0, k), (1, v)):
        view = big[1:2, -200:, 68 + slot : 69 + slot].transpose(0, 2, 1, 3)
        for row in range(200):
            view[0, 0, row].copy_from(host[0, 0, row])
        views.append(view)
    q = normal(rng, (1, 1, 40, 128), np.dtype(np.float16))
    # The whole batch, so that the last rows are reached by stride * index, past 2**31 elements.
    wide = [big[:, -200:, 68 + slot : 69 + slot].transpose(0, 2, 1, 3) for slot in (0, 1)]
    both = np.concatenate([q, q])
    out = attention.flash_attention(device.array(both), *wide)
    exact = exact_attention(q, k, v, scale=128**-0.5)
    assert_close(out.numpy()[1:], exact, attention_same_dtype(q, k, v, scale=128**-0.5), FLOOR)


def test_foreign_arrays_are_taken_without_a_copy(attention: Bundle):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(1, 2, 100, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    out = attention.flash_attention(q, k, v, causal=True)
    torch.cuda.synchronize()
    back = torch.from_dlpack(out)
    assert back.data_ptr() == out.ptr and back.dtype == torch.bfloat16
    reference = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    assert (back.double() - reference).abs().max() < 2e-2
    given = torch.empty_like(q)
    attention.flash_attention(q, k, v, causal=True, out=given)
    torch.cuda.synchronize()
    assert torch.equal(given, back)


def test_refusals_launch_nothing(attention: Bundle):
    device = attention.device
    q = device.array(np.zeros((1, 2, 8, 64), np.float16))
    with pytest.raises(ArgumentError, match="head_dim is 320"):
        attention.flash_attention(*(device.empty((1, 2, 8, 320), np.float16) for _ in range(3)))
    with pytest.raises(ArgumentError, match="contiguous"):
        attention.flash_attention(q[..., ::2], q[..., ::2], q[..., ::2])
