"""Linear layers with prepacked weights of 4 and 8 bits, for Hopper: refusals on any device, results on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aot_bundle.verification import verify_bundle
from aot_models.quantise import Packed, prepack, to_int4, to_int8, to_nf4
from aot_runtime import ArgumentError, Bundle, DeviceArray, open_bundle
from kernels.gemm import prepacked_reference, reference
from kernels.tolerance import assert_close
from tests.ops.gemm.checking import FLOOR, matrix, on_device
from tests.support.cuda_double.double import CudaDouble, in_cuda_double
from tests.support.dtypes import BF16, FP16, FP32
from tests.support.poison import into_poison
from tests.support.session_builds import build_once

on_gpu = pytest.mark.on("gpu")
OPS = "linear_int4_prepacked|linear_int8_prepacked"


def to_symmetric(weight: np.ndarray, size: int, dtype: np.dtype) -> Packed:
    """Return codes of all values, without zeros."""
    return replace(to_int4(weight, size, dtype), zeros=None)


def to_int8_zeros(weight: np.ndarray, size: int, dtype: np.dtype) -> Packed:
    """Return zeros from the least to the greatest, so that codes less zeros have 9 bits."""
    packed = to_int8(weight, size, dtype)
    zeros = np.random.default_rng(size).integers(-128, 128, packed.scales.shape).astype(np.int8)
    return replace(packed, zeros=zeros)


PACKS = (to_int4, to_symmetric, to_nf4, to_int8, to_int8_zeros)


def op_of(weights: Packed) -> str:
    return "linear_int4" if weights.w.dtype == np.uint8 else "linear_int8"


def weights_of(pack: Callable[..., Packed], n: int, k: int, size: int, dtype: np.dtype = FP16) -> Packed:
    return pack(np.random.default_rng(n).standard_normal((n, k)), size, dtype)


def within(gemm: Bundle, host: np.ndarray) -> DeviceArray:
    """Put an array on the device with poison before and behind it: prepacked weights have no gaps."""
    whole = np.full((len(host) + 2, *host.shape[1:]), np.nan if host.dtype.kind in "fV" else 127, host.dtype)
    whole[1:-1] = host
    return gemm.device.array(whole)[1:-1]


def check_prepacked(gemm: Bundle, x: np.ndarray, weights: Packed, bias: np.ndarray | None = None) -> np.ndarray:
    op = f"{op_of(weights)}_prepacked"
    given = {name: value for name, value in prepack(weights).arguments().items() if value is not None}
    given |= {} if bias is None else {"bias": bias}
    placed = {name: within(gemm, value) if isinstance(value, np.ndarray) else value for name, value in given.items()}
    exact = getattr(prepacked_reference, op)(x, **given)
    rows = on_device(gemm, x)
    result = into_poison(gemm, exact.shape, x.dtype, lambda e: getattr(gemm, op)(rows, **placed, e=e))
    same = getattr(prepacked_reference, f"{op}_same_dtype")(x, **given)
    assert_close(result, exact, same, FLOOR * x.shape[1] ** 0.5)
    return result


@pytest.mark.parametrize("pack", PACKS)
def test_the_reference_is_that_of_weights_that_are_not_prepacked(pack: Callable[..., Packed]):
    weights, x = weights_of(pack, 128, 192, 64), matrix(np.random.default_rng(0), (3, 192), FP16)
    given, prepacked = weights.arguments(), prepack(weights).arguments()
    for of_dtype in ("", "_same_dtype"):
        found = getattr(prepacked_reference, f"{op_of(weights)}_prepacked{of_dtype}")(x, **prepacked)
        np.testing.assert_array_equal(found, getattr(reference, f"{op_of(weights)}{of_dtype}")(x, **given))


@on_gpu
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize(
    "m, n, k, size", ((1, 64, 64, 64), (8, 192, 1984, 64), (13, 320, 1152, 128), (16, 128, 4096, 4096),
                      (5, 4096, 512, 256), (33, 192, 192, 64), (64, 320, 1152, 128), (100, 8256, 256, 128),
                      (129, 448, 832, 64), (300, 192, 4096, 128), (1030, 1088, 448, 64)), ids=str,
)  # fmt: skip
def test_ragged_shapes(
    gemm: Bundle, m: int, n: int, k: int, size: int, pack: Callable[..., Packed], dtype: np.dtype
):  # fmt: skip
    """Steps of k are not whole, rows are fewer than a block, groups are one and many; the same bits come each time."""
    rng, weights = np.random.default_rng(m), weights_of(pack, n, k, size, dtype)
    x, bias = matrix(rng, (m, k), dtype), matrix(rng, (n,), dtype) if m % 2 else None
    first, second = (check_prepacked(gemm, x, weights, bias) for _ in range(2))
    assert np.array_equal(first.view(np.uint16), second.view(np.uint16))


@on_gpu
@pytest.mark.parametrize("pack", (to_int4, to_int8_zeros))
@pytest.mark.parametrize("m", (3, 70))
def test_unaligned_rows(gemm: Bundle, m: int, pack: Callable[..., Packed]):
    """Rows of x and of the result lie at odd places of larger arrays, whose other elements stay as they were."""
    n, k = 192, 256
    rng, weights = np.random.default_rng(m), weights_of(pack, n, k, 64)
    x, whole = gemm.device.empty((m, k + 3), FP16)[:, 1 : k + 1], gemm.device.array(np.full((m + 2, n + 5), 7, FP16))
    host = matrix(rng, (m, k), FP16)
    for row, values in enumerate(host):  # what has gaps is not written to at once
        x[row].copy_from(values)
    given = prepack(weights).arguments()
    getattr(gemm, f"{op_of(weights)}_prepacked")(x, **given, e=whole[1:-1, 3:-2])
    found, exact = whole.numpy(), getattr(reference, op_of(weights))(host, **weights.arguments())
    np.testing.assert_allclose(found[1:-1, 3:-2], exact, rtol=2e-3, atol=2e-2)
    found[1:-1, 3:-2] = 7
    assert (found == 7).all()


@pytest.fixture(scope="session")
def hopper_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the ops with zeros. Read only."""
    filters = f"op={OPS},T=float16,CODES=zeros"
    return build_once(tmp_path_factory, "manifests/gemm.yaml", filters, "sm_90") / "gemm-sm_90"


@pytest.mark.slow
@in_cuda_double
def test_launches_and_refusals(hopper_bundle: Path):
    """Calls get the right kernel, and weights in linear_int4's layout are refused."""
    assert verify_bundle(hopper_bundle) == []
    gemm, double = open_bundle(hopper_bundle, "cuda"), CudaDouble()
    weights = weights_of(to_int4, 128, 2048, 64)
    given, plain = prepack(weights).arguments(), weights.arguments()
    x = gemm.device.empty((4, 2048), FP16)
    odd = gemm.device.empty((40, 2051), FP16)[:, 1:2049]
    for rows, expected in (
        (x, [("prepacked_rows", 4)]),
        (gemm.device.empty((1040, 2048), FP16), [("prepacked_hopper", 9 * 4), ("add_parts", 1040)]),
        (gemm.device.empty((40, 2048), FP16), [("prepacked_hopper", 4), ("add_parts", 40)]),
        (odd, [("prepacked_rows", 4 * 3)]),
    ):
        before = len(double.launches())
        gemm.linear_int4_prepacked(rows, **given)
        assert [(launch.kernel, launch.grid[0]) for launch in double.launches()[before:]] == expected
    few = prepack(weights_of(to_int4, 128, 256, 64)).arguments()
    before = len(double.launches())
    gemm.linear_int4_prepacked(gemm.device.empty((40, 256), FP16), **few)
    assert [launch.kernel for launch in double.launches()[before:]] == ["prepacked_hopper"], "k is not cut"
    assert all(launch.early for launch in double.launches()), "the kernels wait for what precedes them"
    for wrong, message in (
        ({"w": plain["w"]}, r"'w' has 2 dims.*it takes 3: \[tiles, k // 4, 32\]"),
        ({"scales": plain["scales"]}, "'scales' has 2 dims"),
        ({"zeros": plain["zeros"]}, "'zeros' has 2 dims"),
        ({"group_size": 32, "scales": np.repeat(given["scales"], 2, 0)}, "group_size"),
        ({"w": given["w"][:, :-16]}, "w"),
        ({"codebook": np.zeros(16, FP32)}, "codebook"),
        ({"x": gemm.device.empty((4, 2000), FP16)}, "k"),
    ):
        with pytest.raises(ArgumentError, match=message):
            gemm.linear_int4_prepacked(**{"x": x, **given, **wrong})
    eight = prepack(weights_of(to_int8_zeros, 128, 2048, 64)).arguments()
    gemm.linear_int8_prepacked(x, **eight)
    for op, of_the_other in (("linear_int8_prepacked", given), ("linear_int4_prepacked", eight)):
        with pytest.raises(ArgumentError, match="'w'"):
            getattr(gemm, op)(x, **of_the_other)


@pytest.mark.slow
@in_cuda_double
def test_drivers_that_cannot_capture_early_launches_get_none(hopper_bundle: Path):
    double = CudaDouble()
    double.be_version(12020)
    gemm = open_bundle(hopper_bundle, "cuda")
    given = prepack(weights_of(to_int4, 64, 64, 64)).arguments()
    gemm.linear_int4_prepacked(gemm.device.empty((4, 64), FP16), **given)
    assert [launch.early for launch in double.launches()] == [False]
