"""Triton kernels that use what is less usual: ways of loading tiles, block-scaled products, library functions.

All run in strict mode, which must have nothing to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from aot_emulator import Options

from tests.support.emulation import launching
from tests.support.emulation.launching import (
    BF16,
    F16,
    F32,
    F64,
    FP8_OF,
    I8,
    I32,
    OCP_BF8,
    OCP_FP8,
    normal,
)
from tests.support.emulation.sweeps import sweep

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
run = partial(launching.run, source="kernels/more_kernels.py")


CDNA = ("gfx942", "gfx950", "gfx90a")
every_arch = sweep("arch", CDNA, 3)


def test_spilling_dot():
    """gfx90a reaches scratch by buffer instructions."""
    a, b = normal(16, 256, dtype=BF16), normal(256, 16, dtype=BF16, seed=1)
    constants = {"M": 16, "N": 16, "K": 256, "PRECISION": "ieee", "OUT": "float"}
    options = {"num_warps": 1, "matrix_instr_nonkdim": 4}
    arguments, profiled = {"a": a, "b": b, "c": np.zeros((16, 16), F32)}, Options(profile=True)
    after, driver = run("dot", (1,), arguments, options, profiled, arch="gfx90a", **constants)
    assert np.abs(after["c"] - a.astype(np.float64) @ b.astype(np.float64)).max() <= 1e-4
    accesses = driver.last.summary.accesses
    assert ("scratch", "store") in accesses and ("scratch", "load") in accesses, "the kernel spills no more"


# Loads of tiles: which way they take depends on what the compiler knows of the pointers.


WAYS = {
    "global": {"AMDGCN_USE_BUFFER_OPS": "0"},
    "buffer": {"AMDGCN_USE_BUFFER_OPS": "1"},
    "direct": {"TRITON_HIP_USE_ASYNC_COPY": "1"},  # which gfx950 has by itself, and gfx90a not at all
}
EXPECTED = {
    ("gfx950", "global"): {"global_load_lds_dwordx4", "ds_read_b64_tr_b16"},
    ("gfx950", "buffer"): {"buffer_load_dwordx4", "ds_read_b64_tr_b16"},
    ("gfx942", "direct"): {"buffer_load_dword"},
}
"""Instructions that the kernel should have."""


@sweep("arch,way,dtype", [(arch, way, dtype) for dtype in (F16, BF16) for arch in CDNA for way in WAYS
                          if (arch, way) != ("gfx90a", "direct")], 3, str)  # fmt: skip
def test_matmul_of_whole_blocks(arch: str, way: str, dtype: np.dtype, monkeypatch: pytest.MonkeyPatch):
    for name, value in WAYS[way].items():
        monkeypatch.setenv(name, value)
    m, n, k = 128, 64, 192
    kind = "*fp16" if dtype == F16 else "*bf16"
    signature = (("a", kind), ("b", kind), ("c", "*fp32"), ("m", "i32"), ("n", "i32"), ("k", "i32"))
    constants = (("BLOCK_M", 64), ("BLOCK_N", 64), ("BLOCK_K", 64))
    kernel = launching.compile_kernel.__wrapped__(
        "matmul_blocks", signature, constants, (("num_stages", 2),), ("a", "b", "c", "n", "k"), arch
    )
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
    arguments = {"a": a, "b": b, "c": np.zeros((m, n), F32), "m": m, "n": n, "k": k}
    after, driver = launching.launch(kernel, (2, 1), arguments, Options(profile=True))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(after["c"] - exact).max() <= 2e-5 * np.sqrt(k)
    assert EXPECTED.get((arch, way), set()) <= set(driver.last.summary.mnemonics)
    if arch == "gfx950" or (arch, way) == ("gfx942", "direct"):
        accesses = driver.last.summary.accesses  # each workgroup loads its rows of a, and all of b
        assert accesses["lds", "store"].bytes == accesses["global", "load"].bytes == a.nbytes + 2 * b.nbytes


# Dot products


@sweep("arch,dtype,shape", [(arch, dtype, shape) for arch in CDNA for dtype in (F16, BF16, F32, F64, I8, *FP8_OF[arch])
                            for shape in ((16, 16, 64), (4, 64, 64))], 5, str)  # fmt: skip
def test_dot(arch: str, dtype: np.dtype, shape: tuple[int, int, int]):
    """Small ones may be made of vector instructions: v_dot2c, v_dot4c."""
    m, n, k = shape
    scale = 30 if dtype == I8 else 1
    a, b = normal(m, k, dtype=dtype, scale=scale), normal(k, n, dtype=dtype, seed=1, scale=scale)
    out = np.zeros((m, n), {I8: I32, F64: F64}.get(dtype, F32))
    constants = {"M": m, "N": n, "K": k, "PRECISION": "ieee", "OUT": "int32" if dtype == I8 else "float"}
    after, _ = run("dot", (1,), {"a": a, "b": b, "c": out}, {"num_warps": 1}, arch=arch, **constants)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(after["c"] - exact).max() <= (0 if dtype == I8 else 1e-13 if dtype == F64 else 1e-5 * np.sqrt(k))


@every_arch
def test_emulated_float_dot(arch: str):
    """fp32 as three bfloat16."""
    a, b = normal(32, 64), normal(64, 32, seed=1)
    constants = {"M": 32, "N": 32, "K": 64, "PRECISION": "bf16x3", "OUT": "float"}
    after, _ = run("dot", (1,), {"a": a, "b": b, "c": np.zeros((32, 32), F32)}, arch=arch, **constants)
    assert np.abs(after["c"] - a.astype(np.float64) @ b.astype(np.float64)).max() <= 3e-4


@sweep("dtype,arch,stages", [(F16, "gfx950", 1), (BF16, "gfx950", 2), (OCP_FP8, "gfx950", 1), (OCP_FP8, "gfx950", 2),
                             (BF16, "gfx90a", 1)], 2, str)  # fmt: skip
def test_chained_dots(dtype: np.dtype, arch: str, stages: int):
    m, n, dim = 64, 128, 64
    q, k, v = (normal(rows, dim, dtype=dtype, seed=seed, scale=0.5) for seed, rows in enumerate((m, n, n)))
    out = np.zeros((m, dim), F32)
    constants = {"HEAD_DIM": dim, "BLOCK_M": 64, "BLOCK_N": 64}
    after, _ = run("attention", (1,), {"q": q, "k": k, "v": v, "out": out, "n": n}, {"num_stages": stages}, arch=arch,
                   **constants)  # fmt: skip
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    p = np.exp2(q @ k.T - (q @ k.T).max(1, keepdims=True))
    tolerance = {F16: 1e-3, BF16: 5e-3, OCP_FP8: 5e-2}[dtype]
    np.testing.assert_allclose(after["out"], p @ v / p.sum(1, keepdims=True), atol=tolerance, rtol=tolerance)


# Microscaling formats

FP4 = np.dtype(ml_dtypes.float4_e2m1fn)
FORMATS = {"e2m1": FP4, "e4m3": OCP_FP8, "e5m2": OCP_BF8, "bf16": BF16, "fp16": F16}


@cache
def microscaled(seed: int, rows: int, k: int, name: str, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers as they are stored (fp4 in pairs along an axis), scales [rows, k // 32], and what they mean [rows, k].

    axis: 1 is along k.
    """
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((rows, k)) * 2).astype(FORMATS[name])
    scales = rng.integers(120, 134, (rows, k // 32)).astype(np.uint8)
    exact = values.astype(np.float64) * np.repeat(np.ldexp(1.0, scales.astype(int) - 127), 32, axis=1)
    if name != "e2m1":
        return values, scales, exact
    codes = values.view(np.uint8)
    low, high = (codes[:, 0::2], codes[:, 1::2]) if axis else (codes[0::2], codes[1::2])
    return low | high << 4, scales, exact


@sweep("a,b,instruction", [(*pair, instruction) for pair in (("e2m1", "e2m1"), ("e4m3", "e5m2"), ("e4m3", "e2m1"),
                           ("e5m2", "e4m3"), ("bf16", "e2m1"), ("fp16", "e4m3")) for instruction in (16, 32)], 5)  # fmt: skip
def test_scaled_matmul(a: str, b: str, instruction: int):
    check_scaled("gfx950", a, b, {"matrix_instr_nonkdim": instruction, "num_stages": 2})


@sweep("stages", (1, 3), 2)
def test_scaled_matmul_with_fp4_packed_along_columns(stages: int):
    names = check_scaled("gfx950", "e4m3", "e2m1", {"num_stages": stages}, packed_along_k=False)
    assert "ds_read_b64_tr_b4" in names


@sweep("arch", ("gfx942", "gfx90a"), 2)
def test_scaled_matmul_without_instructions_for_it(arch: str):
    check_scaled(arch, "bf16", "e2m1", {})


def check_scaled(arch: str, a: str, b: str, options: dict[str, Any], packed_along_k: bool = True) -> set[str]:
    """Returns the mnemonics that were executed."""
    m, n, k = 64, 64, 256
    left, left_scales, left_exact = microscaled(0, m, k, a, 1)
    right, right_scales, right_exact = microscaled(1, n, k, b, int(packed_along_k))
    if a in ("bf16", "fp16"):  # these have no scales: 1
        left_scales, left_exact = np.full_like(left_scales, 127), left.astype(np.float64)
    arguments = {"a": left, "a_scale": left_scales, "b": np.ascontiguousarray(right.T), "b_scale": right_scales,
                 "c": np.zeros((m, n), F32), "k": k}  # fmt: skip
    constants = {"M": m, "N": n, "K": 128, "A": a, "B": b, "B_PACKED_ALONG_K": packed_along_k}
    after, driver = run("scaled_matmul", (1,), arguments, options, arch=arch, **constants)
    exact = left_exact @ right_exact.T
    assert np.abs(after["c"] - exact).max() <= 1e-6 * (np.abs(left_exact) @ np.abs(right_exact).T).max()
    return set(driver.last.summary.mnemonics)


# What is less usual


@sweep("arch,axis", [(arch, axis) for arch in CDNA for axis in (0, 1)], 5)
def test_gather(arch: str, axis: int):
    x, shape = normal(32, 64), (32, 64)
    index = np.random.default_rng(0).integers(0, shape[axis], shape).astype(np.int32)
    arguments = {"x": x, "index": index, "out": np.zeros_like(x)}
    after, _ = run("gathers", (1,), arguments, arch=arch, ROWS=32, COLUMNS=64, AXIS=axis)
    np.testing.assert_array_equal(after["out"], np.take_along_axis(x, index, axis))


LIBRARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "acos": np.arccos, "asin": np.arcsin, "atan": np.arctan, "atan2": lambda x: np.arctan2(x, x + 1), "cosh": np.cosh,
    "erfc": np.vectorize(math.erfc), "expm1": np.expm1, "lgamma": np.vectorize(math.lgamma),
    "log1p": np.log1p, "fmod": lambda x: np.fmod(x, x * x * 0.01 + 0.3), "hypot": lambda x: np.hypot(x, x + 2),
    "rint": np.rint, "tan": np.tan, "sin": np.sin, "cos": np.cos,
    "ilogb": lambda x: np.frexp(x)[1] - 1.0,
}  # fmt: skip


@sweep("name,dtype", [(name, dtype) for name in LIBRARY for dtype in (F32, F64)], 7, str)
def test_library_function(name: str, dtype: np.dtype):
    x = normal(256, dtype=dtype)
    x = np.clip(x, -0.99, 0.99) if name in ("acos", "asin", "log1p") else x
    x = np.abs(x) + dtype.type(0.1) if name == "lgamma" else x
    arguments = {"x": x, "out": np.zeros_like(x), "n": 256}
    after, _ = run("library", (1,), arguments, arch="gfx942", FUNCTION=name, BLOCK=256)
    exact = LIBRARY[name](x.astype(np.float64)) if name != "fmod" else LIBRARY[name](x)
    tolerance = 5e-6 if dtype == F32 else 1e-13
    np.testing.assert_allclose(after["out"], exact, rtol=tolerance, atol=tolerance)


@sweep("arch,name", [(arch, name) for arch in CDNA for name in ("sin", "cos")], 5)
def test_angles_that_need_many_bits_of_pi(arch: str, name: str):
    """v_trig_preop_f64. With products and sums fused, the library's own code loses the bits that it goes after."""
    x = np.ldexp(1.0 + np.random.default_rng(0).random(256), np.linspace(20, 1000, 256).astype(int))
    arguments, options = {"x": x, "out": np.zeros_like(x), "n": 256}, {"enable_fp_fusion": False}
    after, _ = run("library", (1,), arguments, options, arch=arch, FUNCTION=name, BLOCK=256)
    exact = [getattr(math, name)(value) for value in x.tolist()]
    np.testing.assert_allclose(after["out"], exact, rtol=1e-13, atol=1e-15)
