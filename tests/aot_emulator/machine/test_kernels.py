"""Triton kernels compiled for every AMD architecture and run on the emulator, against numpy in float64.

All run in strict mode, without findings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from aot_emulator import ARCHS, EmulatorDriver, Options, Order
from tests.support.emulation.launching import (
    BF16,
    F16,
    F32,
    F64,
    FP8_OF,
    I8,
    I32,
    I64,
    OCP_BF8,
    OCP_FP8,
    U32,
    compile_kernel,
    launch,
    normal,
    run,
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
CDNA, RDNA = ("gfx942", "gfx950", "gfx90a"), ("gfx1100", "gfx1201")


def cases(names: str, found: list[Any], count: int) -> Any:
    """Return parameters, of which the first cases are no slow tests."""

    def decorate(test: Any) -> Any:
        return pytest.mark.sampled(count)(pytest.mark.parametrize(names, found, ids=str)(test))

    return decorate


# Products of matrices


def check_matmul(
    arch: str, dtype: np.dtype, shape: tuple[int, int, int], blocks: tuple[int, int, int], split: int = 1,
    emulation: Options | None = None, precision: str | None = None, **options: Any,
) -> EmulatorDriver:  # fmt: skip
    (m, n, k), (block_m, block_n, block_k) = shape, blocks
    a, b = ((normal(*s, dtype=dtype, seed=i, scale=30 if dtype == I8 else 1)) for i, s in enumerate(((m, k), (k, n))))
    c = np.zeros((m, n), {I8: I32, F64: F64}.get(dtype, F32))
    grid = (-(-m // block_m), -(-n // block_n), split)
    after, driver = run("matmul", grid, {"a": a, "b": b, "c": c, "m": m, "n": n, "k": k}, options, emulation, arch=arch,
                        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, SPLIT_K=split, PRECISION=precision)  # fmt: skip
    if dtype == F32 and arch == "gfx942" and precision is None:  # tl.dot takes 19 bits of each: the low 13 are dropped
        a, b = ((x.view(np.uint32) & ~np.uint32(0x1FFF)).view(np.float32) for x in (a, b))
    tolerance = {I8: 0, F64: 1e-12}.get(dtype, (5e-5 if precision == "bf16x3" else 2e-5) * np.sqrt(k))
    np.testing.assert_allclose(after["c"], a.astype(np.float64) @ b.astype(np.float64), rtol=0, atol=tolerance)
    return driver


RAGGED = [(arch, dtype, instruction) for arch in ARCHS for dtype in (F16, BF16, F32, I8, *FP8_OF[arch])
          for instruction in (0, 16, 32) if bool(instruction) != (arch in RDNA)]  # fmt: skip
WMMA = {F16: "f32_16x16x16_f16", BF16: "f32_16x16x16_bf16", I8: "i32_16x16x16_iu8"}


@cases("arch,dtype,instruction", RAGGED, 2)
def test_ragged_matmul(arch: str, dtype: np.dtype, instruction: int):
    options = {"matrix_instr_nonkdim": instruction} if instruction else {}
    driver = check_matmul(arch, dtype, (50, 35, 45), (32, 32, 32), num_warps=2, **options)
    if arch in RDNA and dtype in WMMA:
        assert driver.last.summary.mnemonics[f"v_wmma_{WMMA[dtype]}"] > 0


# Deep enough for the longest instructions, and for loads that go to LDS
PIPELINED = [("gfx942", F16, 3), ("gfx950", F16, 3), ("gfx90a", F16, 2), ("gfx950", I8, 2), ("gfx1100", BF16, 3),
             ("gfx950", OCP_FP8, 3)]  # fmt: skip


@cases("arch,dtype,stages", PIPELINED, 2)
def test_pipelined_matmul(arch: str, dtype: np.dtype, stages: int):
    k, block_k = (128, 32) if arch in RDNA else (384, 128)
    check_matmul(arch, dtype, (32, 32, k), (32, 32, block_k), num_stages=stages)


# They may be made of vector instructions: v_dot2c, v_dot4c. fp32 may be three bfloat16.
SMALL = [(arch, dtype, m, "ieee") for m in (16, 4) for dtype in (F16, F64, F32, I8, BF16) for arch in CDNA]
SMALL += [(arch, F32, 32, "bf16x3") for arch in CDNA] + [("gfx950", dtype, 4, "ieee") for dtype in FP8_OF["gfx950"]]


@cases("arch,dtype,m,precision", SMALL, 2)
def test_small_matmul(arch: str, dtype: np.dtype, m: int, precision: str):
    check_matmul(arch, dtype, (m, 256 // m, 64), (m, 256 // m, 64), precision=precision, num_warps=1)


@cases("arch,order", [(arch, order) for arch in ARCHS for order in Order], 2)
def test_split_k_with_float_atomics(arch: str, order: Order):
    check_matmul(arch, F16, (32, 64, 128), (32, 32, 32), 4, Options(order=order, strict=True))


@cases("arch", ("gfx942", "gfx1100", "gfx90a", "gfx950", "gfx1201"), 1)
def test_spilling_matmul(arch: str):
    """So many wavefronts a SIMD leave too few registers; gfx90a reaches scratch by buffer instructions."""
    options, waves = Options(profile=True, strict=True), 16 if arch in RDNA else 8
    driver = check_matmul(arch, F16, (32, 64, 64), (32, 64, 32), 1, options, num_warps=1, waves_per_eu=waves)
    spilled = {("scratch", "store"), ("scratch", "load")} <= driver.last.summary.accesses.keys()
    assert spilled, "it spills no more: take more wavefronts"


# What the compiler knows of pointers, and these choose how tiles are loaded.
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


@cases("arch,way,kind", [(arch, way, kind) for kind in ("fp16", "bf16") for way in WAYS for arch in CDNA
                         if (arch, way) != ("gfx90a", "direct")], 3)  # fmt: skip
def test_matmul_of_whole_blocks(arch: str, way: str, kind: str, monkeypatch: pytest.MonkeyPatch):
    for name, value in WAYS[way].items():
        monkeypatch.setenv(name, value)
    m, n, k = 64, 64, 192
    signature = (("a", f"*{kind}"), ("b", f"*{kind}"), ("c", "*fp32"), ("m", "i32"), ("n", "i32"), ("k", "i32"))
    blocks, divisible = (("BLOCK_M", 64), ("BLOCK_N", 64), ("BLOCK_K", 64)), ("a", "b", "c", "n", "k")
    compiled = compile_kernel.__wrapped__  # the cache knows nothing of the environment
    kernel = compiled("matmul_blocks", signature, blocks, (("num_stages", 2),), divisible, arch)
    a, b = (normal(*s, dtype=F16 if kind == "fp16" else BF16, seed=i) for i, s in enumerate(((m, k), (k, n))))
    arguments = {"a": a, "b": b, "c": np.zeros((m, n), F32), "m": m, "n": n, "k": k}
    after, driver = launch(kernel, (1, 1), arguments, Options(profile=True))
    assert np.abs(after["c"] - a.astype(np.float64) @ b.astype(np.float64)).max() <= 2e-5 * np.sqrt(k)
    assert EXPECTED.get((arch, way), set()) <= set(driver.last.summary.mnemonics)
    if arch == "gfx950" or (arch, way) == ("gfx942", "direct"):
        accesses = driver.last.summary.accesses
        assert accesses["lds", "store"].bytes == accesses["global", "load"].bytes == a.nbytes + b.nbytes


FORMATS = {"e2m1": np.dtype(ml_dtypes.float4_e2m1fn), "e4m3": OCP_FP8, "e5m2": OCP_BF8, "bf16": BF16, "fp16": F16}


@cache
def microscaled(seed: int, rows: int, k: int, name: str, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return numbers as they are stored (fp4 in pairs along an axis), scales [rows, k // 32], and the values [rows, k].

    axis: 1 is along k.
    """
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((rows, k)) * 2).astype(FORMATS[name])
    scales = np.full((rows, k // 32), 127, np.uint8)
    if name not in ("bf16", "fp16"):  # these have none
        scales = rng.integers(120, 134, scales.shape).astype(np.uint8)
    exact = values.astype(np.float64) * np.repeat(np.ldexp(1.0, scales.astype(int) - 127), 32, axis=1)
    if name != "e2m1":
        return values, scales, exact
    codes = values.view(np.uint8)
    low, high = (codes[:, 0::2], codes[:, 1::2]) if axis else (codes[0::2], codes[1::2])
    return low | high << 4, scales, exact


PAIRS = ("e2m1 e2m1", "e4m3 e5m2", "e4m3 e2m1", "e5m2 e4m3", "bf16 e2m1", "fp16 e4m3")


@cases("arch,pair,instruction,along_k", [
    *(("gfx950", pair, instruction, True) for instruction in (16, 32) for pair in PAIRS),
    ("gfx950", "e4m3 e2m1", 0, False), ("gfx942", "bf16 e2m1", 0, True), ("gfx90a", "bf16 e2m1", 0, True),
], 4)  # fmt: skip
def test_scaled_matmul(arch: str, pair: str, instruction: int, along_k: bool):
    """Formats are those of microscaling, also where there are no instructions for them, and fp4 packed along
    columns."""
    (a, b), (m, n, k) = pair.split(), (32, 32, 256)
    left, left_scales, left_exact = microscaled(0, m, k, a, 1)
    right, right_scales, right_exact = microscaled(1, n, k, b, int(along_k))
    arguments = {"a": left, "a_scale": left_scales, "b": np.ascontiguousarray(right.T), "b_scale": right_scales,
                 "c": np.zeros((m, n), F32), "k": k}  # fmt: skip
    constants = {"M": m, "N": n, "K": 128, "A": a, "B": b, "B_PACKED_ALONG_K": along_k}
    options = {"matrix_instr_nonkdim": instruction} if instruction else {}
    after, driver = run("scaled_matmul", (1,), arguments, options, arch=arch, **constants)
    exact, size = left_exact @ right_exact.T, np.abs(left_exact) @ np.abs(right_exact).T
    assert np.abs(after["c"] - exact).max() <= 1e-6 * size.max()
    assert along_k or "ds_read_b64_tr_b4" in driver.last.summary.mnemonics


# Functions of numbers: in the order of their kernel's output

FLOAT_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "exp": lambda a, b: np.exp(a), "log": lambda a, b: np.log(b), "exp2": lambda a, b: np.exp2(a),
    "log2": lambda a, b: np.log2(b), "sin": lambda a, b: np.sin(a), "cos": lambda a, b: np.cos(a),
    "sqrt": lambda a, b: np.sqrt(b), "rsqrt": lambda a, b: 1 / np.sqrt(b), "erf": lambda a, b: np.vectorize(math.erf)(a),
    "tanh": lambda a, b: np.tanh(a), "sigmoid": lambda a, b: 1 / (1 + np.exp(-a)), "floor": lambda a, b: np.floor(a),
    "ceil": lambda a, b: np.ceil(a), "pow": lambda a, b: b**a, "div": np.divide, "fma": lambda a, b: a * b + a,
    "max": np.maximum, "min": np.minimum, "clamp": lambda a, b: np.clip(a, -b, b), "atan2": np.arctan2,
    "expm1": lambda a, b: np.expm1(a), "lgamma": lambda a, b: np.vectorize(math.lgamma)(b), "fmod": np.fmod,
    "ilogb": lambda a, b: np.frexp(b)[1] - 1.0,
}  # fmt: skip


@cases("arch,dtype", [(arch, dtype) for dtype in (F32, F64) for arch in ARCHS], 2)
def test_float_functions(arch: str, dtype: np.dtype):
    x, y = normal(256, dtype=dtype, scale=3), np.abs(normal(256, dtype=dtype, seed=1, scale=3)) + dtype.type(0.1)
    out = np.zeros((len(FLOAT_FUNCTIONS), 256), dtype)
    after, _ = run("float_functions", (1,), {"x": x, "y": y, "out": out}, arch=arch, BLOCK=256)
    tolerance = 5e-6 if dtype == F32 else 1e-13
    for (name, function), got in zip(FLOAT_FUNCTIONS.items(), after["out"], strict=True):
        want = function(x.astype(np.float64), y.astype(np.float64))
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=name)


@cases("arch,dtype", [(arch, dtype) for dtype in (I32, I64, U32, I8) for arch in ARCHS], 2)
def test_integer_functions(arch: str, dtype: np.dtype):
    rng, limits = np.random.default_rng(0), np.iinfo(dtype)
    x = rng.integers(limits.min // 2, limits.max // 2, 256).astype(dtype)
    y = rng.integers(1, min(limits.max, 1000), 256).astype(dtype)
    after, _ = run("integer_functions", (1,), {"x": x, "y": y, "out": np.zeros((6, 256), dtype)}, arch=arch, BLOCK=256)
    toward_zero = (np.abs(x.astype(object)) // y * np.where(x < 0, -1, 1)).astype(dtype)
    want = [toward_zero, x - toward_zero * y, x * y, x << (y & 7), x >> (y & 7), x < y]
    np.testing.assert_array_equal(after["out"], np.array(want).astype(dtype))


CASTS = [(arch, source, targets) for arch in ARCHS for source, targets in (
    (F32, (F16, BF16, I32)), (F64, (F32, I64, F16)), (F16, (F32, F64, I8)), (I64, (F32, F64, I32)), (U32, (F64, F32, I64)))]  # fmt: skip
CASTS += [(arch, wide, (*FP8_OF[arch], F32)) for arch in ("gfx942", "gfx950") for wide in (F32, F16, BF16)]
CASTS += [(arch, small, (F32, F16, BF16)) for arch in ("gfx942", "gfx950", "gfx1201") for small in FP8_OF[arch]]


@cases("arch,source,targets", CASTS, 3)
def test_casts(arch: str, source: np.dtype, targets: tuple[np.dtype, ...]):
    x = normal(256, scale=20)
    x = (np.abs(x) if source.kind == "u" else x).astype(source)
    names = ("first", "second", "third")
    outputs = {name: np.zeros(256, target) for name, target in zip(names, targets, strict=True)}
    after, _ = run("casts", (1,), {"x": x, **outputs}, arch=arch, BLOCK=256)
    for name, target in zip(names, targets, strict=True):
        wide = x.astype(np.float64) if source.kind not in "iu" else x
        if target.name.startswith("float8"):
            wide = np.clip(wide, *(sign * float(ml_dtypes.finfo(target).max) for sign in (-1, 1)))
        got, want = after[name].astype(np.float64), wide.astype(target).astype(np.float64)
        np.testing.assert_array_equal(got, want, str(target))


@cases("arch,order", [(arch, order) for order in Order for arch in ARCHS], 2)
def test_rearrangements(arch: str, order: Order):
    x, size = normal(16, 64), 16 * 64
    index = np.random.default_rng(0).integers(0, 64, x.shape).astype(np.int32)
    arguments = {"x": x, "index": index, "out": np.zeros(4 * size + 3 * 16, F32)}
    options = Options(order=order, strict=True)
    after, _ = run("rearrangements", (1,), arguments, None, options, arch=arch, ROWS=16, COLUMNS=64)
    sums, ordered, gathered, transposed = after["out"][: 4 * size].reshape(4, 16, 64)
    np.testing.assert_allclose(sums, x.cumsum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(ordered, np.sort(x, 1))
    np.testing.assert_array_equal(gathered, np.take_along_axis(x, index, 1))
    np.testing.assert_array_equal(transposed.reshape(64, 16), x.T)
    largest, where, total = after["out"][4 * size :].reshape(3, 16)
    np.testing.assert_array_equal([largest, where], [x.max(1), x.argmin(1)])
    np.testing.assert_allclose(total, x.sum(1), rtol=1e-5, atol=1e-5)


# Between wavefronts, and control flow


@cases("arch,dtype", [(arch, dtype) for dtype in (I32, F32, I64, F64) for arch in ARCHS], 2)
def test_atomics(arch: str, dtype: np.dtype):
    """Old values of sums give the order: each is the sum of those that came before."""
    x = np.random.default_rng(0).integers(1, 100, 300).astype(dtype)
    arguments = {"x": x, "out": np.zeros((4, 7), dtype), "order": np.zeros(300, dtype), "n": 300}
    after, _ = run("atomics", (3,), arguments, arch=arch, BLOCK=128)
    for place in range(7):
        mine, before = x[place::7], after["order"][place::7]
        assert after["out"][:3, place].tolist() == [mine.max(), 0, mine.sum()]
        assert dtype.kind == "f" or after["out"][3, place] == np.bitwise_xor.reduce(mine)
        turn = np.argsort(before)
        np.testing.assert_array_equal(before[turn], np.r_[0, mine[turn].cumsum()[:-1]])


@cases("arch,order", [(arch, order) for order in Order for arch in ARCHS], 2)
def test_spin_lock(arch: str, order: Order):
    """A wavefront that spins must not stop the one that holds the lock."""
    values = np.random.default_rng(0).integers(0, 100, 11).astype(np.int32)
    arguments = {"lock": np.zeros(1, np.int32), "total": np.zeros(1, np.int32), "values": values}
    after, _ = run("locked_sum", (11,), arguments, emulation=Options(order=order, strict=True), arch=arch)
    assert after["total"][0] == values.sum() and after["lock"][0] == 0


@cases("arch,batch", [(arch, batch) for batch in (4, 28, 1024) for arch in ARCHS], 2)
def test_loops_of_different_lengths_calls_and_a_grid_of_three_dimensions(arch: str, batch: int):
    x = np.random.default_rng(0).integers(1, 100, 60).astype(np.int32)
    options = Options(batch_wavefronts=batch, strict=True)
    after, _ = run("collatz", (3, 4, 5), {"x": x, "out": np.zeros(60, np.int32)}, emulation=options, arch=arch)
    steps = np.zeros(60, np.int32)
    while (x != 1).any():
        steps += x != 1
        x = np.where(x == 1, 1, np.where(x % 2 == 0, x // 2, 3 * x + 1))
    np.testing.assert_array_equal(after["out"], steps)
