"""AMD GPUs: `HipDriver`, over hip-python.

hip-python 6.3 to 10 is supported. Two things changed in 10: it looks for the library in more places than the dynamic
loader does, and a call that fills a struct returns it, where the caller used to pass it in. (Before 10 it also holds
the interpreter lock in every call, so a thread that waits for the GPU keeps the other Python threads waiting.)
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from aot_runtime.errors import DeviceError

from .base import DeviceProperties
from .gpu import KEEP_EVERYTHING, GpuDriver


class HipDriver(GpuDriver):
    """AMD GPUs.

    Raises:
        DeviceError: hip-python or libamdhip64 is not there. (No GPU is no error: `device_count` is 0.)
    """

    name = "hip"
    prefix = "hip"
    renamed: ClassVar[dict[str, str]] = {
        "CtxSetCurrent": "hipSetDevice",
        "DeviceGetCount": "hipGetDeviceCount",
        "EventCreate": "hipEventCreateWithFlags",
        "GraphInstantiate": "hipGraphInstantiateWithFlags",
        "LaunchKernel": "hipModuleLaunchKernel",
        "MemAlloc": "hipMalloc",
        "MemAllocFromPoolAsync": "hipMallocFromPoolAsync",
        "MemFree": "hipFree",
        "MemFreeAsync": "hipFreeAsync",
        "StreamCreate": "hipStreamCreateWithFlags",
    }
    launch_end = 3

    def __init__(self) -> None:
        binding = _import_binding()
        library = _open_library(binding)
        library.hipGetErrorName.restype = library.hipGetErrorString.restype = ctypes.c_char_p
        self.relaxed_capture = binding.hipStreamCaptureMode.hipStreamCaptureModeRelaxed
        self._images: dict[int, bytes] = {}
        super().__init__(binding, library)

    def properties(self, device: int) -> DeviceProperties:
        """What dispatch and diagnostics need to know of one device."""
        found = self._filled("GetDeviceProperties", self._binding.hipDeviceProp_t, device)
        version = self._call("RuntimeGetVersion")
        return DeviceProperties(
            name=_text(found.name),
            arch=_text(found.gcnArchName).partition(":")[0],
            num_cus=found.multiProcessorCount,
            warp_size=found.warpSize,
            lds_bytes=max(found.sharedMemPerBlock, found.sharedMemPerBlockOptin),
            memory_bytes=found.totalGlobalMem,
            driver_version=f"{version // 10_000_000}.{version // 100_000 % 100}.{version % 100_000}",
        )

    def load_module(self, device: int, image: bytes) -> int:
        """Load a code object. HIP refers to the image for as long as the module lives, so it is kept."""
        module = super().load_module(device, image)
        try:
            self._images[module] = image
        except MemoryError:
            super().unload_module(device, module)
            raise
        return module

    def unload_module(self, device: int, module: int) -> None:
        """Unload a code object; its functions die with it."""
        super().unload_module(device, module)
        self._images.pop(module, None)

    def _filled(self, name: str, struct: Any, argument: int) -> Any:
        if _is_current(self._binding):
            return self._call(name, argument)
        result = struct()
        self._call(name, result, argument)
        return result

    def _describe(self, status: int) -> tuple[str, str]:
        library = self._library
        return library.hipGetErrorName(status).decode(), library.hipGetErrorString(status).decode()

    def _selector(self, device: int) -> Callable[[], int]:
        return partial(self._library.hipSetDevice, device)

    def _pointer(self, address: int) -> tuple[int, int]:
        found = self._filled("PointerGetAttributes", self._binding.hipPointerAttribute_t, address)
        return int(found.type), found.device

    def _has_pools(self, device: int) -> bool:
        attribute = self._binding.hipDeviceAttribute_t.hipDeviceAttributeMemoryPoolsSupported
        return bool(self._call("DeviceGetAttribute", attribute, device))

    def _create_pool(self, device: int) -> int:
        hip = self._binding
        properties = hip.hipMemPoolProps()
        properties.allocType = hip.hipMemAllocationType.hipMemAllocationTypePinned
        location = properties.location  # a view, not a copy
        location.type, location.id = hip.hipMemLocationType.hipMemLocationTypeDevice, device
        pool = self._create(device, "MemPoolCreate", properties)
        threshold = hip.hipMemPoolAttr.hipMemPoolAttrReleaseThreshold
        self._call("MemPoolSetAttribute", pool, threshold, ctypes.c_uint64(KEEP_EVERYTHING))
        return pool

    def _permit_lds(self, function: int, lds_bytes: int) -> None:
        """Nothing to do: HIP lets a workgroup have all the LDS there is."""


def _import_binding() -> Any:
    try:
        from hip import hip
    except ImportError as error:
        raise DeviceError(
            f"AMD GPUs need hip-python, which cannot be imported ({error}): pip install hip-python"
        ) from error
    return hip


def _is_current(binding: Any) -> bool:
    """Whether this is hip-python 10 or later."""
    return binding.__name__.startswith("rocm.")


def _open_library(binding: Any) -> ctypes.PyDLL:
    """The library that hip-python calls: opened by the same name, the loader gives the same one."""
    path = "libamdhip64.so"
    if _is_current(binding):
        from rocm.bindings.util.paths import get_library_path

        path = os.fsdecode(get_library_path("amdhip64"))
    try:
        return ctypes.PyDLL(path)
    except OSError as error:
        raise DeviceError(
            f"AMD GPUs need ROCm's HIP runtime, and {path} cannot be loaded ({error}): install ROCm; where it is, "
            "name its folder, the one that holds lib/libamdhip64.so, in ROCM_PATH, and its lib in LD_LIBRARY_PATH"
        ) from error


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
