"""Products whose last tiles would not fill the device: a second launch takes them, in smaller ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aot_bundle.callspec import CallSpec, plan_call
from aot_runtime import Bundle
from aot_runtime.call.decision import Decision
from aot_runtime.call.planner import Planner
from tests.ops.gemm.checking import check, matrix, on_device
from tests.support.choices import configs, with_few_units
from tests.support.dtypes import BF16, FP16, eight_bits

MANIFEST = Path(__file__).parents[3] / "manifests/gemm.yaml"
SHAPES = (((520, 272, 1024), 4, "halves"), ((137, 2320, 1040), 9, "quarters"))
"""Shape, compute units, config of the second launch."""


@pytest.fixture
def units(gemm: Bundle, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Gives the device so many compute units."""
    if gemm.index.target.arch != "gfx942":
        pytest.skip("only gfx942 has large tiles that are cut")
    return lambda count: with_few_units(gemm, monkeypatch, count)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, biased, columns", ((FP16, False, True), (BF16, True, False)), ids=str)
@pytest.mark.parametrize("shape, cus, config", SHAPES, ids=str)
def test_the_rest_is_cut(
    gemm: Bundle, shape: tuple[int, int, int], cus: int, config: str, dtype: np.dtype, biased: bool, columns: bool,
    units: Callable[[int], None],
):  # fmt: skip
    """Ragged rows and columns, in poison: each element is written, and by the same bits each time."""
    units(cus)
    (m, n, k), rng = shape, np.random.default_rng(cus)
    a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, columns)
    bias = matrix(rng, (n,), dtype) if biased else None
    one, other = (check(gemm, "matmul", dtype, a=a, b=b, bias=bias, alpha=0.5) for _ in range(2))
    assert np.array_equal(one.view(np.uint16), other.view(np.uint16))
    placed = {"a": on_device(gemm, a), "b": on_device(gemm, b)} | ({} if bias is None else {"bias": bias})
    assert configs(gemm, "matmul", **placed) == ["huge", config]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ("int8", "e4m3"))
@pytest.mark.parametrize("shape, cus, config", SHAPES, ids=str)
def test_the_rest_of_8_bits_is_cut(
    gemm: Bundle, shape: tuple[int, int, int], cus: int, config: str, kind: str, units: Callable[[int], None]
):
    units(cus)
    (m, n, k), rng, dtype = shape, np.random.default_rng(cus), eight_bits(gemm, kind)
    given = {"a": matrix(rng, (m, 2 * k), dtype), "b": matrix(rng, (2 * k, n), dtype, True),
             "scale_a": rng.uniform(1e-3, 1e-2, m).astype(np.float32),
             "scale_b": rng.uniform(0.5, 2, n).astype(np.float32), "bias": matrix(rng, (n,), BF16)}  # fmt: skip
    one, other = (check(gemm, "scaled_matmul", BF16, **given) for _ in range(2))
    assert np.array_equal(one.view(np.uint16), other.view(np.uint16))
    placed = {name: on_device(gemm, array) for name, array in given.items()}
    assert configs(gemm, "scaled_matmul", **placed, e=gemm.device.empty((m, n), BF16)) == ["huge", config]


@pytest.fixture(scope="module")
def plans():
    pytest.importorskip("triton", reason="planning bundles needs the extra `build`")
    from aot.manifest.loading import load_manifest
    from aot.plan.bundles import plan_bundle
    from aot.plan.cases import planning_index
    from aot.targets import parse_arch

    ops = frozenset({"matmul", "scaled_matmul"})
    planned = plan_bundle(load_manifest(MANIFEST), parse_arch("gfx942"), {"op": ops}, False)
    planners = {}
    for op in planned.ops:
        if op.name in ops:
            specs = [variant.spec for variant in planned.variants if variant.spec.op == op.name]
            index = planning_index(op, specs, parse_arch("gfx942"))
            planners[op.name] = index, Planner(op, index.variants, "hip")

    def plan(
        m: int, n: int, k: int, op: str = "matmul", dtypes: dict[str, str] | None = None, **scalars: str
    ) -> Decision:
        spec = CallSpec(dims={"m": m, "n": n, "k": k}, dtypes=dtypes or {"T": "float16"}, scalars=scalars)
        return plan_call(*planners[op], spec, 304, 8)

    return plan


@pytest.mark.parametrize("shape, grids", (
    ((8192, 8192, 8192), [896, 256]), ((8192, 8192, 4096), [896, 256]), ((5120, 8192, 8192), [608, 128]),
    ((4864, 4864, 4864), [304, 228]), ((4096, 7168, 4096), [304, 288]), ((4096, 4096, 4096), [256]),
    ((8192, 8192, 512), [1024]), ((4864, 4096, 4096), [304]), ((12288, 18432, 1024), [3456]),
), ids=str)  # fmt: skip
def test_which_are_cut(plans, shape: tuple[int, int, int], grids: list[int]):
    """Whole rounds of 304 compute units, and the rest in one round of smaller tiles; else one launch."""
    assert [launch.grid[0] for launch in plans(*shape).launches] == grids


@pytest.mark.parametrize("t", ("int8", "float8_e4m3fnuz"))
@pytest.mark.parametrize("shape, e, grids", (
    ((8192, 8192, 8192), "bfloat16", [896, 256]), ((4864, 4864, 4864), "float16", [304, 228]),
    ((4096, 4096, 4096), "float16", [256]), ((8192, 8192, 1024), "bfloat16", [1024]),
    ((8192, 8192, 8192), "float32", [4096]),
), ids=str)  # fmt: skip
def test_which_of_8_bits_are_cut(plans, shape: tuple[int, int, int], t: str, e: str, grids: list[int]):
    found = plans(*shape, op="scaled_matmul", dtypes={"T": t, "E": e})
    assert [launch.grid[0] for launch in found.launches] == grids


def test_what_is_not_cut(plans):
    """Code that serves any epilogue, and schedules that have a kernel of their own."""
    for scalars in ({"activation": "relu"}, {"schedule": "persistent"}, {"schedule": "stream_k"}, {"splits": "2"}):
        assert plans(8192, 8192, 8192, **scalars).names["CUT"] is False
