"""`CudaDriver`: NVIDIA GPUs through cuda-bindings 12.9 or later."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, ClassVar

from aot_runtime.contract.arch import CUDA
from aot_runtime.contract.records import TensorMap
from aot_runtime.errors import DeviceError

from . import DeviceProperties
from .current import Selector
from .gpu import KEEP_EVERYTHING, GpuDriver
from .tensor_maps import encode_tensor_map

_LIBRARY = "libcuda.so.1"
_INVALID_CONTEXT, _INVALID_HANDLE = 201, 400
_EARLY_LAUNCHES_IN_GRAPHS = 12_030
_ALL_OF_IT_SHARED = 100
"""Preferred shared memory carveout, in per cent of the memory that an SM divides between L1 and shared memory."""


class CudaDriver(GpuDriver):
    """NVIDIA GPUs, in each device's primary context, which shares pointers and streams with other libraries.

    Raises:
        DeviceError: cuda-bindings or libcuda is missing. (Without a GPU, `device_count` is 0.)
    """

    name = CUDA.name
    dlpack_device = CUDA.dlpack_device
    prefix = "cu"
    renamed: ClassVar[dict[str, str]] = {"PointerGetAttributes": "cuPointerGetAttribute"}
    symbols: ClassVar[dict[str, str]] = {
        "cuEventDestroy": "cuEventDestroy_v2",
        "cuGraphInstantiate": "cuGraphInstantiateWithFlags",
        "cuMemAlloc": "cuMemAlloc_v2",
        "cuMemFree": "cuMemFree_v2",
        "cuStreamDestroy": "cuStreamDestroy_v2",
    }
    launch_end = 0
    first_is_current = False
    lost_device = frozenset({_INVALID_CONTEXT, _INVALID_HANDLE})

    def __init__(self) -> None:
        binding = _import_binding()
        self.relaxed_capture = binding.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        library = _open_library()
        if hasattr(library, "cuLaunchKernelEx"):  # since CUDA 11.8
            self.launch_call = "LaunchKernelEx"
        super().__init__(binding, library)
        self._version = int(self._call("DriverGetVersion"))
        self.launches_early = self.launch_call == "LaunchKernelEx" and self._version >= _EARLY_LAUNCHES_IN_GRAPHS

    def properties(self, device: int) -> DeviceProperties:
        """Return the properties of a device."""
        attribute = partial(self._attribute, device)
        version = self._version
        return DeviceProperties(
            name=self._call("DeviceGetName", 256, device).partition(b"\0")[0].decode(),
            arch=f"sm_{attribute('COMPUTE_CAPABILITY_MAJOR')}{attribute('COMPUTE_CAPABILITY_MINOR')}",
            num_cus=attribute("MULTIPROCESSOR_COUNT"),
            warp_size=attribute("WARP_SIZE"),
            lds_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            memory_bytes=int(self._call("DeviceTotalMem", device)),
            driver_version=f"{version // 1000}.{version % 1000 // 10}",
            pci=f"{attribute('PCI_DOMAIN_ID'):04x}:{attribute('PCI_BUS_ID'):02x}:{attribute('PCI_DEVICE_ID'):02x}.0",
        )

    def _count_devices(self) -> int:
        # cuInit fails where there is no GPU, so it belongs to the counting.
        self._call("Init", 0)
        return super()._count_devices()

    def _attribute(self, device: int, name: str) -> int:
        attribute = getattr(self._binding.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("DeviceGetAttribute", attribute, device))

    def _describe(self, status: int) -> tuple[str, str]:
        return self._status_text("cuGetErrorName", status), self._status_text("cuGetErrorString", status)

    def _status_text(self, function: str, status: int) -> str:
        text = ctypes.c_char_p()
        getattr(self._library, function)(status, ctypes.byref(text))
        return text.value.decode() if text.value else "unknown status"

    def _selector(self, device: int) -> Selector:
        library, context = self._library, self._call("DevicePrimaryCtxRetain", self._call("DeviceGet", device))
        wanted, is_only = ctypes.c_void_p(int(context)), self._count == 1
        return Selector(ctypes.c_void_p, library.cuCtxGetCurrent, library.cuCtxSetCurrent, wanted, is_only)

    def _pointer(self, address: int) -> tuple[int, int]:
        attributes = self._binding.CUpointer_attribute
        kind = self._call("PointerGetAttributes", attributes.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
        device = self._call("PointerGetAttributes", attributes.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)
        return int(kind), int(device)

    def _has_pools(self, device: int) -> bool:
        return bool(self._attribute(device, "MEMORY_POOLS_SUPPORTED"))

    def _create_pool(self, device: int) -> int:
        cuda = self._binding
        location = cuda.CUmemLocation()
        location.type, location.id = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, device
        properties = cuda.CUmemPoolProps()
        properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location = location
        pool = self._create(device, "MemPoolCreate", properties)
        threshold = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self._call("MemPoolSetAttribute", pool, threshold, cuda.cuuint64_t(KEEP_EVERYTHING))
        return pool

    def tensor_map(
        self, device: int, tensor_map: TensorMap, shape: tuple[int, ...], strides: tuple[int, ...], address: int
    ) -> bytes:
        """Encode a tensor map; see `Driver.tensor_map`."""

        def check(status: int) -> None:
            if status:
                raise self._error("TensorMapEncodeTiled", status)

        with self._current(device):
            return encode_tensor_map(self._library, self._version, check, tensor_map, shape, strides, address)

    def _permit_lds(self, function: int, lds_bytes: int) -> None:
        """Permit more than 48 KiB of dynamic shared memory, for which a function has to opt in."""
        attributes = self._binding.CUfunction_attribute
        limit = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        if lds_bytes > self._call("FuncGetAttribute", limit, function):
            self._call("FuncSetAttribute", function, limit, lds_bytes)
            carveout = attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            self._call("FuncSetAttribute", function, carveout, _ALL_OF_IT_SHARED)


def _import_binding() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceError(
            f"NVIDIA GPUs need cuda-bindings, which cannot be imported ({error}): pip install 'aot-runtime[cuda]'"
        ) from error
    return driver


def _open_library() -> ctypes.PyDLL:
    try:
        return ctypes.PyDLL(_LIBRARY)
    except OSError as error:
        raise DeviceError(
            f"NVIDIA GPUs need the NVIDIA driver, and its {_LIBRARY} cannot be loaded ({error}): install the driver, "
            "or run the container with access to the GPU"
        ) from error
