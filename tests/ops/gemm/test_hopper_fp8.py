"""8-bit products for Hopper: the calls that use them on any device, results on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle, DeviceArray, open_bundle
from kernels.gemm import reference
from kernels.gemm.reference import SCALED
from tests.ops.gemm.checking import check, matrix, on_device
from tests.support.cuda_double.double import CudaDouble, in_cuda_double
from tests.support.dtypes import BF16, FP16, FP32, eight_bits
from tests.support.poison import into_poison
from tests.support.session_builds import build_once

on_gpu = pytest.mark.on("gpu")
KERNELS = {"scaled_matmul": "scaled_matmul_hopper", "block_scaled_matmul": "block_scaled_matmul_hopper"}
SHAPES = (
    (1, 16, 16), (16, 80, 4096), (17, 272, 144), (16, 16400, 144), (64, 8192, 512), (65, 256, 128), (128, 144, 272),
    (129, 272, 80), (127, 240, 48), (640, 1040, 1040), (1100, 4112, 144), (2100, 3600, 592),
)  # fmt: skip
"""Below a tile of each size, above one, and several tiles a program."""


# Which calls get them


@pytest.fixture(scope="session")
def hopper_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the variants for float8_e4m3fn and bfloat16, and the general ones. Read only."""
    filters = "op=scaled_matmul|block_scaled_matmul,T=float8_e4m3fn,E=bfloat16"
    return build_once(tmp_path_factory, "manifests/gemm.yaml", filters, "sm_90") / "gemm-sm_90"


def operands(gemm: Bundle, m: int, n: int, k: int, b_columns: bool = True, gap: int = 0) -> dict[str, DeviceArray]:
    """Make the arguments of `scaled_matmul`. gap: elements between rows of a."""
    empty = gemm.device.empty
    return {
        "a": empty((m, k + gap), "float8_e4m3fn")[:, :k],
        "b": empty((k, n), "float8_e4m3fn", order=(1, 0) if b_columns else (0, 1)),
        "scale_a": empty((m,), "float32"), "scale_b": empty((n,), "float32"), "e": empty((m, n), "bfloat16"),
    }  # fmt: skip


@pytest.mark.slow
@in_cuda_double
def test_which_launch_a_call_gets(hopper_bundle: Path):
    """The test checks rows of tiles and their warps. What no tensor map holds, or is not compiled, goes to the general
    kernel."""
    gemm, double = open_bundle(hopper_bundle, "cuda"), CudaDouble()

    def launched(given: dict[str, DeviceArray], **more: Any) -> tuple[str, tuple[int, int, int], int]:
        gemm.scaled_matmul(**given, **more)
        launch = double.launches()[-1]
        return launch.kernel, launch.grid, launch.block

    hopper = KERNELS["scaled_matmul"]
    assert launched(operands(gemm, 1, 4096, 256)) == (hopper, (64, 1, 1), 256), "tiles of 64 columns by 16 rows"
    assert launched(operands(gemm, 128, 4096, 256)) == (hopper, (64, 1, 1), 256), "by 128 rows"
    assert launched(operands(gemm, 129, 4096, 256)) == (hopper, (128, 1, 1), 256), "as these fill the device"
    assert launched(operands(gemm, 500, 4096, 256)) == (hopper, (128, 1, 1), 384), "tiles of 128 x 128"
    assert launched(operands(gemm, 2048, 2048, 256)) == (hopper, (128, 1, 1), 384), "256 x 128"
    assert launched(operands(gemm, 2048, 2048, 256), use_fast_accum=True) == (hopper, (128, 1, 1), 384), "128 x 256"
    assert launched(operands(gemm, 4096, 4096, 256)) == (hopper, (132, 1, 1), 384), "one on each multiprocessor"
    backwards = gemm.device.empty((65, 64), "float8_e4m3fn")[::-1]
    others = [
        operands(gemm, 64, 64, 60), operands(gemm, 64, 60, 64), operands(gemm, 64, 64, 64, b_columns=False),
        operands(gemm, 64, 64, 0), operands(gemm, 64, 64, 64, gap=8), operands(gemm, 65, 64, 64) | {"a": backwards},
    ]  # fmt: skip
    assert {launched(given)[0] for given in others} == {"matmul"}
    assert launched(operands(gemm, 64, 64, 64), activation="silu")[0] == "matmul"
    assert launched(operands(gemm, 64, 64, 64), d=gemm.device.empty((1, 64), "bfloat16"))[0] == "matmul"
    assert launched(operands(gemm, 64, 64, 64), bias=gemm.device.empty((64,), "bfloat16"))[0] == hopper


def takes(gemm: Bundle, op: str, given: dict[str, Any], **more: Any) -> bool:
    """Tell whether a call gets this kernel: `explain` tells which launches are left out."""
    return gemm.explain(op, **given, **more).count(f"{KERNELS[op]} is left out") == 0


# Results


def scaled_operands(
    gemm: Bundle, shape: tuple[int, int, int], kind: str, per_row: bool = True, seed: int = 3
) -> dict[str, np.ndarray]:
    (m, n, k), rng, dtype = shape, np.random.default_rng(seed), eight_bits(gemm, kind)
    return {
        "a": matrix(rng, (m, k), dtype), "b": matrix(rng, (k, n), dtype, True),
        "scale_a": rng.uniform(1e-3, 1e-2, m if per_row else 1).astype(FP32),
        "scale_b": rng.uniform(0.5, 2, n if per_row else 1).astype(FP32),
    }  # fmt: skip


def placed(gemm: Bundle, given: dict[str, np.ndarray], dtype: np.dtype) -> dict[str, DeviceArray]:
    m, n = given["a"].shape[0], given["b"].shape[1]
    return {name: on_device(gemm, x) for name, x in given.items()} | {"e": gemm.device.empty((m, n), dtype)}


def lost(op: str, given: dict[str, Any], use_fast_accum: bool = False) -> float:
    """Return what matrix units lose of random sums if they keep 13 bits behind the first of the largest number.

    Errors of the products of 32 of k, and of blocks of 128, have random signs.
    """
    if given["a"].dtype.kind == "i":
        return 0
    k = given["a"].shape[1]
    sizes = {**given, "a": np.abs(given["a"]), "b": np.abs(given["b"])}
    magnitude = float(getattr(reference, op)(**sizes).max())
    return 2**-13 * magnitude * ((k / 32) ** 0.5 if use_fast_accum else 2 / max(k / SCALED, 1) ** 0.5)


@on_gpu
@pytest.mark.parametrize("fast, biased, per_row", ((False, False, True), (False, True, False), (True, True, True)))
@pytest.mark.parametrize("kind, dtype", (("e4m3", FP16), ("e4m3", BF16), ("e5m2", BF16), ("int8", FP16)), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scaled(
    gemm: Bundle, shape: tuple[int, int, int], kind: str, dtype: np.dtype, fast: bool, per_row: bool, biased: bool
):  # fmt: skip
    """Results are within what sums allow, with the same bits each time."""
    given, how = scaled_operands(gemm, shape, kind, per_row), {"use_fast_accum": fast}
    floor = lost("scaled_matmul", given, fast)
    bias = {"bias": matrix(np.random.default_rng(1), (shape[1],), dtype)} if biased else {}
    results = [check(gemm, "scaled_matmul", dtype, how, floor=floor, **given, **bias) for _ in range(2)]
    assert np.array_equal(*(result.view(np.uint16) for result in results))
    assert takes(gemm, "scaled_matmul", placed(gemm, given | bias, dtype), **how)


@on_gpu
@pytest.mark.parametrize("k", (2048, 8192))
@pytest.mark.parametrize("fast", (False, True))
def test_sums_of_one_sign(gemm: Bundle, fast: bool, k: int):
    """Even if errors of sums have one sign, they stay within the bound of docs/gemm.md."""
    rng, dtype, ones = np.random.default_rng(6), eight_bits(gemm, "e4m3"), np.ones(1, FP32)
    a, b = (rng.uniform(0.1, 1.1, extents).astype(dtype) for extents in ((256, k), (256, k)))
    result = into_poison(
        gemm, (256, 256), BF16,
        lambda e: gemm.scaled_matmul(
            *(on_device(gemm, x) for x in (a, b.T, ones, ones)), e, use_fast_accum=fast
        ),
    )  # fmt: skip
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    error = np.abs(result.astype(np.float64) / exact - 1).max()
    assert error <= 2**-8 + (k * 2**-13 if fast else 128 * 2**-13), error
    assert not fast or error > 2**-6  # or the sums are not those of the matrix units


@on_gpu
@pytest.mark.parametrize("outer", (False, True))
@pytest.mark.parametrize("kind, dtype", (("e4m3", BF16), ("e4m3", FP16), ("e5m2", FP16)), ids=str)
@pytest.mark.parametrize("rows_per_scale", (1, 128))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_block_scaled(
    gemm: Bundle, shape: tuple[int, int, int], rows_per_scale: int, kind: str, dtype: np.dtype, outer: bool
):  # fmt: skip
    """Check block scales. outer: whether scales of neighbouring rows are neighbours in memory."""
    (m, n, k), rng, op = shape, np.random.default_rng(4), "block_scaled_matmul"
    blocks, groups = -(-k // SCALED), -(-m // rows_per_scale)
    scale_a = rng.uniform(1e-3, 1e-2, (groups, blocks)).astype(FP32)
    scale_b = rng.uniform(0.5, 2, (blocks, -(-n // SCALED))).astype(FP32)
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    given = scaled_operands(gemm, shape, kind) | scales
    floor = lost(op, given | {"rows_per_scale": rows_per_scale})
    if outer:
        given |= {name: np.asfortranarray(scale) for name, scale in scales.items()}
    results = [check(gemm, op, dtype, floor=floor, **given, rows_per_scale=rows_per_scale) for _ in range(2)]
    assert np.array_equal(*(result.view(np.uint16) for result in results))
    assert takes(gemm, op, placed(gemm, given, dtype), rows_per_scale=rows_per_scale)
