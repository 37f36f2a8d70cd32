"""Matrix products: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import pytest
from bundling import on_demand
from gemm_suite import *  # noqa: F403 -- its tests
from gemm_suite import BundleFor

from aot_runtime import Bundle

OPS = "op=matmul|batched_matmul"


@pytest.fixture(scope="module")
def gemm(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "gemm", f"{OPS},T=float16,A_ROWS=true,B_ROWS=true")


@pytest.fixture(scope="module")
def gemm_for(tmp_path_factory: pytest.TempPathFactory) -> BundleFor:
    return lambda dtype: on_demand(tmp_path_factory, "gemm", f"{OPS},T={dtype.name},HAS_BIAS=false,HAS_D=false")
