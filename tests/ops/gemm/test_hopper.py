"""Warp-specialised products for Hopper: launches on any device, results on a GPU."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot_bundle.verification import verify_bundle
from aot_runtime import Bundle, NoVariantError, open_bundle
from kernels.gemm.reference import ACTIVATIONS
from tests.ops.gemm.checking import check, matrix, on_device
from tests.support.cuda_double.double import CudaDouble, encoded_map, in_cuda_double
from tests.support.dtypes import BF16, FP16, FP32, INT8, INT32
from tests.support.session_builds import build_once

on_gpu = pytest.mark.on("gpu")
HOW = {"schedule": "warp_specialised"}


def takes(gemm: Bundle, *operands: Any, op: str = "matmul", **more: Any) -> bool:
    """Tell whether a call gets these products: `explain` tells which launches are left out."""
    launches = [line for line in gemm.explain(op, *operands, **more).splitlines() if line.startswith("launch ")]
    return any("hopper" in line and "is left out" not in line for line in launches)


@pytest.fixture(scope="session")
def hopper_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build some of the variants of these products. Read only."""
    filters = "op=matmul,HOPPER=true,T=float16,EPILOGUE=none"
    return build_once(tmp_path_factory, "manifests/gemm.yaml", filters, "sm_90") / "gemm-sm_90"


@pytest.mark.slow
@in_cuda_double
def test_launches(hopper_bundle: Path):
    """Check warps, shared memory, the grid, and each kernarg's place, for both kinds of tiles."""
    assert verify_bundle(hopper_bundle) == []
    gemm, double = open_bundle(hopper_bundle, "cuda"), CudaDouble()
    for (m, n, k), threads, grid, boxes in (
        ((4100, 4112, 64), 384, 132, (64, 256, 64)), ((16, 528, 4096), 256, 9, (16, 64, 16)),
        ((32, 8192, 64), 256, 128, (32, 64, 32)), ((64, 2112, 64), 256, 66, (32, 64, 32)),
        ((64, 2128, 64), 256, 34, (64, 64, 64)), ((128, 2112, 64), 256, 66, (64, 64, 64)),
        ((128, 2128, 64), 256, 34, (128, 64, 64)),
    ):  # fmt: skip
        b = gemm.device.empty((k, n), "float16", order=(1, 0))
        a = gemm.device.empty((m, k), "float16")
        e = gemm.matmul(a, b, alpha=0.5)
        launch = double.launches()[-1]
        assert (launch.kernel, launch.block, launch.grid) == ("matmul_hopper", threads, (grid, 1, 1))
        assert 160_000 < launch.shared <= 232_448
        expected = bytearray(launch.kernargs)
        operands = ((48, a, (m, k), boxes[0]), (240, b, (n, k), boxes[1]), (432, e, (m, n), boxes[2]))
        for at, array, (rows, columns), height in operands:
            found = encoded_map(launch.kernargs[at : at + 128])
            assert (found.dtype, found.swizzle, found.fill) == (6, 3, 0)
            assert (found.address, found.shape, found.strides) == (array.ptr, (columns, rows), (2 * columns,))
            assert found.box == (64, height)
            struct.pack_into("<2i2q", expected, at + 128, rows, columns, columns, 1)
        struct.pack_into("<2Q2i2f4i?7x2Q", expected, 584, 0, 0, 0, 0, 0.5, 1, 0, m, n, k, False, 0, 0)
        assert bytes(expected) == launch.kernargs and len(expected) == 656


@pytest.mark.slow
@in_cuda_double
def test_which_calls_are_served(hopper_bundle: Path):
    """They are plain calls with a by rows of k, and addresses and strides of 16 bytes."""
    gemm = open_bundle(hopper_bundle, "cuda")  # which has no other kernels
    a, w = gemm.device.empty((64, 128), "float16"), gemm.device.empty((256, 128), "float16")
    rows = gemm.device.empty((128, 256), "float16")
    for left, right in ((a, w.T), (a[::2], w[:240].T), (a[:, 8:80], w[:232, :72].T), (a, rows), (a, rows[:, 8:240])):
        for how in ({}, HOW):
            gemm.matmul(left, right, **how)
    others: list[tuple[Any, ...]] = [
        (a[:, 4:68], w[:, :64].T), (a[:, :60], w[:, :60].T), (a[::-1], w.T), (a, w[:250].T), (a[:, :0], w[:, :0].T),
        (a, rows[:, 4:244]), (gemm.device.empty((128, 64), "float16").T, w.T),
    ]  # fmt: skip
    for left, right in others:
        with pytest.raises(NoVariantError, match="HOPPER"):
            gemm.matmul(left, right, **HOW)
    for other in ({"schedule": "tiles"}, {"splits": 2}):
        with pytest.raises(NoVariantError, match="HOPPER"):
            gemm.matmul(a, w.T, **other)


SHAPES = ((1, 16, 16), (7, 240, 4096), (16, 4112, 1008), (30, 4240, 1008), (64, 8192, 512), (65, 272, 80),
          (300, 528, 208), (128, 2112, 80), (127, 4240, 48), (100, 2192, 4112), (129, 2192, 1040), (128, 4240, 4160),
          (640, 1040, 4096), (2051, 2320, 1008), (2048, 8192, 192))  # fmt: skip


@on_gpu
@pytest.mark.parametrize("shape", (*SHAPES, (300, 520, 200), (129, 264, 1000)), ids=str)
@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
def test_ragged_shapes(gemm: Bundle, dtype: np.dtype, shape: tuple[int, int, int]):
    """Extents are below a tile, above one, and several tiles a program; repeated calls give the same bits. float32 is
    multiplied as tf32."""
    (m, n, k), rng, precision = shape, np.random.default_rng(5), "tf32" if dtype == FP32 else "ieee"
    a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, True)
    result = check(gemm, "matmul", dtype, HOW, precision, a=a, b=b, alpha=-0.75)
    placed, how = (on_device(gemm, a), on_device(gemm, b)), {**HOW, "precision": precision, "alpha": -0.75}
    assert takes(gemm, *placed, **how)
    for _ in range(3):
        assert np.array_equal(gemm.matmul(*placed, **how).numpy().view(np.uint16), result.view(np.uint16))


@on_gpu
@pytest.mark.parametrize("shape", (*SHAPES, (300, 520, 200), (129, 264, 1000)), ids=str)
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_row_major_b(gemm: Bundle, dtype: np.dtype, shape: tuple[int, int, int]):
    (m, n, k), rng = shape, np.random.default_rng(8)
    a, b, bias = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype), matrix(rng, (n,), dtype)
    check(gemm, "matmul", dtype, HOW, a=a, b=b, alpha=-0.75)
    check(gemm, "matmul", dtype, HOW, a=a, b=b, bias=bias, activation="silu")
    assert takes(gemm, on_device(gemm, a), on_device(gemm, b), **HOW)


@on_gpu
@pytest.mark.parametrize("by_rows", (False, True), ids=("columns", "rows"))
@pytest.mark.parametrize("shape", ((1000, 1000, 1001), (900, 1001, 1000), (1111, 777, 999), (4100, 513, 769),
                                   (257, 4111, 1027)), ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_copied_operands(gemm: Bundle, dtype: np.dtype, shape: tuple[int, int, int], by_rows: bool):
    """Rows of operands, of the result or of both are not aligned; nothing past the ends of the result is written."""
    (m, n, k), rng = shape, np.random.default_rng(9)
    a, b, d = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, not by_rows), matrix(rng, (1, n), dtype)
    check(gemm, "matmul", dtype, a=a, b=b, alpha=-0.75)
    check(gemm, "matmul", dtype, a=a, b=b, d=d, beta=2.0, activation="relu")
    launches = gemm.explain("matmul", on_device(gemm, a), on_device(gemm, b))
    assert "copied_matmul_hopper" in launches


@on_gpu
@pytest.mark.parametrize("shape", ((16, 272, 80), (100, 528, 208), (120, 4240, 80), (300, 2192, 1040)), ids=str)
@pytest.mark.parametrize("dtype", (FP16, BF16, FP32), ids=str)
def test_epilogues(gemm: Bundle, dtype: np.dtype, shape: tuple[int, int, int]):
    """Epilogues are a bias, addends of every form, in place too, and activations."""
    (m, n, k), rng, precision = shape, np.random.default_rng(6), "tf32" if dtype == FP32 else "ieee"
    a, b, bias = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, True), matrix(rng, (n,), dtype)
    check(gemm, "matmul", dtype, HOW, precision, a=a, b=b, bias=bias, alpha=0.5)
    for activation, extents in zip(ACTIVATIONS, ((m, n), (1, n), (m, 1), (1, 1), (n, m), (m, n)), strict=True):
        d = matrix(rng, extents, dtype)
        more = {"bias": bias, "d": d.T if extents == (n, m) else d, "activation": activation}
        check(gemm, "matmul", dtype, HOW, precision, a=a, b=b, alpha=0.5, beta=-2.0, **more)
    e, placed = on_device(gemm, d), (on_device(gemm, a), on_device(gemm, b))
    how = {**HOW, "precision": precision, "bias": on_device(gemm, bias), "activation": "silu"}
    assert takes(gemm, *placed, d=e, e=e, **how)
    separate = gemm.matmul(*placed, d=on_device(gemm, d), **how)
    gemm.matmul(*placed, d=e, e=e, **how)
    assert np.array_equal(e.numpy().view(np.uint16), separate.numpy().view(np.uint16))


@on_gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_integers(gemm: Bundle, shape: tuple[int, int, int]):
    """Results are exact, with factors and an addend too."""
    (m, n, k), rng = shape, np.random.default_rng(7)
    a, b, d = matrix(rng, (m, k), INT8), matrix(rng, (k, n), INT8, True), rng.integers(-9, 9, (m, 1)).astype(np.int32)
    check(gemm, "integer_matmul", INT32, a=a, b=b)
    check(gemm, "integer_matmul", INT32, a=a, b=b, d=d, alpha=-3, beta=5)
    assert takes(gemm, on_device(gemm, a), on_device(gemm, b), op="integer_matmul")


@on_gpu
@pytest.mark.parametrize("rank", (8, 16, 72))
@pytest.mark.parametrize("shape", ((1, 16, 16), (16, 272, 4096), (65, 2192, 4112), (100, 4112, 528), (300, 2192, 1040),
                                   (1000, 1040, 1040)), ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_adapters(gemm: Bundle, dtype: np.dtype, shape: tuple[int, int, int], rank: int):
    """k is in several parts or in one, with ranks below and above a block of k."""
    (m, n, k), rng = shape, np.random.default_rng(rank)
    x, w, down = (matrix(rng, extents, dtype) for extents in ((m, k), (n, k), (2, rank, k)))
    up = matrix(rng, (2, n, rank), dtype)
    given = {"x": x, "w": w, "down": down, "up": up, "scale": 0.25}
    check(gemm, "lora_linear", dtype, **given)
    placed = [on_device(gemm, host) for host in (x, w, down, up)]
    assert takes(gemm, *placed, op="lora_linear")
    assert not takes(gemm, *placed, op="lora_linear", adapter_of=gemm.device.array(np.zeros(m, np.int32)))
