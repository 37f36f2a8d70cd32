"""Products of 8-bit numbers: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import pytest
from bundling import on_demand
from gemm8_suite import *  # noqa: F403 -- its tests

from aot_runtime import Bundle


@pytest.fixture(scope="module")
def gemm8(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    # There is no tf32 product of these dtypes: what is left are the ops of this suite.
    filters = "T=int8|int32|float16|bfloat16|float8_e4m3fnuz,Q=int8|float8_e4m3fnuz,E=float16|float32"
    return on_demand(tmp_path_factory, "gemm", f"{filters},HAS_BIAS=true,TF32=true")
