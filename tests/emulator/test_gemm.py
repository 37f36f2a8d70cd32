"""Matrix products: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import numpy as np
import pytest
from bundling import on_demand
from gemm_suite import *  # noqa: F403 -- its tests
from gemm_suite import BundleFor

from aot_runtime import Bundle


@pytest.fixture(scope="module")
def gemm(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "gemm", "T=float16,A_ROWS=true,B_ROWS=true")


@pytest.fixture(scope="module")
def gemm_for(tmp_path_factory: pytest.TempPathFactory) -> BundleFor:
    plain = "HAS_BIAS=false,HAS_D=false"
    half = on_demand(tmp_path_factory, "gemm", f"T=float16,{plain}")
    return lambda dtype: (
        half if dtype == np.float16 else on_demand(tmp_path_factory, "gemm", f"T=bfloat16|float32,{plain}")
    )
