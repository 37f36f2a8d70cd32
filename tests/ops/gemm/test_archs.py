"""Matrix products on the other architectures that the emulator has, and by descriptors, which become pointers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")
pytest.importorskip("triton", reason="building bundles needs the extra `build`")

from aot.tune.candidates import SCALAR
from aot_models.quantise import to_int4
from aot_runtime import Bundle, NoVariantError
from tests.ops.gemm.checking import check, matrix, on_device
from tests.ops.gemm.test_packed_eight_bits import arguments
from tests.support.candidates import candidates_bundle
from tests.support.choices import configs, with_few_units
from tests.support.dtypes import BF16, FP16, INT8, INT32, eight_bits
from tests.support.emulation.bundling import on_demand

pytestmark = [pytest.mark.on("emulator"), pytest.mark.sampled(1)]

E4M3 = ml_dtypes.float8_e4m3fn
PRODUCTS = "op=matmul|integer_matmul|scaled_matmul|linear_int4,T=float16|int8|float8_e4m3fn,E=float16"
HOW = {"tiles": {"splits": 1}, "splits": {"splits": 2}, "stream_k": {"schedule": "stream_k"}}


@pytest.mark.parametrize("shape", ((17, 33, 70), (1, 64, 80), (65, 144, 160)), ids=str)
@pytest.mark.parametrize("kind", (*HOW, "int8", "e4m3", "int4"))
@pytest.mark.parametrize("arch", ("gfx1201", "gfx950", "gfx90a", "gfx1100"))
def test_other_archs(arch: str, kind: str, shape: tuple[int, int, int]):
    """A little of each kind."""
    if kind == "e4m3" and arch not in ("gfx950", "gfx1201"):
        pytest.skip(f"{arch} has no float8")
    gemm, (m, n, k), rng = on_demand("gemm", PRODUCTS, arch), shape, np.random.default_rng(0)
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


@pytest.mark.parametrize("cus, k, config", ((2, 176, "huge"), (5, 208, "wide"), (256, 240, "middle")))
@pytest.mark.parametrize("biased, columns", ((True, True), (False, False)))
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
@pytest.mark.parametrize("arch", ("gfx950",))
def test_tuned_tiles(
    arch: str, dtype: np.dtype, biased: bool, columns: bool, cus: int,
    k: int, config: str, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    """Those of many rows and columns, on a device with few compute units; of other shapes, as plans are cached."""
    gemm = on_demand("gemm", "op=matmul,T=float16|bfloat16", arch)
    with_few_units(gemm, monkeypatch, cus)
    m, n, rng = 136, 272, np.random.default_rng(cus)
    a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, columns)
    bias = matrix(rng, (n,), dtype) if biased else None
    check(gemm, "matmul", dtype, {"splits": 1}, a=a, b=b, bias=bias)
    given = {} if bias is None else {"bias": bias}
    assert configs(gemm, "matmul", on_device(gemm, a), on_device(gemm, b), **given, splits=1) == [config]


@pytest.mark.sampled(0)
@pytest.mark.parametrize("m, size, splits", ((17, 32, 1), (1, 128, 2), (40, 384, 0)))
@pytest.mark.parametrize("kind", ("int8", "e4m3"))
@pytest.mark.parametrize("arch", ("gfx1201", "gfx950", "gfx90a", "gfx1100"))
def test_activations_of_8_bits(arch: str, kind: str, m: int, size: int, splits: int):
    gemm = on_demand("gemm", "op=linear_int4_a8", arch)
    has_float8 = arch in ("gfx950", "gfx1201")
    given = arguments(gemm, m, 48, 384, size, kind if has_float8 else "int8", BF16, True)
    if kind == "e4m3" and not has_float8:
        with pytest.raises(NoVariantError, match="it is built for the same call with x of int8"):
            gemm.linear_int4_a8(**given | {"x": given["x"].astype(E4M3), "e": np.zeros((m, 48), BF16)})
    else:
        check(gemm, "linear_int4_a8", BF16, {"splits": splits}, **given)


SPACE = """\
op: matmul
groups:
  - name: descriptors
    launch: matmul
    when: aligned and EPILOGUE == 'none'
    candidates:
      - {blocks: {DESCRIPTORS: true, PERSISTENT: [false, true], BLOCK_M: 32, BLOCK_N: [32, 64], BLOCK_K: 32,
           GROUP_M: 2}, options: {num_warps: 4, num_stages: 2}}
"""
FILTER = "op=matmul,T=float16,A_ROWS=true,EPILOGUE=none,SPLIT=false,STREAM=false,MULTIPLY=false"


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The candidates of a space."""
    return candidates_bundle(tmp_path_factory, "gemm", "matmul", SPACE, FILTER)


@pytest.mark.parametrize("m, n, k", ((33, 80, 112), (200, 16, 16)))
@pytest.mark.parametrize("b_columns", (False, True))
@pytest.mark.parametrize("candidate", (4, 1, 2, 3))
def test_descriptors(candidates: Bundle, candidate: int, b_columns: bool, m: int, n: int, k: int):
    rng, options = np.random.default_rng(m), {SCALAR: candidate, "schedule": "tiles"}
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, b_columns)
    check(candidates, "matmul", FP16, options, a=a, b=b)
    placed = candidates.device.array(a), candidates.device.array(b)
    assert configs(candidates, "matmul", *placed, **options) == [f"candidate{candidate}"]
