"""Matrix products by tensor descriptors, as candidates of a sweep. On gfx942 they become pointers; the kernel is the same."""

from __future__ import annotations

import runpy

import numpy as np
import pytest
import yaml

from aot_runtime import Bundle
from kernels.gemm.reference import matmul, matmul_same_dtype
from kernels.tolerance import assert_close
from tests.ops.gemm.gemm_suite import FLOOR, FP16, into_poison, matrix, on_device
from tests.support.emulation.bundling import ROOT, built

pytestmark = pytest.mark.sampled(5)

CONFIG = {"DESCRIPTORS": True, "PERSISTENT": [False, True], "BLOCK_M": 32, "BLOCK_N": [32, 64], "BLOCK_K": 32,
          "GROUP_M": 2, "num_warps": 4, "num_stages": 2}  # fmt: skip
GROUP = {"name": "descriptors", "op": "matmul", "launch": "matmul", "kinds": ["float16"], "shapes": ["64x64x64"],
         "when": ["aligned", "EPILOGUE == 'none'"], "configs": [CONFIG]}  # fmt: skip
FILTER = "op=matmul,T=float16,A_ROWS=true,EPILOGUE=none,SPLIT=false,STREAM=false,MULTIPLY=false"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "candidates.yaml").write_text(yaml.safe_dump({"filter": FILTER, "groups": [GROUP]}))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        runpy.run_path(str(ROOT / "benchmarks/gemm_sweep.py"))["write"](folder / "candidates.yaml", folder)
    return built(tmp_path_factory, folder / "gemm_sweep.yaml", FILTER)


@pytest.mark.parametrize("candidate", (1, 2, 3, 4))
@pytest.mark.parametrize("b_columns", (False, True))
@pytest.mark.parametrize("m, n, k", ((33, 80, 112), (200, 16, 16)))
def test_matmul(sweep: Bundle, m: int, n: int, k: int, b_columns: bool, candidate: int):
    rng = np.random.default_rng(m)
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, b_columns)
    given, options = (on_device(sweep, a), on_device(sweep, b)), {"candidate": candidate, "schedule": "tiles"}
    assert f"candidate{candidate}" in str(sweep.explain("matmul", *given, **options))
    result = into_poison(sweep, (m, n), FP16, lambda e: sweep.matmul(*given, e=e, **options))
    assert_close(result, matmul(a, b), matmul_same_dtype(a, b), FLOOR * k**0.5)
