"""Compiles Triton kernels and runs them on the emulator, with numpy arrays as arguments."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from aot_emulator import ARCHS, EmulatorDriver, Options

from aot.compile.compiler import compile_job
from aot.compile.jobs import CompiledKernel, CompileJob
from aot.compile.kernargs import kernarg_bytes, kernarg_layout

ROOT = Path(__file__).parent
SOURCE = "kernels/triton_kernels.py"
_TYPES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "bool": "i1",
    "float8_e4m3fnuz": "fp8e4b8",
    "float8_e5m2fnuz": "fp8e5b16",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
    **{f"{sign}int{bits}": f"{sign[:1] or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_FORMATS = {"fp32": "f", "fp64": "d", "i32": "i", "u32": "I", "i64": "q"}
GUARD = 64
"""Elements around each array that nothing may touch."""


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel and the types of its arguments."""

    compiled: CompiledKernel
    signature: tuple[tuple[str, str], ...]
    arch: str


@cache
def compile_kernel(
    function: str,
    signature: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, Any], ...],
    options: tuple[tuple[str, Any], ...] = (),
    divisible: tuple[str, ...] = (),
    arch: str = "gfx942",
) -> Kernel:
    pointers = tuple(name for name, kind in signature if kind.startswith("*"))
    full = signature + tuple((name, "constexpr") for name, _ in constants)
    job = CompileJob(
        str(ROOT), SOURCE, function, full, constants, divisible, pointers if divisible else (), options, arch
    )
    return Kernel(compile_job(job), full, arch)


def run(
    function: str,
    grid: tuple[int, ...],
    arguments: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    emulation: Options | None = None,
    divisible: tuple[str, ...] = (),
    arch: str = "gfx942",
    **constants: Any,
) -> tuple[dict[str, np.ndarray], EmulatorDriver]:
    """The arrays after the launch, and the driver that ran it. Scalars are i32, f32 or numpy scalars.

    Checks that nothing beside the arrays was written.
    """
    signature = tuple((name, _type(value)) for name, value in arguments.items())
    kernel = compile_kernel(
        function, signature, tuple(constants.items()), tuple((options or {}).items()), divisible, arch
    )
    return launch(kernel, grid, arguments, emulation)


def launch(
    kernel: Kernel,
    grid: tuple[int, ...],
    arguments: Mapping[str, Any],
    emulation: Options | None = None,
    driver: EmulatorDriver | None = None,
) -> tuple[dict[str, np.ndarray], EmulatorDriver]:
    driver, compiled = driver or EmulatorDriver(_options(emulation)), kernel.compiled
    device = list(ARCHS).index(kernel.arch)
    layout = kernarg_layout(kernel.signature)
    kernargs = bytearray(kernarg_bytes(layout))
    guarded = {}
    for field in layout:
        value = arguments.get(field.name)
        if isinstance(value, np.ndarray):
            guard = GUARD * value.itemsize
            whole = np.concatenate(
                [np.full(guard, 0xA5, np.uint8), value.ravel().view(np.uint8), np.full(guard, 0xA5, np.uint8)]
            )
            address = driver.allocate_now(device, whole.nbytes)
            driver.copy_to_device(device, address, whole.ctypes.data, whole.nbytes, 0)
            guarded[field.name] = (address, whole, guard)
            struct.pack_into("<Q", kernargs, field.offset, address + guard)
        elif value is not None:
            struct.pack_into(f"<{_FORMATS[field.type]}", kernargs, field.offset, value)
    module = driver.load_module(device, compiled.image)
    symbol = driver.get_function(device, module, compiled.symbol, compiled.lds_bytes)
    shape = (*grid, 1, 1)[:3]
    block = compiled.num_warps * compiled.warp_size
    driver.prepare(device, symbol, shape, block, compiled.lds_bytes, bytes(kernargs)).run(0)
    return {name: _back(driver, device, arguments[name], *place) for name, place in guarded.items()}, driver


def _options(given: Options | None) -> Options:
    """The options, strict too if the environment asks for that."""
    by_default = EmulatorDriver().options
    return by_default if given is None else replace(given, strict=given.strict or by_default.strict)


def _type(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "*" + _TYPES[value.dtype.name]
    if isinstance(value, np.generic):
        return _TYPES[value.dtype.name]
    return "fp32" if isinstance(value, float) else "i32"


def _back(
    driver: EmulatorDriver, device: int, like: np.ndarray, address: int, whole: np.ndarray, guard: int
) -> np.ndarray:
    driver.copy_to_host(device, whole.ctypes.data, address, whole.nbytes, 0)
    assert (whole[:guard] == 0xA5).all() and (whole[len(whole) - guard :] == 0xA5).all(), "written beside an array"
    return whole[guard : len(whole) - guard].copy().view(like.dtype).reshape(like.shape)


F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
I8, I32, I64 = np.dtype(np.int8), np.dtype(np.int32), np.dtype(np.int64)
U32, U64 = np.dtype(np.uint32), np.dtype(np.uint64)
BF16 = np.dtype(ml_dtypes.bfloat16)
FP8 = np.dtype(ml_dtypes.float8_e4m3fnuz)
BF8 = np.dtype(ml_dtypes.float8_e5m2fnuz)
OCP_FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
OCP_BF8 = np.dtype(ml_dtypes.float8_e5m2)
FP8_OF = {
    "gfx942": (FP8, BF8),
    "gfx950": (OCP_FP8, OCP_BF8),
    "gfx90a": (),
    "gfx1100": (),
    "gfx1201": (OCP_FP8, OCP_BF8),
}
"""The 8-bit floats that Triton multiplies on each architecture."""


def normal(*shape: int, dtype: np.dtype = F32, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)
