"""Matrix products: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import numpy as np
import pytest
from bundling import on_demand
from gemm_suite import *  # noqa: F403 -- its tests
from gemm_suite import BF16, FP16, FP32, BundleFor

from aot_runtime import Bundle

OPS = "op=matmul|batched_matmul"


@pytest.fixture(scope="module")
def gemm(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
<<<<<<< HEAD
    return on_demand(tmp_path_factory, "gemm", "T=float16,A_ROWS=true,B_ROWS=true")
=======
    return built(tmp_path_factory, "gemm", f"{OPS},T=float16,A_ROWS=true,B_ROWS=true")
>>>>>>> gemm


@pytest.fixture(scope="module")
def gemm_for(tmp_path_factory: pytest.TempPathFactory) -> BundleFor:
<<<<<<< HEAD
    plain = "HAS_BIAS=false,HAS_D=false"
    half = on_demand(tmp_path_factory, "gemm", f"T=float16,{plain}")
    return lambda dtype: (
        half if dtype == np.float16 else on_demand(tmp_path_factory, "gemm", f"T=bfloat16|float32,{plain}")
    )
=======
    """Of float16 all layouts and schedules; of the others those of linear layers, and those of few schedules."""
    linear = ",A_ROWS=true,B_ROWS=false,STREAM=false,MULTIPLY=false"
    parts = {FP16: "", FP32: linear, BF16: f"{linear},SPLIT=false"}

    def bundle(dtype: np.dtype) -> Bundle:
        return built(tmp_path_factory, "gemm", f"{OPS},T={dtype.name},HAS_BIAS=false,HAS_D=false{parts[dtype]}")

    return bundle
>>>>>>> gemm
