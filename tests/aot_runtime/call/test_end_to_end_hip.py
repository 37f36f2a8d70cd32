"""numpy → hip-python → kernarg bytes → code object, for the bundles that ship, over the double of libamdhip64.

The launches are carried out by the kernels' numpy references: what is proved is that every address, extent, stride,
scalar, grid and block reaches the library as the code object wants it. `test_emulated_hip` runs the code objects.

"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import ArgumentError
from kernels.attention.reference import attention
from kernels.rows.reference import softmax
from tests.support.reference_launches import open_over_double, with_bundles

SHAPES = (  # batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim
    (1, 1, 1, 1, 1, 64),
    (2, 4, 2, 48, 80, 64),
    (1, 6, 1, 33, 65, 64),
    (2, 2, 2, 1, 129, 48),
    (1, 4, 4, 130, 17, 33),
)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(math.prod(shape)).standard_normal(shape).astype(np.float16)


@with_bundles()
def test_attention(folder: str):
    bundle, launches = open_over_double(folder, "attention")
    device = bundle.device
    for batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim in SHAPES:
        q = normal(batch, heads, seqlen_q, head_dim)
        k, v = normal(batch, heads_kv, seqlen_k, head_dim), normal(batch, heads_kv, seqlen_k, head_dim)[::-1]
        for causal in (False, True):
            for scale in (None, 0.25):
                passed = float(np.float32(scale or head_dim**-0.5))  # as the kernarg has it
                out, lse = attention(q, k, v, scale=passed, causal=causal, return_lse=True)
                found = bundle.flash_attention(q, k, v, causal=causal, scale=scale)
                np.testing.assert_array_equal(found, out.astype(np.float16))
                both = bundle.flash_attention(
                    *map(device.array, (q, k, v)), causal=causal, scale=scale, return_lse=True
                )
                assert both._fields == ("out", "lse")
                np.testing.assert_array_equal(both.out.numpy(), out.astype(np.float16))
                np.testing.assert_array_equal(both.lse.numpy(), lse.astype(np.float32))
                point = launches.last.variant.axis_values
                # With padding, one variant has both.
                assert (point["BOUND_RIGHT"], point["HEAD_DIM"]) == (causal or point["PADDED"], 64)
                assert point["PADDED"] == (head_dim < 64)
                assert launches.last.variant.aligned == (head_dim % 16 == 0)
                assert launches.last.launch.grid[1:] == (heads, batch)


@with_bundles()
def test_attention_on_views(folder: str):
    """Layouts as models have them: heads and sequence swapped, q, k and v in one array, reversed and skipped rows."""
    bundle, launches = open_over_double(folder, "attention")
    packed = normal(2, 40, 3, 4, 64)
    on_device = bundle.device.array(packed)
    q, k, v = (packed[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    views = [on_device[:, :, i].transpose(0, 2, 1, 3) for i in range(3)]
    out = bundle.device.empty((2, 40, 4, 64), "float16").transpose(0, 2, 1, 3)
    assert bundle.flash_attention(*views, out=out) is out
    np.testing.assert_array_equal(out.numpy(), attention(q, k, v, scale=0.125).astype(np.float16))
    assert launches.last.variant.aligned
    assert [launches.last.values[f"q.stride_{dim}"] for dim in ("batch", "heads", "rows")] == [40 * 768, 64, 768]
    reversed_keys = [views[0], views[1][:, :, ::-2], views[2][:, :, ::-2]]
    expected = attention(q, k[:, :, ::-2], v[:, :, ::-2], scale=0.125).astype(np.float16)
    np.testing.assert_array_equal(bundle.flash_attention(*reversed_keys).numpy(), expected)
    assert not launches.last.variant.aligned and launches.last.values["k.stride_rows"] == -2 * 768
    with pytest.raises(ArgumentError, match="argument 'q' has stride 768 in dim 3"):
        bundle.flash_attention(views[0].transpose(0, 1, 3, 2), *views[1:])


@with_bundles()
def test_softmax(folder: str):
    bundle, launches = open_over_double(folder, "rows")
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32):
        for rows, cols in ((1, 1), (3, 256), (2, 257), (5, 1000), (2, 4096), (2, 40000)):
            x = normal(rows, cols).astype(dtype)
            expected = softmax(x).astype(dtype)
            found = bundle.softmax(x)
            assert found.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(found, expected)
            block = {1: 512, 256: 512, 257: 512, 1000: 4096, 4096: 4096, 40000: 32768}[cols]
            variant = launches.last.variant
            point = {"T": np.dtype(dtype).name, "HAS_MASK": not variant.aligned}
            assert variant.axis_values == point | {"BLOCK": block, "ONE_PASS": cols <= block}
            assert variant.num_warps == {512: 4, 4096: 8, 32768: 16}[block]
            on_device = bundle.softmax(bundle.device.array(x)[::-1])
            np.testing.assert_array_equal(on_device.numpy(), expected[::-1])
            assert not launches.last.variant.aligned or rows == 1


@with_bundles(HIP_DOUBLE_POOLS=0)
def test_a_device_without_memory_pools(folder: str):
    bundle, launches = open_over_double(folder, "rows")
    x = normal(3, 300)
    for _ in range(3):
        np.testing.assert_array_equal(bundle.softmax(x), softmax(x).astype(np.float16))
    bundle.device.memory.trim()
    assert launches.double.allocated() == 0
