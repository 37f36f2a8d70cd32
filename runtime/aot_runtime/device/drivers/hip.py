"""`HipDriver`: AMD GPUs through hip-python."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from aot_runtime.contract.arch import ARCHITECTURES, HIP, likely_num_xcds
from aot_runtime.errors import DeviceError, DriverCallError

from . import DeviceProperties, Outcome
from .gpu import KEEP_EVERYTHING, GpuDriver
from .hip_python import bind, import_binding, returns_structs

if TYPE_CHECKING:
    from .current import Selector


class HipDriver(GpuDriver):
    """AMD GPUs.

    Raises:
        DeviceError: hip-python or libamdhip64 is missing. (Without a GPU, `device_count` is 0.)
    """

    name = prefix = HIP.name
    dlpack_device = HIP.dlpack_device
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
        "MemFreeHost": "hipHostFree",
        "MemHostAlloc": "hipHostMalloc",
        "StreamCreate": "hipStreamCreateWithFlags",
        # Most calls of HIP 7.2 may crash for a destroyed stream. This one looks for it among existing streams.
        "StreamIsCapturing": "hipStreamGetCaptureInfo_v2",
    }
    unasked_of_capture = (None,) * 4
    launch_end = 3
    first_is_current = True

    def __init__(self) -> None:
        binding = import_binding()
        self._opened = bind(binding)
        library = self._opened.handle
        library.hipGetErrorName.restype = library.hipGetErrorString.restype = ctypes.c_char_p
        self.relaxed_capture = binding.hipStreamCaptureMode.hipStreamCaptureModeRelaxed
        self._images: dict[int, bytes] = {}
        super().__init__(binding, library)

    def properties(self, device: int) -> DeviceProperties:
        """Return the properties of a device."""
        found = self._filled("GetDeviceProperties", self._binding.hipDeviceProp_t, device)
        version = self._call("RuntimeGetVersion")
        arch = _text(found.gcnArchName).partition(":")[0]
        num_cus = found.multiProcessorCount * _units_of_a_processor(arch)
        return DeviceProperties(
            name=_text(found.name),
            arch=arch,
            num_cus=num_cus,
            warp_size=found.warpSize,
            lds_bytes=max(found.sharedMemPerBlock, found.sharedMemPerBlockOptin),
            memory_bytes=found.totalGlobalMem,
            driver_version=f"{version // 10_000_000}.{version // 100_000 % 100}.{version % 100_000}",
            num_xcds=self._attribute("NumberOfXccs", device) or likely_num_xcds(arch, num_cus),
            library=str(self._opened),
            clock=1e3 * found.clockRate,
            memory_clock=1e3 * found.memoryClockRate,
            pci=f"{found.pciDomainID:04x}:{found.pciBusID:02x}:{found.pciDeviceID:02x}.0",
        )

    def _attribute(self, name: str, device: int) -> int:
        """Return an attribute of a device; 0 if the binding or the library is too old to have it."""
        attribute = getattr(self._binding.hipDeviceAttribute_t, f"hipDeviceAttribute{name}", None)
        if attribute is None:
            return 0
        try:
            return int(self._call("DeviceGetAttribute", attribute, device))
        except DeviceError:
            return 0

    def load_module(self, device: int, image: bytes, made: Outcome = None) -> int:
        """Load a code object. The image is kept, as HIP refers to it until the module is unloaded."""
        module = super().load_module(device, image, made)
        try:
            self._images[module] = image
        except MemoryError:
            if made is None:  # else the caller knows of it
                super().unload_module(device, module)
            raise
        return module

    def unload_module(self, device: int, module: int, gone: Outcome = None) -> None:
        """Unload a code object. Its functions become invalid."""
        super().unload_module(device, module, gone)
        self._images.pop(module, None)

    def _check_stream(self, device: int, stream: int) -> None:
        self.is_capturing(device, stream)

    def end_capture(self, device: int, stream: int, made: Outcome = None) -> int:
        """End the capture of a stream, which can be used again also if the capture failed."""
        try:
            return super().end_capture(device, stream, made)
        except DriverCallError:
            with suppress(DriverCallError):
                if self.is_capturing(device, stream):  # HIP 6.4 and 7.2 refuse work until another capture begins
                    self.begin_capture(device, stream)
                    self.destroy_graph(device, super().end_capture(device, stream))
            raise

    def _filled(self, name: str, struct: Any, argument: int) -> Any:
        if returns_structs(self._binding):
            return self._call(name, argument)
        result = struct()
        self._call(name, result, argument)
        return result

    def _describe(self, status: int) -> tuple[str, str]:
        library = self._library
        return library.hipGetErrorName(status).decode(), library.hipGetErrorString(status).decode()

    def _selector(self, device: int) -> Selector:
        from .current import Selector

        library = self._library
        return Selector(ctypes.c_int, library.hipGetDevice, library.hipSetDevice, ctypes.c_int(device))

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
        """Do nothing: HIP grants a workgroup all LDS without opt-in."""


def _units_of_a_processor(arch: str) -> int:
    """Return the compute units per multiprocessor, as HIP counts these.

    An RDNA multiprocessor is a work-group processor of two compute units, unless HIP's environment variable
    GPU_ENABLE_WGP_MODE is 0. HIP's count of "physical" multiprocessors is halved as well.
    """
    row = ARCHITECTURES.get(arch)
    return 1 if row is None or os.environ.get("GPU_ENABLE_WGP_MODE") == "0" else row.unit.compute_units


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
