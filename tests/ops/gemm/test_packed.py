"""Linear layers with weights of 4 and 8 bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aot_models.quantise import Packed, pack_int4, to_int4, to_int8, to_nf4
from aot_runtime import Bundle
from tests.ops.gemm.checking import check, matrix
from tests.support.choices import configs, with_few_units
from tests.support.dtypes import FP16

pytestmark = pytest.mark.sampled(2)


def weights_op(weights: Packed) -> str:
    return "linear_int8" if weights.w.dtype == np.int8 else "linear_int4"


def check_linear(gemm: Bundle, x: np.ndarray, weights: Packed, bias: np.ndarray | None = None, splits: int = 0) -> None:
    given = {name: value for name, value in weights.arguments().items() if value is not None}
    check(gemm, weights_op(weights), FP16, {"splits": splits}, x=x, **given, bias=bias)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("m, splits", ((1, 0), (2, 0), (3, 0), (4, 0), (17, 0), (5, 2), (130, 0), (33, 5), (16, 0)))
@pytest.mark.parametrize("n, k, size", ((64, 256, 128), (17, 96, 32), (33, 128, 64), (17, 4128, 32), (128, 384, 384),
                                        (16, 37, 37), (5, 129, 129)), ids=str)  # fmt: skip
@pytest.mark.parametrize("pack", (to_int4, to_nf4))
def test_4_bits(gemm: Bundle, pack: Callable[..., Packed], n: int, k: int, size: int, m: int, splits: int):
    rng = np.random.default_rng(m)
    weights = pack(rng.standard_normal((n, k)), size)
    check_linear(gemm, matrix(rng, (m, k), FP16), weights, matrix(rng, (n,), FP16), splits)


@pytest.mark.parametrize("biased", (False, True))
@pytest.mark.parametrize("m", (1, 20))
@pytest.mark.parametrize("codes", ("zeros", "offset", "codebook"))
def test_act_order(gemm: Bundle, codes: str, m: int, biased: bool):
    """Weights have zeros, as in GPTQ, a codebook, or neither."""
    rng = np.random.default_rng(m)
    w = pack_int4(rng.integers(0, 16, (48, 128)).astype(np.uint8))
    zeros = rng.integers(0, 17, (4, 48)).astype(np.uint8) if codes == "zeros" else None
    codebook = rng.standard_normal(16).astype(np.float32) if codes == "codebook" else None
    scales, order = rng.uniform(0.5, 1, (4, 48)).astype(FP16), rng.permutation(128).astype(np.int32)
    weights = Packed(w, scales, zeros, 32, order, codebook)
    check_linear(gemm, matrix(rng, (m, 128), FP16), weights, matrix(rng, (48,), FP16) if biased else None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("zeros, splits", ((True, 3), (False, 0)))
@pytest.mark.parametrize("m", (20, 1, 3, 129))
@pytest.mark.parametrize("n, k, size", ((17, 96, 32), (64, 256, None), (33, 129, None), (128, 384, 128)), ids=str)
def test_int8(gemm: Bundle, n: int, k: int, size: int | None, m: int, zeros: bool, splits: int):
    rng = np.random.default_rng(m)
    x, weights = matrix(rng, (m, k), FP16), to_int8(rng.standard_normal((n, k)), size)
    if zeros:
        shifted = rng.integers(-100, 100, weights.scales.shape).astype(np.int8)
        weights = Packed(weights.w, weights.scales, shifted, weights.group_size)
    check_linear(gemm, x, weights, splits=splits)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("zeros", (True, False))
@pytest.mark.parametrize("m", (3, 1, 20, 129))
def test_act_order_of_int8(gemm: Bundle, m: int, zeros: bool):
    rng = np.random.default_rng(m)
    w, order = rng.integers(-128, 128, (48, 128)).astype(np.int8), rng.permutation(128).astype(np.int32)
    shifted = rng.integers(-100, 100, (4, 48)).astype(np.int8) if zeros else None
    weights = Packed(w, rng.uniform(0.5, 1, (4, 48)).astype(FP16), shifted, 32, order)
    check_linear(gemm, matrix(rng, (m, 128), FP16), weights)


@pytest.mark.on("emulator", "rocm")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("bits", (4, 8))
def test_large_tiles(gemm: Bundle, bits: int, monkeypatch: pytest.MonkeyPatch):
    """Tiles have many rows and columns, or few on a device with few compute units."""
    with_few_units(gemm, monkeypatch)
    rng = np.random.default_rng(3)
    weights = (to_int4 if bits == 4 else to_int8)(rng.standard_normal((144, 224)), 32)
    check_linear(gemm, matrix(rng, (300, 224), FP16), weights, matrix(rng, (144,), FP16))


@pytest.mark.on("emulator", "hip")
@pytest.mark.sampled(4)
@pytest.mark.parametrize(("m", "num_cus", "tile"), ((40, 8, "middle"), (200, 2, "wide")))
@pytest.mark.parametrize("bits", (4, 8))
def test_parts_of_k_for_many_rows(
    gemm: Bundle, bits: int, m: int, num_cus: int, tile: str, monkeypatch: pytest.MonkeyPatch
):
    """k is cut where tiles of many rows do not fill the device."""
    with_few_units(gemm, monkeypatch, num_cus)
    rng = np.random.default_rng(3)
    x, weights = matrix(rng, (m, 544), FP16), (to_int4 if bits == 4 else to_int8)(rng.standard_normal((88, 544)), 32)
    given = {name: value for name, value in weights.arguments().items() if value is not None}
    assert configs(gemm, weights_op(weights), x=x, **given) == [tile, "base"]
    check_linear(gemm, x, weights, matrix(rng, (88,), FP16))
