"""Products by specialised warps, which only Hopper has: their launches anywhere, their results on a GPU."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot_runtime import Bundle, open_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.bundle.verification import verify_bundle
from tests.ops.gemm.checking import check, matrix
from tests.support.cuda_double.double import CudaDouble, encoded_map, in_cuda_double
from tests.support.dtypes import BF16, FP16
from tests.support.session_builds import build_once

on_gpu = pytest.mark.on("gpu")
HOW = {"schedule": "warp_specialised"}
KERNEL = "matmul_hopper"


def takes(gemm: Bundle, *operands: Any, **more: Any) -> bool:
    """Whether a call asks for these products and gets them: `explain` tells which launches are left out."""
    return f"{KERNEL} is left out" not in gemm.explain("matmul", *operands, **more, **HOW)


@pytest.fixture(scope="session")
def hopper_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The variants of these products. Read only."""
    filters = "op=matmul,HOPPER=true,T=float16"
    return build_once(tmp_path_factory, "manifests/gemm.yaml", filters, "sm_90") / "gemm-sm_90"


@pytest.mark.slow
@in_cuda_double
def test_the_launch(hopper_bundle: Path):
    """Twelve warps, nearly all shared memory, and each kernarg where hardware wants it."""
    assert verify_bundle(hopper_bundle) == []
    (variant,) = read_index(hopper_bundle).variants
    assert (variant.num_warps, variant.global_scratch.bytes) == (12, 0) and 220_000 < variant.lds_bytes <= 232_448
    gemm, double = open_bundle(hopper_bundle, "cuda"), CudaDouble()
    m, n, k = 1000, 528, 4096
    a = gemm.device.empty((m, k), "float16")
    b = gemm.device.empty((k, n), "float16", order=(1, 0))
    e = gemm.matmul(a, b, alpha=0.5, **HOW)
    (launch,) = double.launches()
    assert (launch.kernel, launch.block, launch.shared) == (KERNEL, 384, variant.lds_bytes)
    assert launch.grid == (8 * 3, 1, 1), "tiles of 128 x 256; there are 132 multiprocessors"
    places = {"a": 48, "b": 240, "e": 432}
    maps = {name: encoded_map(launch.kernargs[at : at + 128]) for name, at in places.items()}
    assert [(item.dtype, item.swizzle, item.fill) for item in maps.values()] == 3 * [(6, 3, 0)]
    assert {name: (item.address, item.shape, item.strides, item.box) for name, item in maps.items()} == {
        "a": (a.ptr, (k, m), (2 * k,), (64, 64)),
        "b": (b.ptr, (k, n), (2 * k,), (64, 256)),
        "e": (e.ptr, (n, m), (2 * n,), (64, 64)),
    }
    expected = bytearray(launch.kernargs)
    for at, rows, columns in ((48, m, k), (240, n, k), (432, m, n)):
        struct.pack_into("<2i2q", expected, at + 128, rows, columns, columns, 1)
    struct.pack_into("<f3i2Q", expected, 584, 0.5, m, n, k, 0, 0)
    assert bytes(expected) == launch.kernargs and len(expected) == 616


@on_gpu
@pytest.mark.parametrize("shape", ((1, 16, 16), (128, 256, 64), (129, 272, 80), (127, 240, 48), (640, 1040, 4096),
                                   (4099, 4112, 1008), (64, 8192, 512), (2048, 16384, 192)), ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", (FP16, BF16), ids=str)
def test_ragged_shapes(gemm: Bundle, dtype: np.dtype, shape: tuple[int, int, int]):
    """Below a tile, above one, and several tiles a program; the same bits each time."""
    (m, n, k), rng = shape, np.random.default_rng(5)
    a, b = matrix(rng, (m, k), dtype), matrix(rng, (k, n), dtype, True)
    results = [check(gemm, "matmul", dtype, HOW, a=a, b=b, alpha=-0.75) for _ in range(3)]
    assert all(np.array_equal(results[0].view(np.uint16), other.view(np.uint16)) for other in results[1:])
    placed = gemm.device.array(a), gemm.device.array(np.ascontiguousarray(b.T)).T
    assert takes(gemm, *placed)


@on_gpu
def test_strides(gemm: Bundle):
    """Operands and the result within larger arrays; what lies beside the result stays as it is."""
    (m, n, k), rng = (300, 272, 208), np.random.default_rng(3)
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16)
    left, right = gemm.device.empty((m, k + 48), FP16), gemm.device.empty((n, k + 16), FP16)
    whole = gemm.device.array(np.full((m + 2, n + 32), 7, FP16))
    for array, host in ((left, a), (right, np.ascontiguousarray(b.T))):
        for row, values in enumerate(host):  # what has gaps is not written to at once
            array[row, :k].copy_from(values)
    given, e = (left[:, :k], right[:, :k].T), whole[1:-1, 16:-16]
    assert takes(gemm, *given, e=e)
    gemm.matmul(*given, e=e, **HOW)
    found = whole.numpy()
    np.testing.assert_allclose(found[1:-1, 16:-16].astype(np.float32), a.astype(np.float32) @ b, atol=0.1, rtol=2e-3)
    found[1:-1, 16:-16] = 7
    assert (found == 7).all()


@on_gpu
@pytest.mark.parametrize(
    ("shape", "columns", "more"),
    [
        ((64, 60, 64), True, {}), ((64, 64, 60), True, {}), ((64, 64, 64), False, {}), ((64, 64, 0), True, {}),
        ((64, 64, 64), True, {"activation": "relu"}),
    ],
)  # fmt: skip
def test_what_other_kernels_serve(gemm: Bundle, shape: tuple[int, int, int], columns: bool, more: dict[str, str]):
    (m, n, k), rng = shape, np.random.default_rng(4)
    a, b = matrix(rng, (m, k), FP16), matrix(rng, (k, n), FP16, columns)
    check(gemm, "matmul", FP16, HOW, a=a, b=b, **more)
    placed = gemm.device.array(a), gemm.device.array(np.ascontiguousarray(b.T)).T if columns else gemm.device.array(b)
    assert not takes(gemm, *placed, **more)
