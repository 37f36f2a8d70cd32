"""The shipped code objects of softmax, executed instruction by instruction in strict mode."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray
from aot_runtime.call.planner import op_planner
from aot_runtime.contract.records import Variant
from kernels.rows.reference import softmax, softmax_same_dtype
from kernels.tolerance import assert_close
from tests.support.emulation.bundling import on_demand
from tests.support.poison import poisoned

pytestmark = pytest.mark.sampled(5)

BF16 = np.dtype(ml_dtypes.bfloat16)
FP16, FP32 = np.dtype(np.float16), np.dtype(np.float32)
OTHERS = ("gfx90a", "gfx950", "gfx1100", "gfx1151", "gfx1201")


@pytest.fixture(scope="module")
def rows() -> Bundle:
    return on_demand("rows", "op=softmax")


def check_softmax(rows: Bundle, dtype: np.dtype, cols: int) -> None:
    x = (np.random.default_rng(cols).standard_normal((3, cols)) * 4).astype(dtype)
    out = rows.device.array(np.full(x.shape, np.nan, dtype))
    rows.softmax(poisoned(rows, x), out=out)
    assert_close(out.numpy(), softmax(x), softmax_same_dtype(x), 1e-7)


@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
@pytest.mark.parametrize("cols", (1, 33, 256, 1000, 4096, 20000))
def test_softmax(rows: Bundle, cols: int, dtype: np.dtype):
    check_softmax(rows, dtype, cols)


@pytest.mark.parametrize("cols", (33, 256, 1000, 4096))
@pytest.mark.parametrize("arch", OTHERS)
def test_softmax_of_other_archs(arch: str, cols: int):
    check_softmax(on_demand("rows", "op=softmax", arch), FP16, cols)


@pytest.mark.slow
@pytest.mark.parametrize("cols", (1, 33, 256, 1000, 4096, 20000))
@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
@pytest.mark.parametrize("arch", OTHERS)
def test_every_softmax_of_other_archs(arch: str, dtype: np.dtype, cols: int):
    check_softmax(on_demand("rows", "op=softmax", arch), dtype, cols)


# Every variant, which is what these sweeps are for


def variants_of(bundle: Bundle, op: str, layouts: dict[str, DeviceArray], **scalars: object) -> list[Variant]:
    """Return the launches of a call."""
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
