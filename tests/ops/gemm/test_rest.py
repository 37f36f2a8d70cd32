"""Products whose last tiles would not fill the device: a second launch computes them in smaller tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aot_bundle.callspec import CallSpec, plan_call
from aot_runtime import Bundle
from aot_runtime.call.choosing import Decision
from aot_runtime.call.planner import Planner
from tests.ops.gemm.checking import check, matrix, on_device
from tests.support.choices import configs, with_few_units
from tests.support.dtypes import BF16, FP16
from tests.support.plans import planned

SHAPES = (((520, 272, 1024), 4, "halves"), ((137, 2320, 1040), 9, "quarters"))
"""Shape, compute units, config of the second launch."""


@pytest.fixture
def units(gemm: Bundle, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Pretend that the device has so many compute units."""
    if gemm.index.target.arch != "gfx942":
        pytest.skip("only gfx942 has large tiles that are cut")
    return lambda count: with_few_units(gemm, monkeypatch, count)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
@pytest.mark.parametrize("shape, cus, config", SHAPES, ids=str)
def test_the_rest_is_cut(
    gemm: Bundle, shape: tuple[int, int, int], cus: int, config: str, dtype: np.dtype[Any], units: Callable[[int], None]
):
    """Rows and columns are ragged and in poison: each element is written, with the same bits each time."""
    units(cus)
    (m, n, k), rng = shape, np.random.default_rng(cus)
    given = {"a": matrix(rng, (m, k), dtype), "b": matrix(rng, (k, n), dtype), "alpha": 0.5}
    given |= {} if dtype == FP16 else {"bias": matrix(rng, (n,), dtype)}
    one, other = (check(gemm, "matmul", dtype, **given) for _ in range(2))
    assert np.array_equal(one.view(np.uint16), other.view(np.uint16))
    placed = {name: on_device(gemm, x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    assert configs(gemm, "matmul", **placed, e=gemm.device.empty((m, n), dtype)) == ["huge", config]


@pytest.fixture(scope="module")
def plans():
    bundle = planned("gfx942", "gemm")
    from aot.plan.cases import planning_index
    from aot.targets import parse_arch

    op = next(op for op in bundle.ops if op.name == "matmul")
    specs = [variant.spec for variant in bundle.variants if variant.spec.op == op.name]
    index = planning_index(op, specs, parse_arch("gfx942"))
    planner = Planner(op, index.variants, "hip")

    def plan(m: int, n: int, k: int, **scalars: str) -> Decision:
        spec = CallSpec(dims={"m": m, "n": n, "k": k}, dtypes={"T": "float16"}, scalars=scalars)
        return plan_call(index, planner, spec, 304, 8)

    return plan


@pytest.mark.parametrize("shape, grids", (
    ((8192, 8192, 8192), [896, 256]), ((8192, 8192, 4096), [896, 256]), ((5120, 8192, 8192), [608, 128]),
    ((4864, 4864, 4864), [304, 228]), ((4096, 7168, 4096), [304, 288]), ((4096, 4096, 4096), [256]),
    ((8192, 8192, 512), [1024]), ((4864, 4096, 4096), [304]), ((12288, 18432, 1024), [3312, 288]),
), ids=str)  # fmt: skip
def test_which_are_cut(plans, shape: tuple[int, int, int], grids: list[int]):
    """Whole rounds of 304 compute units are one launch, and the rest is one round of smaller tiles; otherwise all is
    one launch."""
    assert [launch.grid[0] for launch in plans(*shape).launches] == grids


def test_what_is_not_cut(plans):
    """Such are code that serves any epilogue, and schedules that have a kernel of their own."""
    for scalars in ({"activation": "relu"}, {"schedule": "persistent"}, {"schedule": "stream_k"}, {"splits": "2"}):
        assert plans(8192, 8192, 8192, **scalars).names["CUT"] is False
