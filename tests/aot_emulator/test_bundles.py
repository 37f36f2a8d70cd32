"""The shipped code objects, executed instruction by instruction in strict mode, against the fp64 references."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray
from aot_runtime.call.planner import op_planner
from aot_runtime.contract.records import Variant
from kernels.attention.reference import attention, attention_same_dtype
from kernels.rows.reference import softmax, softmax_same_dtype
from kernels.tolerance import assert_close
from tests.support.emulation.bundling import on_demand
from tests.support.poison import poisoned

pytestmark = pytest.mark.sampled(5)

BF16 = np.dtype(ml_dtypes.bfloat16)
FP16, FP32 = np.dtype(np.float16), np.dtype(np.float32)
OTHERS = ("gfx90a", "gfx950", "gfx1100", "gfx1201")


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "attention", "op=flash_attention")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "rows", "op=softmax")


def check_attention(
    flash: Bundle, dtype: np.dtype, head_dim: int, lengths: tuple[int, int], causal: bool, poison: bool = True
) -> None:
    """poison: strides and addresses are those that the general variants are for."""
    rng = np.random.default_rng(head_dim)
    q = rng.standard_normal((1, 2, lengths[0], head_dim)).astype(dtype)
    k, v = (rng.standard_normal((1, 1, lengths[1], head_dim)).astype(dtype) for _ in range(2))
    out = flash.device.array(np.full(q.shape, np.nan, dtype))
    lse = flash.device.array(np.full(q.shape[:3], np.nan, np.float32))
    given = [poisoned(flash, x) if poison else flash.device.array(x) for x in (q, k, v)]
    flash.flash_attention(*given, causal=causal, return_lse=True, out=out, lse=lse)
    arguments = {"scale": head_dim**-0.5, "causal": causal, "return_lse": True}
    exact, same = attention(q, k, v, **arguments), attention_same_dtype(q, k, v, **arguments)
    assert_close(out.numpy(), exact[0], same[0], 1e-6, "out")
    assert_close(lse.numpy(), exact[1], same[1], 1e-5, "lse")


def check_softmax(rows: Bundle, dtype: np.dtype, cols: int) -> None:
    x = (np.random.default_rng(cols).standard_normal((3, cols)) * 4).astype(dtype)
    out = rows.device.array(np.full(x.shape, np.nan, dtype))
    rows.softmax(poisoned(rows, x), out=out)
    assert_close(out.numpy(), softmax(x), softmax_same_dtype(x), 1e-7)


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("lengths", ((1, 77), (70, 90), (130, 50), (600, 130)), ids=str)
@pytest.mark.parametrize("head_dim", (64, 96, 128))
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_attention(flash: Bundle, dtype: np.dtype, head_dim: int, lengths: tuple[int, int], causal: bool):
    check_attention(flash, dtype, head_dim, lengths, causal)


@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
@pytest.mark.parametrize("cols", (1, 33, 256, 1000, 4096, 20000))
def test_softmax(rows: Bundle, cols: int, dtype: np.dtype):
    check_softmax(rows, dtype, cols)


@pytest.mark.parametrize("lengths", ((1, 77), (130, 50), (200, 330)), ids=str)
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
@pytest.mark.parametrize("arch", OTHERS)
def test_attention_of_other_archs(
    tmp_path_factory: pytest.TempPathFactory, arch: str, dtype: np.dtype, lengths: tuple[int, int]
):
    filters = "op=flash_attention,HEAD_DIM=64"
    check_attention(on_demand(tmp_path_factory, "attention", filters, arch), dtype, 64, lengths, causal=True)


@pytest.mark.parametrize("cols", (33, 256, 1000, 4096))
@pytest.mark.parametrize("arch", OTHERS)
def test_softmax_of_other_archs(tmp_path_factory: pytest.TempPathFactory, arch: str, cols: int):
    check_softmax(on_demand(tmp_path_factory, "rows", "op=softmax", arch), FP16, cols)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", (32, 64, 128, 256))
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
@pytest.mark.parametrize("arch", OTHERS)
def test_every_head_dim_of_other_archs(
    tmp_path_factory: pytest.TempPathFactory, arch: str, dtype: np.dtype, head_dim: int
):
    bundle = on_demand(tmp_path_factory, "attention", "op=flash_attention", arch)
    for causal in (False, True):
        check_attention(bundle, dtype, head_dim, (100, 130), causal, poison=False)
        check_attention(bundle, dtype, head_dim - 1, (130, 77), causal)


@pytest.mark.slow
@pytest.mark.parametrize("cols", (1, 33, 256, 1000, 4096, 20000))
@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
@pytest.mark.parametrize("arch", OTHERS)
def test_every_softmax_of_other_archs(tmp_path_factory: pytest.TempPathFactory, arch: str, dtype: np.dtype, cols: int):
    check_softmax(on_demand(tmp_path_factory, "rows", "op=softmax", arch), dtype, cols)


# Every variant, which is what these sweeps are for; those of attention are in tests/ops/attention


def variants_of(bundle: Bundle, op: str, layouts: dict[str, DeviceArray], **scalars: object) -> list[Variant]:
    """What a call launches."""
    planner = op_planner(bundle.index, op)
    decision = planner.decide(
        {name: array.layout for name, array in layouts.items()},
        scalars,
        bundle.device.key,
        bundle.device.properties.num_cus,
        "gfx942",
    )
    return [launch.variant for launch in decision.launches]


def key(variant: Variant) -> tuple[object, ...]:
    return (variant.op, variant.launch, tuple(variant.axis_values.items()), variant.aligned, variant.config)


@pytest.mark.slow
def test_every_variant_of_rows(rows: Bundle):
    seen = set()
    for dtype in (FP16, BF16, FP32):
        for cols in (256, 1024, 4096, 16384, 20000, 250, 1001, 4001, 16001, 20001):
            x = (np.random.default_rng(cols).standard_normal((3, cols)) * 4).astype(dtype)
            given = poisoned(rows, x)
            seen |= {key(item) for item in variants_of(rows, "softmax", {"x": given})}
            assert_close(rows.softmax(given).numpy(), softmax(x), softmax_same_dtype(x), 1e-7)
    assert seen == {key(variant) for variant in rows.index.variants}
