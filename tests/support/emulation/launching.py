"""Compile Triton kernels and run them on the emulator, with numpy arrays as arguments."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from aot.compile.compiler import compile_job
from aot.compile.jobs import CompiledKernel, CompileJob
from aot.compile.kernargs import kernarg_bytes, kernarg_layout
from aot_emulator import ARCHS, EmulatorDriver, Options

F16, F32, F64 = np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)
I8, I32, I64, U32 = np.dtype(np.int8), np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint32)
BF16 = np.dtype(ml_dtypes.bfloat16)
FP8, BF8 = np.dtype(ml_dtypes.float8_e4m3fnuz), np.dtype(ml_dtypes.float8_e5m2fnuz)
OCP_FP8, OCP_BF8 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
_OCP = (OCP_FP8, OCP_BF8)
FP8_OF = {"gfx942": (FP8, BF8), "gfx950": _OCP, "gfx90a": (), "gfx1100": (), "gfx1151": (), "gfx1201": _OCP}
"""The 8-bit floats that Triton multiplies on each architecture."""
_TYPES = {F16: "fp16", BF16: "bf16", F32: "fp32", F64: "fp64", FP8: "fp8e4b8", BF8: "fp8e5b16", OCP_FP8: "fp8e4nv",
          OCP_BF8: "fp8e5", **{np.dtype(f"{kind}{n}"): f"{kind}{8 * n}" for kind in "iu" for n in (1, 2, 4, 8)}}  # fmt: skip
_GUARD = 64
"""Elements around each array that nothing may touch."""

Pairs = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel and the types of its arguments."""

    compiled: CompiledKernel
    signature: Pairs
    arch: str


@cache
def compile_kernel(
    function: str, signature: Pairs, constants: Pairs, options: Pairs = (), divisible: tuple[str, ...] = (),
    arch: str = "gfx942",
) -> Kernel:  # fmt: skip
    """Compile a function of kernels/triton_kernels.py."""
    pointers = tuple(name for name, kind in signature if kind.startswith("*"))
    full = signature + tuple((name, "constexpr") for name, _ in constants)
    source, wide = "kernels/triton_kernels.py", pointers if divisible else ()
    whole = tuple((name, 16) for name in divisible)
    job = CompileJob(str(Path(__file__).parent), source, function, full, constants, whole, wide, options, arch)
    return Kernel(compile_job(job), full, arch)


def run(
    function: str, grid: tuple[int, ...], arguments: Mapping[str, Any], options: Mapping[str, Any] | None = None,
    emulation: Options | None = None, divisible: tuple[str, ...] = (), arch: str = "gfx942", **constants: Any,
) -> tuple[dict[str, np.ndarray], EmulatorDriver]:  # fmt: skip
    """Return the arrays after the launch, and the driver that ran it.

    Scalars are i32 or f32. Checks that nothing beside the arrays was written.
    """
    signature = tuple((name, _type(value)) for name, value in arguments.items())
    compiling = tuple(constants.items()), tuple((options or {}).items()), divisible, arch
    return launch(compile_kernel(function, signature, *compiling), grid, arguments, emulation)


def launch(
    kernel: Kernel, grid: tuple[int, ...], arguments: Mapping[str, Any], emulation: Options | None = None,
    driver: EmulatorDriver | None = None,
) -> tuple[dict[str, np.ndarray], EmulatorDriver]:  # fmt: skip
    driver, compiled = driver or EmulatorDriver(_options(emulation)), kernel.compiled
    device, layout, guarded = list(ARCHS).index(kernel.arch), kernarg_layout(kernel.signature), {}
    kernargs = bytearray(kernarg_bytes(layout))
    for field in layout:
        value = arguments.get(field.name)
        if isinstance(value, np.ndarray):
            guard = np.full(_GUARD * value.itemsize, 0xA5, np.uint8)
            whole = np.concatenate([guard, value.ravel().view(np.uint8), guard])
            address = driver.allocate_now(device, whole.nbytes)
            driver.copy_to_device(device, address, whole.ctypes.data, whole.nbytes, 0)
            guarded[field.name] = (address, whole, guard.size)
            struct.pack_into("<Q", kernargs, field.offset, address + guard.size)
        elif value is not None:
            struct.pack_into({"fp32": "<f", "i32": "<i"}[field.type], kernargs, field.offset, value)
    module = driver.load_module(device, compiled.image)
    symbol = driver.get_function(device, module, compiled.symbol, compiled.lds_bytes)
    block = compiled.num_warps * compiled.warp_size
    driver.prepare(device, symbol, (*grid, 1, 1)[:3], block, compiled.lds_bytes, bytes(kernargs)).run(0)
    for address, whole, guard in guarded.values():
        driver.copy_to_host(device, whole.ctypes.data, address, whole.nbytes, 0)
        assert (whole[:guard] == 0xA5).all() and (whole[-guard:] == 0xA5).all(), "written beside an array"
    after = {name: whole[guard:-guard].copy() for name, (_, whole, guard) in guarded.items()}
    return {name: x.view(arguments[name].dtype).reshape(arguments[name].shape) for name, x in after.items()}, driver


def _options(given: Options | None) -> Options:
    by_default = EmulatorDriver().options
    return by_default if given is None else replace(given, strict=given.strict or by_default.strict)


def _type(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return "*" + _TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def normal(*shape: int, dtype: np.dtype = F32, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)
