"""Products whose last tiles would not fill the device: a second launch takes them, in smaller ones."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from aot_runtime import Bundle
from aot_runtime.call.callspec import CallSpec, plan_call
from aot_runtime.call.decision import Decision
from aot_runtime.call.planner import Planner
from tests.ops.gemm.checking import check, matrix
from tests.support.dtypes import BF16, FP16

MANIFEST = Path(__file__).parents[3] / "manifests/gemm.yaml"
SHAPES = (((520, 272, 1024), 4, "halves", (512, 0)), ((137, 2320, 1040), 9, "quarters", (0, 2304)))
"""Shape, compute units, config of the second launch, and where that begins."""


@pytest.mark.slow
@pytest.mark.parametrize("dtype, biased, columns", ((FP16, False, True), (BF16, True, False)), ids=str)
@pytest.mark.parametrize("shape, cus, config, begin", SHAPES, ids=str)
def test_the_rest_is_cut(
    gemm: Bundle, shape: tuple[int, int, int], cus: int, config: str, begin: tuple[int, int], dtype: np.dtype,
    biased: bool, columns: bool, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """Ragged rows and columns, in poison: each element is written, and by the same bits each time."""
    if gemm.index.target.arch != "gfx942":
        pytest.skip("only gfx942 has large tiles that are cut")
    few = msgspec.structs.replace(gemm.device.properties, num_cus=cus)
    monkeypatch.setattr(type(gemm.device), "properties", property(lambda device: few))
    (m, n, k), rng = shape, np.random.default_rng(cus)
    a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, columns)
    bias = matrix(rng, (n,), dtype) if biased else None
    one, other = (check(gemm, "matmul", dtype, a=a, b=b, bias=bias, alpha=0.5) for _ in range(2))
    assert np.array_equal(one.view(np.uint16), other.view(np.uint16))
    text = gemm.explain("matmul", gemm.device.array(a), gemm.device.array(b))
    assert "CUT=True" in text and config in text


@pytest.fixture(scope="module")
def plans():
    pytest.importorskip("triton", reason="planning bundles needs the extra `build`")
    from aot.manifest.loading import load_manifest
    from aot.plan.bundles import plan_bundle
    from aot.plan.cases import planning_index
    from aot.targets import parse_arch

    planned = plan_bundle(load_manifest(MANIFEST), parse_arch("gfx942"), {"op": frozenset({"matmul"})}, False)
    op = next(op for op in planned.ops if op.name == "matmul")
    specs = [variant.spec for variant in planned.variants if variant.spec.op == "matmul"]
    index = planning_index(op, specs, parse_arch("gfx942"))
    planner = Planner(op, index.variants, "hip")

    def plan(m: int, n: int, k: int, num_cus: int = 304, **scalars: str) -> Decision:
        spec = CallSpec(dims={"m": m, "n": n, "k": k}, dtypes={"T": "float16"}, scalars=scalars)
        return plan_call(index, planner, spec, num_cus, 8)

    return plan


@pytest.mark.parametrize("shape, grids", (
    ((8192, 8192, 8192), [896, 256]), ((8192, 8192, 4096), [896, 256]), ((5120, 8192, 8192), [608, 128]),
    ((4864, 4864, 4864), [304, 228]), ((4096, 7168, 4096), [304, 288]), ((4096, 4096, 4096), [256]),
    ((8192, 8192, 512), [1024]), ((4864, 4096, 4096), [304]), ((12288, 18432, 1024), [3456]),
), ids=str)  # fmt: skip
def test_which_are_cut(plans, shape: tuple[int, int, int], grids: list[int]):
    """Whole rounds of 304 compute units, and the rest in one round of smaller tiles; else one launch."""
    assert [launch.grid[0] for launch in plans(*shape).launches] == grids


def test_what_is_not_cut(plans):
    """Code that serves any epilogue, and schedules that have a kernel of their own."""
    for scalars in ({"activation": "relu"}, {"schedule": "persistent"}, {"schedule": "stream_k"}, {"splits": "2"}):
        assert plans(8192, 8192, 8192, **scalars).names["CUT"] is False
