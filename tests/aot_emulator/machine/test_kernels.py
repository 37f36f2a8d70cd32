"""Triton kernels compiled for every AMD architecture and run on the emulator, against numpy in float64.

All run in strict mode, which must have nothing to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from aot_emulator import ARCHS, EmulatorDriver, Options, Order
from aot_emulator.driver import STRICT_VARIABLE

from tests.support.emulation.launching import (
    BF8,
    BF16,
    F16,
    F32,
    F64,
    FP8,
    FP8_OF,
    I8,
    I32,
    I64,
    OCP_BF8,
    OCP_FP8,
    U32,
    U64,
    compile_kernel,
    normal,
    run,
)
from tests.support.emulation.sweeps import sweep

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

GFX942, RDNA = "gfx942", ("gfx1100", "gfx1201")


def on_archs(names: str, cases: Iterable[tuple[Any, ...]], every: int = 4) -> Any:
    """Parameters `arch` and `names`: each case on each architecture, of which a sample is no slow test."""
    # Cases are taken in another order for each architecture, so that samples differ.
    found = list(cases)
    shifted = ((arch, *case) for at, arch in enumerate(ARCHS) for case in (*found[at:], *found[:at]))
    return sweep(f"arch,{names}", shifted, every, str)


every_arch = pytest.mark.parametrize("arch", ARCHS)


@on_archs("dtype", [(dtype,) for dtype in (F32, F16, BF16, F64, I8, I64)])
def test_masked_add(arch: str, dtype: np.dtype, monkeypatch: pytest.MonkeyPatch):
    x, y = (normal(1000, dtype=dtype, seed=i, scale=10) for i in range(2))
    for strict in "01":
        monkeypatch.setenv(STRICT_VARIABLE, strict)
        after, driver = run("add", (4,), {"x": x, "y": y, "out": np.zeros_like(x), "n": 1000}, arch=arch, BLOCK=256)
        np.testing.assert_array_equal(after["out"], x + y)
        assert driver.last.instructions > 16  # four workgroups of four wavefronts


@on_archs("dtype", [(F32,), (F16,)], 3)
def test_layernorm(arch: str, dtype: np.dtype):
    x = normal(5, 777, dtype=dtype)
    weight, bias = normal(777, dtype=dtype, seed=1), normal(777, dtype=dtype, seed=2)
    arguments = {"x": x, "weight": weight, "bias": bias, "out": np.zeros_like(x), "columns": 777, "eps": 1e-5}
    after, _ = run("layernorm", (5,), arguments, arch=arch, BLOCK=1024)
    exact = x.astype(np.float64)
    exact = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5) * weight + bias
    tolerance = 2e-3 if dtype == F16 else 2e-6
    np.testing.assert_allclose(after["out"].astype(np.float64), exact, rtol=tolerance, atol=tolerance)


def check_matmul(
    dtype: np.dtype, shape: tuple[int, int, int], blocks: tuple[int, int, int], options: dict[str, Any] | None = None,
    split: int = 1, emulation: Options | None = None, arch: str = GFX942,
) -> EmulatorDriver:  # fmt: skip
    (m, n, k), (block_m, block_n, block_k) = shape, blocks
    a, b = ((normal(*s, dtype=dtype, seed=i, scale=30 if dtype == I8 else 1)) for i, s in enumerate(((m, k), (k, n))))
    c = np.zeros((m, n), {I8: I32, F64: F64}.get(dtype, F32))
    grid = (-(-m // block_m), -(-n // block_n), split)
    after, driver = run("matmul", grid, {"a": a, "b": b, "c": c, "m": m, "n": n, "k": k}, options, emulation, arch=arch,
                        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, SPLIT_K=split)  # fmt: skip
    if dtype == F32 and arch == GFX942:  # tl.dot takes 19 bits of each: the low 13 are dropped
        a, b = ((x.view(np.uint32) & ~np.uint32(0x1FFF)).view(np.float32) for x in (a, b))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error = np.abs(after["c"] - exact).max()
    assert error <= (0 if dtype == I8 else 1e-12 if dtype == F64 else 2e-5 * np.sqrt(k)), error
    return driver


MATMULS = [(arch, dtype, instruction) for arch in ARCHS for dtype in (F16, BF16, F32, I8, *FP8_OF[arch])
           for instruction in (0, 16, 32) if bool(instruction) != (arch in RDNA)]  # fmt: skip
WMMA = {F16: "f32_16x16x16_f16", BF16: "f32_16x16x16_bf16", I8: "i32_16x16x16_iu8"}


@sweep("arch,dtype,instruction", MATMULS, 4, str)
def test_ragged_matmul(arch: str, dtype: np.dtype, instruction: int):
    options = {"num_warps": 4} | ({"matrix_instr_nonkdim": instruction} if instruction else {})
    driver = check_matmul(dtype, (100, 70, 90), (64, 64, 32), options, arch=arch)
    if arch in RDNA and dtype in WMMA:
        assert driver.last.summary.mnemonics[f"v_wmma_{WMMA[dtype]}"] > 0


@sweep("arch,dtype,stages", [("gfx942", F16, 3), ("gfx950", F16, 3), ("gfx950", I8, 2), ("gfx950", OCP_FP8, 3),
                             ("gfx90a", F16, 2), ("gfx1100", BF16, 3), ("gfx1201", BF16, 3)], 2, str)  # fmt: skip
def test_pipelined_matmul(arch: str, dtype: np.dtype, stages: int):
    """Deep enough for the longest instructions, and for loads that go to LDS."""
    k, block_k = (256, 32) if arch in RDNA else (384, 128)
    check_matmul(dtype, (64, 64, k), (64, 64, block_k), {"num_stages": stages}, arch=arch)


@sweep("arch", ARCHS, 2)
def test_matmul_of_doubles(arch: str):
    check_matmul(F64, (48, 40, 50), (32, 32, 32), arch=arch)


@sweep("arch,order", [(arch, order) for arch in ARCHS for order in Order], 3, str)
def test_split_k_with_float_atomics(arch: str, order: Order):
    check_matmul(F16, (64, 64, 256), (32, 32, 32), split=4, emulation=Options(order=order), arch=arch)


def test_spilling_matmul():
    """One wavefront for a tile of 128 x 256 does not fit its registers: accumulation registers and scratch."""
    shape, blocks = (128, 256, 32), (128, 256, 32)
    check_matmul(F16, shape, blocks, {"num_warps": 1})
    signature = (("a", "*fp16"), ("b", "*fp16"), ("c", "*fp32"), ("m", "i32"), ("n", "i32"), ("k", "i32"))
    constants = (("BLOCK_M", 128), ("BLOCK_N", 256), ("BLOCK_K", 32), ("SPLIT_K", 1))
    metadata = compile_kernel("matmul", signature, constants, (("num_warps", 1),)).compiled.metadata
    assert metadata.scratch_bytes > 0 and metadata.agprs > 0, "the kernel spills no more: make its tile larger"


@sweep("arch", RDNA, 2)
def test_spilling_matmul_of_rdna(arch: str):
    driver = check_matmul(F64, (30, 32, 32), (32, 32, 32), {"num_warps": 1}, arch=arch)
    spilled = [name for name in driver.last.summary.mnemonics if name.startswith("scratch_")]
    assert spilled, "it spills no more: make its tile larger"


UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp, "log": np.log, "exp2": np.exp2, "log2": np.log2, "sin": np.sin, "cos": np.cos, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "erf": np.vectorize(math.erf), "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "floor": np.floor, "ceil": np.ceil, "abs": np.abs,
    "pow": lambda x: np.abs(x) ** x,
}  # fmt: skip


@on_archs("name,dtype", [(name, dtype) for name in UNARY for dtype in (F32, F64)], 13)
def test_function(arch: str, name: str, dtype: np.dtype):
    x = normal(500, dtype=dtype, scale=3)
    x = np.abs(x) if name in ("log", "log2", "sqrt", "rsqrt") else x
    after, _ = run("unary", (2,), {"x": x, "out": np.zeros_like(x), "n": 500}, arch=arch, FUNCTION=name, BLOCK=256)
    tolerance = 3e-6 if dtype == F32 else 2e-14
    np.testing.assert_allclose(after["out"], UNARY[name](x.astype(np.float64)), rtol=tolerance, atol=tolerance / 3)


CASTS = [(F32, F16), (F32, BF16), (F16, F32), (BF16, F32), (F32, FP8), (F32, BF8), (FP8, F16), (BF8, F32), (F16, FP8),
         (F32, I32), (I32, F32), (I64, F32), (F64, F32), (F64, I64), (I64, F64), (U32, F64)]  # fmt: skip
OCP_CASTS = [
    pair for wide in (F32, F16, BF16) for small in (OCP_FP8, OCP_BF8) for pair in ((wide, small), (small, wide))
]
# Triton knows small floats of gfx942, gfx950 and gfx1201 alone.
ALL_CASTS = [(arch, *types) for arch in ARCHS for types in CASTS if arch == "gfx942" or not {FP8, BF8} & {*types}]
ALL_CASTS += [(arch, *types) for arch in ("gfx950", "gfx1201") for types in OCP_CASTS[: 12 if arch == "gfx950" else 4]]


@sweep("arch,source,target", ALL_CASTS, 9, str)
def test_cast(arch: str, source: np.dtype, target: np.dtype):
    x = np.abs(normal(500, scale=20)).astype(source) if source.kind == "u" else normal(500, scale=20).astype(source)
    after, _ = run(
        "unary", (2,), {"x": x, "out": np.zeros(500, target), "n": 500}, arch=arch, FUNCTION="cast", BLOCK=256
    )
    narrow = ml_dtypes.finfo(target).max if target.name.startswith("float8") else None
    wide = x.astype(np.float64) if source.kind not in "iu" else x
    want = wide.astype(target) if narrow is None else np.clip(wide, -float(narrow), float(narrow)).astype(target)
    np.testing.assert_array_equal(after["out"].astype(np.float64), want.astype(np.float64))


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Integer division toward zero."""
    return np.array([abs(int(x)) // int(y) * (1 if x >= 0 else -1) for x, y in zip(a, b, strict=True)], a.dtype)


BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "div": lambda a, b: a / b, "div_rn": lambda a, b: a / b, "mul": np.multiply, "fma": lambda a, b: a * b + a,
    "max": np.fmax, "min_nan": np.minimum, "clamp": lambda a, b: np.clip(a, -b, b), "less": np.less,
    "floordiv": quotient, "mod": lambda a, b: a - quotient(a, b) * b,
    "shl": lambda a, b: a << (b & 7), "shr": lambda a, b: a >> (b & 7),
    "umulhi": lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32),
}  # fmt: skip
BINARY_FORMS = [
    (name, dtype)
    for dtype, names in (
        (F32, "div div_rn mul fma max min_nan clamp less"),
        (F64, "div mul fma max min_nan clamp less"),
        (F16, "mul max min_nan"),
        (BF16, "mul"),
        (I32, "floordiv mod mul shl shr less"),
        (I64, "floordiv mod mul shl shr"),
        (I8, "floordiv"),
        (U32, "floordiv mod umulhi"),
        (U64, "mod"),
    )
    for name in names.split()
]


@on_archs("name,dtype", BINARY_FORMS, 19)
def test_binary_operation(arch: str, name: str, dtype: np.dtype):
    rng = np.random.default_rng(0)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        x = rng.integers(limits.min // 2, limits.max // 2, 500).astype(dtype)
        y = rng.integers(1, min(limits.max, 1000), 500).astype(dtype)
        want = BINARY[name](x, y)
    else:
        x, y = normal(500, dtype=dtype), normal(500, dtype=dtype, seed=1)
        y = np.abs(y) + np.ones((), dtype) if name == "clamp" else np.where(y == 0, np.ones((), dtype), y)
        want = BINARY[name](x.astype(np.float64), y.astype(np.float64))
    out = np.zeros(500, np.int8 if name == "less" else dtype)
    after, _ = run("binary", (2,), {"x": x, "y": y, "out": out, "n": 500}, arch=arch, FUNCTION=name, BLOCK=256)
    if dtype.kind in "iu" or name == "less":
        np.testing.assert_array_equal(after["out"], want.astype(out.dtype))
    else:
        tolerance = {F64: 1e-15, F32: 2e-7, F16: 1e-3, BF16: 8e-3}[dtype]
        np.testing.assert_allclose(after["out"].astype(np.float64), want, rtol=tolerance, atol=tolerance)


@on_archs("order", [(order,) for order in Order], 5)
def test_reductions_scans_and_sorts(arch: str, order: Order):
    x = normal(16, 128)
    out = np.zeros(16 * 3 + 2 * 16 * 128, np.float32)
    after, _ = run(
        "reductions", (1,), {"x": x, "out": out}, emulation=Options(order=order), arch=arch, ROWS=16, COLUMNS=128
    )
    largest, where, total, sums, ordered = np.split(after["out"], [16, 32, 48, 48 + 2048])
    np.testing.assert_array_equal(largest, x.max(1))
    np.testing.assert_array_equal(where, x.argmin(1))
    np.testing.assert_allclose(total, x.sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums.reshape(16, 128), x.cumsum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(ordered.reshape(16, 128), np.sort(x, 1))


@on_archs("dtype", [(F32,), (F16,), (I8,)], 4)
def test_transpose(arch: str, dtype: np.dtype):
    x = normal(64, 128, dtype=dtype, scale=30)
    after, _ = run("transpose", (1,), {"x": x, "out": np.zeros((128, 64), dtype)}, arch=arch, ROWS=64, COLUMNS=128)
    np.testing.assert_array_equal(after["out"], x.T)


@sweep("arch", ARCHS, 2)
def test_returning_atomics(arch: str):
    x = np.random.default_rng(0).integers(0, 10, 1000).astype(np.int32)
    arguments = {"x": x, "counts": np.zeros(10, np.int32), "order": np.full(1000, -1, np.int32), "n": 1000}
    after, _ = run("histogram", (4,), arguments, arch=arch, BLOCK=256)
    np.testing.assert_array_equal(after["counts"], np.bincount(x, minlength=10))
    for value in range(10):
        assert sorted(after["order"][x == value]) == list(range(np.count_nonzero(x == value)))


ATOMICS = {"max": np.maximum, "min": np.minimum, "add": np.add, "xor": np.bitwise_xor, "and": np.bitwise_and}
ATOMIC_FORMS = [(name, dtype) for dtype in (I32, I64) for name in ATOMICS]
ATOMIC_FORMS += [(name, dtype) for dtype in (F32, F64) for name in ("max", "min", "add")] + [
    ("add", F16),
    ("add", BF16),
]


@on_archs("name,dtype", ATOMIC_FORMS, 9)
def test_atomic(arch: str, name: str, dtype: np.dtype):
    x = (
        np.random.default_rng(0).integers(-1, 2, 300).astype(dtype)
        if dtype.itemsize == 2
        else normal(300, scale=100).astype(dtype)
    )
    start = np.arange(7).astype(dtype)
    after, _ = run("atomics", (3,), {"x": x, "out": start, "n": 300}, arch=arch, FUNCTION=name, BLOCK=128)
    want = start.copy() if dtype.kind == "i" else start.astype(np.float64)
    for i, value in enumerate(x):
        want[i % 7] = ATOMICS[name](want[i % 7], value.astype(want.dtype))
    np.testing.assert_allclose(after["out"].astype(want.dtype), want, rtol=1e-5, atol=1e-3)


@on_archs("order", [(order,) for order in Order], 3)
def test_spin_lock(arch: str, order: Order):
    """A wavefront that spins must not keep the one that holds the lock from going on."""
    values = np.random.default_rng(0).integers(0, 100, 37).astype(np.int32)
    arguments = {"lock": np.zeros(1, np.int32), "total": np.zeros(1, np.int32), "values": values}
    after, _ = run("locked_sum", (37,), arguments, emulation=Options(order=order), arch=arch)
    assert after["total"][0] == values.sum() and after["lock"][0] == 0


def collatz(value: int) -> int:
    steps = 0
    while value != 1:
        value, steps = (value // 2 if value % 2 == 0 else 3 * value + 1), steps + 1
    return steps


@sweep("arch,batch", [(arch, batch) for batch in (4, 40, 1024) for arch in ("gfx942", "gfx1100")], 2)
def test_loops_of_different_lengths(arch: str, batch: int):
    x = np.random.default_rng(0).integers(1, 1000, 100).astype(np.int32)
    arguments = {"x": x, "out": np.zeros(100, np.int32), "n": 100}
    after, _ = run("collatz", (100,), arguments, emulation=Options(batch_wavefronts=batch), arch=arch)
    assert after["out"].tolist() == [collatz(int(value)) for value in x]


@sweep("arch", ARCHS, 2)
def test_function_calls(arch: str):
    x = normal(60)
    after, _ = run("calls", (60,), {"x": x, "out": np.zeros_like(x), "factor": 1.5}, arch=arch)
    np.testing.assert_allclose(after["out"], (x * 1.5 + 1) * 1.5 + 1, rtol=1e-6, atol=1e-6)


@sweep("arch", ARCHS, 2)
def test_grid_in_three_dimensions(arch: str):
    options = Options(batch_wavefronts=28)
    after, _ = run("grid", (3, 4, 5), {"out": np.zeros((5, 4, 3), np.int32)}, emulation=options, arch=arch)
    z, y, x = np.indices((5, 4, 3))
    np.testing.assert_array_equal(after["out"], x + 100 * y + 10000 * z)
