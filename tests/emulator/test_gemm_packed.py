"""Linear layers with packed weights: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import pytest
from bundling import on_demand
from gemm_packed_suite import *  # noqa: F403 -- its tests

from aot_runtime import Bundle


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    # There is no tf32 product of float16: what is left are the ops of this suite, and a few.
    return on_demand(tmp_path_factory, "gemm", "T=float16,TF32=true,Q=int8,E=float16")
