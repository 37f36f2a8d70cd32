"""The two GPU APIs in C and C++ programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aot_runtime.contract.arch import CUDA, HIP


@dataclass(frozen=True)
class Api:
    """Names of an API for launches, and for building programs with it.

    Attributes:
        macro: prefix of the constants in a launch's extra arguments.
        launch: the function that launches a kernel.
        cmake_package, cmake_target: the CMake package of the driver, and its target.
        library: the driver's library.
        use: the calls with which a program loads a kernel.
    """

    name: str
    macro: str
    status: str
    success: str
    function: str
    stream: str
    launch: str
    cmake_package: str
    cmake_target: str
    library: str
    use: str


_HIP_USE = """\
Include <hip/hip_runtime_api.h> before this header to get the launchers. Load a kernel's `code_object` with
hipModuleLoad and get its `symbol` with hipModuleGetFunction, once."""
_CUDA_USE = """\
Include <cuda.h> before this header to get the launchers. Load a kernel's `code_object` with cuModuleLoad and get its
`symbol` with cuModuleGetFunction, once; one with over 48 KiB of LDS (shared memory) needs cuFuncSetAttribute with
CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""

APIS: Mapping[str, Api] = {
    api.name: api
    for api in (
        Api(
            HIP.name, "HIP_LAUNCH_PARAM", "hipError_t", "hipSuccess", "hipFunction_t", "hipStream_t",
            "hipModuleLaunchKernel", "hip", "hip::host", "libamdhip64", _HIP_USE,
        ),
        Api(
            CUDA.name, "CU_LAUNCH_PARAM", "CUresult", "CUDA_SUCCESS", "CUfunction", "CUstream",
            "cuLaunchKernel", "CUDAToolkit", "CUDA::cuda_driver", "libcuda", _CUDA_USE,
        ),
    )
}  # fmt: skip
"""APIs by name of the backend."""
