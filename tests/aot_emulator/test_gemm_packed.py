"""Linear layers with packed weights: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import pytest

from aot_runtime import Bundle
from tests.ops.gemm.gemm_packed_suite import *  # noqa: F403 -- its tests
from tests.support.emulation.bundling import on_demand

pytestmark = pytest.mark.sampled(5)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "gemm", "op=linear_int4|linear_int8|lora_linear,T=float16")
