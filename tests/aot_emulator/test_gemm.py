"""Matrix products: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import pytest

from aot_runtime import Bundle
from tests.ops.gemm.gemm_suite import *  # noqa: F403 -- its tests
from tests.ops.gemm.gemm_suite import BundleFor
from tests.support.emulation.bundling import on_demand

pytestmark = pytest.mark.sampled(5)

OPS = "op=matmul|batched_matmul"


@pytest.fixture(scope="module")
def gemm(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "gemm", f"{OPS},T=float16,A_ROWS=true,B_ROWS=true")


@pytest.fixture(scope="module")
def gemm_for(tmp_path_factory: pytest.TempPathFactory) -> BundleFor:
    return lambda dtype: on_demand(tmp_path_factory, "gemm", f"{OPS},T={dtype.name}")
