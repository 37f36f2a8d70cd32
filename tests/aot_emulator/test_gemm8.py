"""Products of 8-bit numbers: the shipped gfx942 code objects in strict mode."""

from __future__ import annotations

import pytest

from aot_runtime import Bundle
from tests.ops.gemm.gemm8_suite import *  # noqa: F403 -- its tests
from tests.support.emulation.bundling import on_demand

pytestmark = pytest.mark.sampled(5)


@pytest.fixture(scope="module")
def gemm8(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    ops = ("integer_matmul", "scaled_matmul", "block_scaled_matmul", "int8_linear", "int8_linear_relu",
           "int8_linear_float32", "int8_bmm", "int8_bmm_float32", "layer_norm_int8", "quantise", "quantise_all")  # fmt: skip
    return on_demand(tmp_path_factory, "gemm", f"op={'|'.join(ops)}")
