"""Matrix products on the other emulated architectures, a little of each kind, in strict mode."""

from __future__ import annotations

import numpy as np
import pytest

from aot_runtime import Bundle
from aot_runtime.weights import to_int4
from kernels.gemm import reference
from kernels.tolerance import assert_close
from tests.ops.gemm.gemm8_suite import float8
from tests.ops.gemm.gemm_packed_suite import run_linear
from tests.ops.gemm.gemm_suite import FLOOR, FP16, INT8, matrix, on_device, run_matmul
from tests.support.emulation.bundling import on_demand

pytestmark = pytest.mark.sampled(5)

ARCHS = ("gfx1201", *(pytest.param(arch, marks=pytest.mark.slow) for arch in ("gfx950", "gfx90a", "gfx1100")))
FLOAT8_ARCHS = ("gfx950", "gfx1201")
PRODUCTS = (
    "op=matmul|integer_matmul|scaled_matmul,T=float16|int8|float8_e4m3fn,E=float16,A_ROWS=true,B_ROWS=false,"
    "B_COLUMNS=true"
)
PACKED = "op=linear_int4,T=float16,CODES=zeros|any"


@pytest.fixture(scope="module", params=ARCHS)
def gemm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "gemm", PRODUCTS, arch=request.param)


@pytest.fixture(scope="module", params=ARCHS)
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return on_demand(tmp_path_factory, "gemm", PACKED, arch=request.param)


@pytest.mark.parametrize("shape", ((1, 64, 80), (17, 33, 70), (65, 144, 160)), ids=str)
def test_matmul(gemm: Bundle, shape: tuple[int, int, int]):
    (m, n, k), rng = shape, np.random.default_rng(0)
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, True)
    run_matmul(gemm, a, b, splits=1)
    if k % 16 == 0:
        run_matmul(gemm, a, b, splits=2, activation="gelu")
        run_matmul(gemm, a, b, schedule="stream_k")


@pytest.mark.parametrize("shape", ((1, 64, 80), (17, 33, 70), (130, 144, 160)), ids=str)
def test_integers(gemm: Bundle, shape: tuple[int, int, int]):
    (m, n, k), rng = shape, np.random.default_rng(1)
    a, b = matrix(rng, (m, k), INT8), matrix(rng, (k, n), INT8, True)
    given = on_device(gemm, a), on_device(gemm, b)
    assert np.array_equal(gemm.integer_matmul(*given).numpy(), reference.integer_matmul(a, b))


@pytest.mark.parametrize("shape", ((17, 33, 70), (130, 144, 160)), ids=str)
def test_float8(gemm: Bundle, shape: tuple[int, int, int]):
    if gemm.device.arch not in FLOAT8_ARCHS:
        pytest.skip(f"{gemm.device.arch} has no float8")
    (m, n, k), rng = shape, np.random.default_rng(2)
    dtype = float8(gemm, "e4m3")
    a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, True)
    scales = rng.uniform(0.5, 2, m).astype(np.float32), rng.uniform(0.5, 2, n).astype(np.float32)
    e = np.full((m, n), np.nan, FP16)
    gemm.scaled_matmul(a, b, *scales, e)
    assert_close(e, reference.scaled_matmul(a, b, *scales), reference.scaled_matmul_same_dtype(a, b, *scales, e), FLOOR)


@pytest.mark.parametrize("m", (1, 20))
def test_int4(packed: Bundle, m: int):
    rng = np.random.default_rng(3)
    run_linear(packed, "linear_int4", matrix(rng, (m, 128), FP16), to_int4(rng.standard_normal((48, 128)), 64))
