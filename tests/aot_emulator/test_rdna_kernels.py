"""Triton kernels of `test_kernels`, compiled for gfx1100 and gfx1201, in strict mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from aot_emulator import ARCHS, Order
from aot_emulator.driver import STRICT_VARIABLE
from aot_emulator.isa.decoding import decode
from aot_emulator.machine.loader import Module
from aot_emulator.state.device_memory import Memory
from aot_emulator.state.float_mode import FloatMode
from aot_emulator.state.wavefronts import Batch

from aot.compile.jobs import CompiledKernel
from aot_runtime.bundle.codeobject import read_loaded_image
from tests.aot_emulator import test_kernels as kernels
from tests.aot_emulator.test_kernels import F16, F32, F64, I8, I32, I64, U32, U64
from tests.support.emulation.launching import BF16, compile_kernel, run
from tests.support.emulation.rdna import RDNA

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


def compiled_matmul(arch: str) -> CompiledKernel:
    constants = (("BLOCK_M", 64), ("BLOCK_N", 64), ("BLOCK_K", 32), ("SPLIT_K", 1))
    signature = (("a", "*fp16"), ("b", "*fp16"), ("c", "*fp32"), ("m", "i32"), ("n", "i32"), ("k", "i32"))
    return compile_kernel("matmul", signature, constants, arch=arch).compiled


def test_every_byte_of_the_code_is_decoded(arch: str):
    image = read_loaded_image(compiled_matmul(arch).image)
    (code,) = (segment for segment in image.segments if segment.executable)
    start, size = image.symbols["matmul"]
    start -= code.address
    instructions = decode(code.data, ARCHS[arch])
    pc = start
    while pc < start + size:
        pc = instructions[pc].next_pc
    assert pc == start + size


def test_the_descriptor(arch: str):
    """As many registers as the metadata says, in granules of 8; the float mode, of which gfx12 has a part; no preload."""
    compiled = compiled_matmul(arch)
    kernel = Module(compiled.image, ARCHS[arch], Memory(1 << 20, 1 << 24)).kernel(compiled.symbol)
    descriptor, metadata = kernel.descriptor, compiled.metadata
    assert metadata.vgprs <= descriptor.vector_registers < metadata.vgprs + 8
    assert kernel.program.layout.accumulation == kernel.program.layout.total == descriptor.vector_registers
    mode = FloatMode.from_register(descriptor.mode)
    assert mode == FloatMode(), "nearest, denormals kept; clamp of NaN to 0"
    assert descriptor.preload == (0, 0) and kernel.entry(preload=True) == 0


def test_where_a_workgroup_finds_its_place(arch: str):
    compiled = compiled_matmul(arch)
    kernel = Module(compiled.image, ARCHS[arch], Memory(1 << 20, 1 << 24)).kernel(compiled.symbol)
    batch = Batch(kernel.program.layout.total, 8, 32)
    workgroups = np.array([[x, 3, 2] for x in (5, 5, 5, 5, 6, 6, 6, 6)])
    kernel.start(batch, workgroups, 128, 1 << 32 | 64, b"", preload=True)
    assert (batch.scalars[0] == 64).all() and (batch.scalars[1] == 1).all()
    assert batch.vectors[0, 5].tolist() == list(range(32, 64)) and (batch.scalars[126] == 0xFFFFFFFF).all()
    if arch == "gfx1201":
        assert batch.scalars[108 + 9].tolist() == workgroups[:, 0].tolist()
        assert (batch.scalars[108 + 7] == (3 | 2 << 16)).all()
        assert batch.scalars[108 + 8].tolist() == [wave << 25 for wave in (0, 1, 2, 3) * 2]
    else:
        first = kernel.descriptor.user_sgprs
        np.testing.assert_array_equal(batch.scalars[first : first + 3], workgroups.T)
