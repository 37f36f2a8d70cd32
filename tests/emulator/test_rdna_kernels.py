"""Triton kernels of `test_kernels`, compiled for gfx1100 and gfx1201, in strict mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

import test_kernels as kernels
from launching import BF16, compile_kernel, run
from rdna import RDNA
from test_kernels import F16, F32, F64, I8, I32, I64, U32, U64

from aot_runtime.codeobject import read_loaded_image
from aot_runtime.drivers.emulator import ARCHS, Order
from aot_runtime.drivers.emulator.decode import decode
from aot_runtime.drivers.emulator.driver import STRICT_VARIABLE

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

FP8, BF8 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)


@pytest.fixture(params=RDNA, autouse=True)
def arch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(STRICT_VARIABLE, "1")
    monkeypatch.setattr(kernels, "run", partial(run, arch=request.param))
    return request.param


CASES: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
    *((kernels.test_masked_add, (dtype,)) for dtype in (F32, F64, I8)),
    (kernels.test_layernorm, (F16,)),
    *((kernels.test_function, (name, F32)) for name in kernels.UNARY),
    *((kernels.test_function, (name, F64)) for name in ("exp", "log", "sin", "rsqrt", "erf", "pow")),
    *((kernels.test_cast, types) for types in (
        (F32, F16), (F32, BF16), (F16, F32), (BF16, F32), (F32, I32), (I64, F32), (F64, I64), (U32, F64), (F64, F32))),
    *((kernels.test_binary_operation, form) for form in (
        ("div", F32), ("div_rn", F32), ("div", F64), ("max", F32), ("min_nan", F32), ("min_nan", F64), ("clamp", F32),
        ("mul", F16), ("min_nan", F16), ("less", F64), ("mul", BF16), ("mod", I32), ("floordiv", I64), ("shr", I64),
        ("floordiv", I8), ("umulhi", U32), ("mod", U64))),
    *((kernels.test_reductions_scans_and_sorts, (order,)) for order in Order),
    *((kernels.test_transpose, (dtype,)) for dtype in (F32, F16, I8)),
    (kernels.test_returning_atomics, ()),
    *((kernels.test_atomic, form) for form in (
        ("max", I32), ("xor", I64), ("add", F32), ("max", F32), ("add", F64), ("add", F16), ("add", BF16))),
    *((kernels.test_spin_lock, (order,)) for order in Order),
    (kernels.test_loops_of_different_lengths, (40,)),
    (kernels.test_function_calls, ()),
    (kernels.test_grid_in_three_dimensions, ()),
]  # fmt: skip


def named(value: object) -> str:
    if callable(value):
        return value.__name__.removeprefix("test_")
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("test,arguments", CASES, ids=named)
def test_kernel(test: Callable[..., None], arguments: tuple[Any, ...]):
    test(*arguments)


def test_conversions_to_8_bits(arch: str):
    """gfx1201's are those of the OCP, which Triton knows for it alone."""
    if arch == "gfx1201":
        for types in ((F32, FP8), (F32, BF8), (FP8, F32), (BF8, F16)):
            kernels.test_cast(*types)


def test_every_byte_of_the_code_is_decoded(arch: str):
    constants = (("BLOCK_M", 64), ("BLOCK_N", 64), ("BLOCK_K", 32), ("SPLIT_K", 1))
    signature = (("a", "*fp16"), ("b", "*fp16"), ("c", "*fp32"), ("m", "i32"), ("n", "i32"), ("k", "i32"))
    image = read_loaded_image(compile_kernel("matmul", signature, constants, arch=arch).compiled.image)
    (code,) = (segment for segment in image.segments if segment.executable)
    start, size = image.symbols["matmul"]
    start -= code.address
    instructions = decode(code.data, ARCHS[arch])
    pc = start
    while pc < start + size:
        pc = instructions[pc].next_pc
    assert pc == start + size
