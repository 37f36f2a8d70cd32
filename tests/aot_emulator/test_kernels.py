"""Triton kernels compiled for gfx942 and run on the emulator, against numpy in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from aot_emulator import EmulatorDriver, Options, Order
from aot_emulator.driver import STRICT_VARIABLE

from tests.support.emulation.launching import BF8, BF16, FP8, OCP_BF8, OCP_FP8, run

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(params=(False, True), ids=("", "strict"), autouse=True)
def strict(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Each kernel runs as it is, and in strict mode, which must have nothing to say."""
    monkeypatch.setenv(STRICT_VARIABLE, str(int(request.param)))


GFX942 = "gfx942"
F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
I8, I32, I64 = np.dtype(np.int8), np.dtype(np.int32), np.dtype(np.int64)
RDNA = ("gfx1100", "gfx1201")
U32, U64 = np.dtype(np.uint32), np.dtype(np.uint64)


def normal(*shape: int, dtype: Any = F32, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


@pytest.mark.parametrize("dtype", (F32, F16, BF16, F64, I8, I64), ids=str)
def test_masked_add(dtype: np.dtype, arch: str = GFX942):
    x, y = (normal(1000, dtype=dtype, seed=i, scale=10) for i in range(2))
    after, driver = run("add", (4,), {"x": x, "y": y, "out": np.zeros_like(x), "n": 1000}, arch=arch, BLOCK=256)
    np.testing.assert_array_equal(after["out"], x + y)
    assert driver.last.instructions > 16  # four workgroups of four wavefronts


@pytest.mark.parametrize("dtype", (F32, F16), ids=str)
def test_layernorm(dtype: np.dtype, arch: str = GFX942):
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


@pytest.mark.parametrize("instruction", (16, 32))
@pytest.mark.parametrize("dtype", (F16, BF16, F32, I8, FP8, BF8), ids=str)
def test_ragged_matmul(dtype: np.dtype, instruction: int):
    check_matmul(dtype, (100, 70, 90), (64, 64, 32), {"num_warps": 4, "matrix_instr_nonkdim": instruction})


WMMA = {F16: "f32_16x16x16_f16", BF16: "f32_16x16x16_bf16", I8: "i32_16x16x16_iu8"}
WMMA_OF_RDNA4 = {OCP_FP8: "f32_16x16x16_fp8_fp8", OCP_BF8: "f32_16x16x16_bf8_bf8"}


@pytest.mark.parametrize("dtype", (F16, BF16, I8, OCP_FP8, OCP_BF8, F32), ids=str)
@pytest.mark.parametrize("arch", RDNA)
def test_ragged_matmul_of_rdna(arch: str, dtype: np.dtype):
    driver = check_matmul(dtype, (100, 70, 90), (64, 64, 32), {"num_warps": 4}, arch=arch)
    expected = (WMMA | WMMA_OF_RDNA4 if arch == "gfx1201" else WMMA).get(dtype)
    if expected is not None:
        assert driver.last.summary.mnemonics[f"v_wmma_{expected}"] > 0


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("arch", RDNA)
def test_split_k_of_rdna(arch: str, order: Order):
    check_matmul(F16, (64, 64, 256), (32, 32, 32), split=4, emulation=Options(order=order), arch=arch)


@pytest.mark.parametrize("arch", RDNA)
def test_pipelined_and_spilling_matmuls_of_rdna(arch: str):
    check_matmul(BF16, (64, 64, 256), (32, 32, 32), {"num_stages": 3, "num_warps": 8}, arch=arch)
    driver = check_matmul(F64, (30, 32, 32), (32, 32, 32), {"num_warps": 1}, arch=arch)
    spilled = [name for name in driver.last.summary.mnemonics if name.startswith("scratch_")]
    assert spilled, "it spills no more: make its tile larger"


def test_matmul_of_doubles():
    check_matmul(F64, (48, 40, 50), (32, 32, 32))


@pytest.mark.parametrize("order", Order)
def test_split_k_with_float_atomics(order: Order):
    check_matmul(F16, (64, 64, 256), (32, 32, 32), split=4, emulation=Options(order=order))


def test_matmul_with_pipelined_loads():
    check_matmul(F16, (64, 64, 256), (32, 32, 32), {"num_stages": 3, "num_warps": 4, "kpack": 2})


def test_spilling_matmul(arch: str = GFX942):
    """One wavefront for a tile of 128 x 256 does not fit its registers: accumulation registers and scratch."""
    from tests.support.emulation.launching import compile_kernel

    shape, blocks = (128, 256, 64), (128, 256, 32)
    check_matmul(F16, shape, blocks, {"num_warps": 1}, arch=arch)
    signature = (("a", "*fp16"), ("b", "*fp16"), ("c", "*fp32"), ("m", "i32"), ("n", "i32"), ("k", "i32"))
    constants = (("BLOCK_M", 128), ("BLOCK_N", 256), ("BLOCK_K", 32), ("SPLIT_K", 1))
    metadata = compile_kernel("matmul", signature, constants, (("num_warps", 1),), arch=arch).compiled.metadata
    assert metadata.scratch_bytes > 0 and metadata.agprs > 0, "the kernel spills no more: make its tile larger"


UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp, "log": np.log, "exp2": np.exp2, "log2": np.log2, "sin": np.sin, "cos": np.cos, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "erf": np.vectorize(math.erf), "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "floor": np.floor, "ceil": np.ceil, "abs": np.abs,
    "pow": lambda x: np.abs(x) ** x,
}  # fmt: skip


@pytest.mark.parametrize("dtype", (F32, F64), ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_function(name: str, dtype: np.dtype, arch: str = GFX942):
    x = normal(500, dtype=dtype, scale=3)
    x = np.abs(x) if name in ("log", "log2", "sqrt", "rsqrt") else x
    after, _ = run("unary", (2,), {"x": x, "out": np.zeros_like(x), "n": 500}, arch=arch, FUNCTION=name, BLOCK=256)
    tolerance = 3e-6 if dtype == F32 else 2e-14
    np.testing.assert_allclose(after["out"], UNARY[name](x.astype(np.float64)), rtol=tolerance, atol=tolerance / 3)


CASTS = [(F32, F16), (F32, BF16), (F16, F32), (BF16, F32), (F32, FP8), (F32, BF8), (FP8, F16), (BF8, F32), (F16, FP8),
         (F32, I32), (I32, F32), (I64, F32), (F64, F32), (F64, I64), (I64, F64), (U32, F64)]  # fmt: skip


@pytest.mark.parametrize("source,target", CASTS, ids=str)
def test_cast(source: np.dtype, target: np.dtype, arch: str = GFX942):
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


@pytest.mark.parametrize("name,dtype", BINARY_FORMS, ids=str)
def test_binary_operation(name: str, dtype: np.dtype, arch: str = GFX942):
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


@pytest.mark.parametrize("order", Order)
def test_reductions_scans_and_sorts(order: Order, arch: str = GFX942):
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


@pytest.mark.parametrize("dtype", (F32, F16, I8), ids=str)
def test_transpose(dtype: np.dtype, arch: str = GFX942):
    x = normal(64, 128, dtype=dtype, scale=30)
    after, _ = run("transpose", (1,), {"x": x, "out": np.zeros((128, 64), dtype)}, arch=arch, ROWS=64, COLUMNS=128)
    np.testing.assert_array_equal(after["out"], x.T)


def test_returning_atomics(arch: str = GFX942):
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


@pytest.mark.parametrize("name,dtype", ATOMIC_FORMS, ids=str)
def test_atomic(name: str, dtype: np.dtype, arch: str = GFX942):
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


@pytest.mark.parametrize("order", Order)
def test_spin_lock(order: Order, arch: str = GFX942):
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


@pytest.mark.parametrize("batch", (4, 40, 1024))
def test_loops_of_different_lengths(batch: int):
    x = np.random.default_rng(0).integers(1, 1000, 100).astype(np.int32)
    arguments = {"x": x, "out": np.zeros(100, np.int32), "n": 100}
    after, _ = run("collatz", (100,), arguments, emulation=Options(batch_wavefronts=batch))
    assert after["out"].tolist() == [collatz(int(value)) for value in x]


def test_function_calls(arch: str = GFX942):
    x = normal(60)
    after, _ = run("calls", (60,), {"x": x, "out": np.zeros_like(x), "factor": 1.5}, arch=arch)
    np.testing.assert_allclose(after["out"], (x * 1.5 + 1) * 1.5 + 1, rtol=1e-6, atol=1e-6)


def test_grid_in_three_dimensions(arch: str = GFX942):
    options = Options(batch_wavefronts=28)
    after, _ = run("grid", (3, 4, 5), {"out": np.zeros((5, 4, 3), np.int32)}, emulation=options, arch=arch)
    z, y, x = np.indices((5, 4, 3))
    np.testing.assert_array_equal(after["out"], x + 100 * y + 10000 * z)
