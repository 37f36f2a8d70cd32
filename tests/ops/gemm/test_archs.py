"""Matrix products on the other architectures that the emulator has, and by descriptors, which become pointers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")
pytest.importorskip("triton", reason="building bundles needs the extra `build`")

from aot.plan.filters import parse_filters
from aot_runtime import Bundle
from aot_runtime.weights import to_int4
from tests.ops.gemm.checking import check, matrix
from tests.support.dtypes import FP16, INT8, INT32, eight_bits
from tests.support.emulation.bundling import on_demand, strict_device
from tests.support.on_demand import BundleOnDemand
from tests.support.session_builds import ROOT, session_cache

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(1)]

PRODUCTS = "op=matmul|integer_matmul|scaled_matmul|linear_int4,T=float16|int8|float8_e4m3fn,E=float16"
HOW = {"tiles": {"splits": 1}, "splits": {"splits": 2}, "stream_k": {"schedule": "stream_k"}}


@pytest.mark.parametrize("shape", ((17, 33, 70), (1, 64, 80), (65, 144, 160)), ids=str)
@pytest.mark.parametrize("kind", (*HOW, "int8", "e4m3", "int4"))
@pytest.mark.parametrize("arch", ("gfx1201", "gfx950", "gfx90a", "gfx1100"))
def test_other_archs(tmp_path_factory: pytest.TempPathFactory, arch: str, kind: str, shape: tuple[int, int, int]):
    """A little of each kind."""
    if kind == "e4m3" and arch not in ("gfx950", "gfx1201"):
        pytest.skip(f"{arch} has no float8")
    gemm, (m, n, k), rng = on_demand(tmp_path_factory, "gemm", PRODUCTS, arch), shape, np.random.default_rng(0)
    dtype = FP16 if kind in (*HOW, "int4") else eight_bits(gemm, kind)
    a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, True)
    if kind in HOW:
        check(gemm, "matmul", FP16, HOW[kind], a=a, b=b, activation="gelu" if kind == "splits" else "none")
    elif kind == "int4":
        check(gemm, "linear_int4", FP16, x=a, **to_int4(rng.standard_normal((n, k)), k).arguments())
    elif dtype == INT8:
        check(gemm, "integer_matmul", INT32, a=a, b=b)
    else:
        scale_a, scale_b = (rng.uniform(0.5, 2, extent).astype(np.float32) for extent in (m, n))
        check(gemm, "scaled_matmul", FP16, a=a, b=b, scale_a=scale_a, scale_b=scale_b)


CONFIG = {"DESCRIPTORS": True, "PERSISTENT": [False, True], "BLOCK_M": 32, "BLOCK_N": [32, 64], "BLOCK_K": 32,
          "GROUP_M": 2, "num_warps": 4, "num_stages": 2}  # fmt: skip
GROUP = {"name": "descriptors", "op": "matmul", "launch": "matmul", "kinds": ["float16"], "shapes": ["64x64x64"],
         "when": ["aligned", "EPILOGUE == 'none'"], "configs": [CONFIG]}  # fmt: skip
FILTER = "op=matmul,T=float16,A_ROWS=true,EPILOGUE=none,SPLIT=false,STREAM=false,MULTIPLY=false"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The candidates of a sweep."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "candidates.yaml").write_text(json.dumps({"filter": FILTER, "groups": [GROUP]}))
    make = [ROOT / "benchmarks/gemm_sweep.py", "make", folder / "candidates.yaml", "-o", folder]
    subprocess.run([sys.executable, *make], check=True)
    manifest, filters = Path(folder / "gemm_sweep.yaml"), parse_filters((FILTER,))
    return BundleOnDemand(manifest, strict_device(), session_cache(tmp_path_factory), filters)


@pytest.mark.parametrize("m, n, k", ((33, 80, 112), (200, 16, 16)))
@pytest.mark.parametrize("b_columns", (False, True))
@pytest.mark.parametrize("candidate", (4, 1, 2, 3))
def test_descriptors(sweep: Bundle, candidate: int, b_columns: bool, m: int, n: int, k: int):
    rng, options = np.random.default_rng(m), {"candidate": candidate, "schedule": "tiles"}
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, b_columns)
    check(sweep, "matmul", FP16, options, a=a, b=b)
    placed = sweep.device.array(a), sweep.device.array(b)
    assert f"candidate{candidate}" in str(sweep.explain("matmul", *placed, **options))
