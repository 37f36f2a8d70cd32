"""Facts about libamdhip64, mainly about wrong calls, which hold for AMD's library and its double.

A fact makes calls and lists the expected results: the status, by its name without "hipError", and written values. If
HIP 6.4.3 and 7.2.4 differ, it has both; the double behaves like 7.2.4. The double refuses some mistakes that AMD's
library accepts, so that tests detect them; facts list these too. Calls that crash AMD's library, such as using a handle
that never was a stream, are left out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .hip_kernels import scale_code

_NOWHERE = 0x123456789000
"""An address at which nothing is, and a handle that nothing has."""
_NOTHING = None, None, None, None
"""Answers of hipStreamGetCaptureInfo_v2 that are not asked for."""
_GLOBAL, _THREAD_LOCAL, _RELAXED = range(3)


class Cell(ctypes.c_uint64):
    """A place that a call writes a handle, an address or a number to."""


class Hip:
    """A libamdhip64 whose answers are compared with what is expected."""

    def __init__(self, library: ctypes.CDLL):
        self._library = library
        library.hipGetErrorName.restype = library.hipGetErrorString.restype = ctypes.c_char_p
        self.called: set[str] = set()
        self.differences: list[str] = []
        version = Cell()
        library.hipRuntimeGetVersion(ctypes.byref(version))
        self._is_old = version.value < 70_000_000
        self._is_double = hasattr(library, "hip_double_calls")

    def call(self, name: str, *arguments: object) -> str:
        """Make a call; return its status."""
        self.called.add(name)
        given = (ctypes.byref(x) if isinstance(x, ctypes._SimpleCData | ctypes.Array) else _as_c(x) for x in arguments)
        return self.name_of(getattr(self._library, name)(*given))

    def gives(self, status: str, name: str, *arguments: object, old: str = "", double: str = "") -> None:
        """Assert the status of a call. old: that of 6.4.3, double: that of the double, where these are others."""
        shown = ", ".join(hex(x) if isinstance(x, int) else type(x).__name__ for x in arguments)
        self.same(f"{name}({shown})", self.call(name, *arguments), status, old, double)

    def same(self, what: str, found: object, expected: object, old: object = "", double: object = "") -> None:
        """Assert that a value is as expected."""
        if self._is_double:
            expected = expected if double == "" else double
        elif self._is_old:
            expected = expected if old == "" else old
        if found != expected:
            self.differences.append(f"{what} is {found}, not {expected}")

    def makes(self, name: str, *arguments: object) -> int:
        """Return what a call that succeeds writes to its first argument."""
        made = Cell()
        self.gives("Success", name, made, *arguments)
        return made.value

    def name_of(self, status: int) -> str:
        return self._library.hipGetErrorName(status).decode().removeprefix("hipError").removeprefix("hip")

    def text_of(self, status: int) -> str:
        return self._library.hipGetErrorString(status).decode()

    def memory(self, nbytes: int = 4096) -> int:
        return self.makes("hipMalloc", nbytes)

    def stream(self, flags: int = 0) -> int:
        return self.makes("hipStreamCreateWithFlags", flags)

    def event(self, flags: int = 0) -> int:
        return self.makes("hipEventCreateWithFlags", flags)


def _as_c(value: object) -> object:
    return ctypes.c_uint64(value) if isinstance(value, int) else value


def versions(hip: Hip) -> None:
    version = Cell()
    hip.gives("Success", "hipRuntimeGetVersion", version)
    hip.same("version", version.value // 100_000, 702, old=604)
    hip.gives("InvalidValue", "hipRuntimeGetVersion", None)


STATUSES = {
    0: ("Success", "no error"),
    1: ("InvalidValue", "invalid argument"),
    2: ("OutOfMemory", "out of memory"),
    9: ("InvalidConfiguration", "invalid configuration argument"),
    21: ("InvalidMemcpyDirection", "invalid copy direction for memcpy"),
    100: ("NoDevice", "no ROCm-capable device is detected"),
    101: ("InvalidDevice", "invalid device ordinal"),
    200: ("InvalidImage", "device kernel image is invalid"),
    209: ("NoBinaryForGpu", "no kernel image is available for execution on the device"),
    400: ("InvalidHandle", "invalid resource handle"),
    401: ("IllegalState", "the operation cannot be performed in the present state"),
    500: ("NotFound", "named symbol not found"),
    600: ("NotReady", "device not ready"),
    700: ("IllegalAddress", "an illegal memory access was encountered"),
    709: ("ContextIsDestroyed", "context is destroyed"),
    719: ("LaunchFailure", "unspecified launch failure"),
    801: ("NotSupported", "operation not supported"),
    900: ("StreamCaptureUnsupported", "operation not permitted when stream is capturing"),
    901: ("StreamCaptureInvalidated", "operation failed due to a previous error during capture"),
    905: ("StreamCaptureIsolation", "dependency created on uncaptured work in another stream"),
    906: ("StreamCaptureImplicit", "operation would make the legacy stream depend on a capturing blocking stream"),
    907: ("CapturedEvent", "operation not permitted on an event last recorded in a capturing stream"),
    999: ("Unknown", "unknown error"),
}


def statuses(hip: Hip) -> None:
    for status, expected in STATUSES.items():
        hip.same(f"status {status}", (hip.name_of(status), hip.text_of(status)), expected)
    hip.same("status 12345", hip.name_of(12345), "Unknown")


def devices(hip: Hip) -> None:
    count, device = Cell(), Cell()
    hip.gives("Success", "hipGetDeviceCount", count)
    hip.same("count", count.value, 2)
    hip.gives("InvalidValue", "hipGetDeviceCount", None)
    hip.gives("InvalidValue", "hipGetDevice", None)
    for wrong in (2, 0xFFFFFFFF):
        hip.gives("InvalidDevice", "hipSetDevice", wrong)
    hip.gives("Success", "hipSetDevice", 1)
    hip.gives("Success", "hipGetDevice", device)
    hip.same("device", device.value, 1)
    hip.gives("Success", "hipSetDevice", 0)
    with ThreadPoolExecutor(1) as other:
        other.submit(hip.gives, "Success", "hipGetDevice", device).result()
    hip.same("a new thread's device", device.value, 0)


def the_last_error(hip: Hip) -> None:
    """The last error is that of any call of the thread and is told once. In 6.4.3 a call that succeeds clears it."""
    value = Cell()
    hip.call("hipGetLastError")
    hip.gives("Success", "hipGetLastError")
    hip.gives("InvalidDevice", "hipSetDevice", 7)
    hip.gives("Success", "hipGetDevice", value)
    hip.gives("InvalidDevice", "hipGetLastError", old="Success")
    hip.gives("Success", "hipGetLastError")
    hip.gives("InvalidValue", "hipMalloc", None, 16)
    hip.gives("InvalidValue", "hipGetLastError")
    hip.gives("InvalidValue", "hipMalloc", None, 16)
    with ThreadPoolExecutor(1) as other:
        other.submit(hip.gives, "Success", "hipGetLastError").result()
    hip.call("hipGetLastError")


def properties(hip: Hip) -> None:
    value, room = Cell(), (ctypes.c_char * 8192)()
    hip.gives("InvalidDevice", "hipGetDevicePropertiesR0600", room, 2)
    hip.gives("InvalidValue", "hipGetDevicePropertiesR0600", None, 0)
    hip.gives("InvalidDevice", "hipDeviceGetAttribute", value, 88, 2)
    hip.gives("InvalidValue", "hipDeviceGetAttribute", value, 9999, 0)
    hip.gives("InvalidValue", "hipDeviceGetAttribute", None, 88, 0)
    hip.gives("Success", "hipDeviceGetAttribute", value, 88, 0)
    hip.same("pools", value.value, 1)


def memory(hip: Hip) -> None:
    address = Cell(5)
    hip.gives("InvalidValue", "hipMalloc", None, 16)
    hip.gives("Success", "hipMalloc", address, 0)
    hip.same("address of no bytes", address.value, 0)
    hip.gives("OutOfMemory", "hipMalloc", address, 1 << 50)
    hip.gives("Success", "hipFree", 0)
    taken = hip.memory()
    hip.gives("Success", "hipFree", taken)
    hip.gives("InvalidValue", "hipFree", taken)
    hip.gives("InvalidValue", "hipFree", _NOWHERE)
    hip.gives("Success", "hipMemGetInfo", None, None)


def memory_of_the_host(hip: Hip) -> None:
    address = Cell(5)
    hip.gives("InvalidValue", "hipHostMalloc", None, 16, 0)
    hip.gives("Success", "hipHostMalloc", address, 0, 0)
    hip.same("address of no bytes", address.value, 0)
    hip.gives("Success", "hipHostFree", 0)
    hip.gives("InvalidValue", "hipHostFree", _NOWHERE)
    taken = hip.makes("hipHostMalloc", 4096, 0)
    hip.gives("Success", "hipHostFree", taken)
    hip.gives("InvalidValue", "hipHostFree", taken)


def memory_freed_wrongly(hip: Hip) -> None:
    """HIP frees the allocation that contains an address, by the call for device or for host memory. The double requires
    the exact address and the right call."""
    for name, address in (
        ("hipFree", hip.memory() + 256),
        ("hipHostFree", hip.makes("hipHostMalloc", 4096, 0) + 64),
        ("hipFree", hip.makes("hipHostMalloc", 4096, 0)),
        ("hipHostFree", hip.memory()),
    ):
        hip.gives("Success", name, address, double="InvalidValue")


class _PoolProperties(ctypes.Structure):
    _fields_ = [
        ("allocType", ctypes.c_int), ("handleTypes", ctypes.c_int), ("locationType", ctypes.c_int),
        ("locationId", ctypes.c_int), ("security", ctypes.c_void_p), ("maxSize", ctypes.c_size_t),
        ("reserved", ctypes.c_ubyte * 56),
    ]  # fmt: skip


def _pool(hip: Hip, device: int = 0) -> int:
    return hip.makes("hipMemPoolCreate", ctypes.byref(_PoolProperties(1, 0, 1, device)))


def making_pools(hip: Hip) -> None:
    pool = Cell()
    hip.gives("InvalidValue", "hipMemPoolCreate", None, ctypes.byref(_PoolProperties(1, 0, 1, 0)))
    hip.gives("InvalidValue", "hipMemPoolCreate", pool, None)
    for wrong in ((0, 0, 1, 0), (1, 0, 0, 0), (1, 0, 1, 2), (1, 0, 1, -1)):
        hip.gives("InvalidValue", "hipMemPoolCreate", pool, ctypes.byref(_PoolProperties(*wrong)))
    hip.gives("InvalidValue", "hipMemPoolDestroy", 0)


def attributes_of_pools(hip: Hip) -> None:
    pool, value = _pool(hip), Cell(1 << 20)
    hip.gives("InvalidValue", "hipMemPoolSetAttribute", 0, 4, value)
    hip.gives("InvalidValue", "hipMemPoolSetAttribute", pool, 4, None)
    hip.gives("InvalidValue", "hipMemPoolSetAttribute", pool, 99, value)
    hip.gives("Success", "hipMemPoolSetAttribute", pool, 4, value)
    hip.gives("InvalidValue", "hipMemPoolGetAttribute", 0, 7, value)
    hip.gives("InvalidValue", "hipMemPoolGetAttribute", pool, 7, None)
    hip.gives("InvalidValue", "hipMemPoolGetAttribute", pool, 99, value)
    hip.gives("InvalidValue", "hipMemPoolTrimTo", 0, 0)
    hip.gives("Success", "hipMemPoolTrimTo", pool, 0)
    hip.gives("Success", "hipMemPoolDestroy", pool)


def memory_of_a_pool_in_a_capture(hip: Hip) -> None:
    """It is of the graph in AMD's library, as in CUDA; the double does not model that."""
    pool, stream, made, graph = _pool(hip), hip.stream(1), Cell(), Cell()
    hip.gives("Success", "hipStreamBeginCapture", stream, _RELAXED)
    hip.gives("Success", "hipMallocFromPoolAsync", made, 4096, pool, stream, double="StreamCaptureUnsupported")
    hip.gives("Success", "hipFreeAsync", made.value, stream, double="InvalidValue")
    hip.gives("Success", "hipStreamEndCapture", stream, graph, double="StreamCaptureInvalidated")
    hip.gives("Success", "hipStreamDestroy", stream)


def memory_of_pools(hip: Hip) -> None:
    pool, address, keep = _pool(hip), Cell(5), Cell(2**64 - 1)
    hip.gives("Success", "hipMemPoolSetAttribute", pool, 4, keep)
    hip.gives("InvalidValue", "hipMallocFromPoolAsync", None, 16, pool, 0)
    hip.gives("InvalidValue", "hipMallocFromPoolAsync", address, 16, 0, 0)
    hip.gives("Success", "hipMallocFromPoolAsync", address, 0, pool, 0)
    hip.same("address of no bytes", address.value, 0)
    hip.gives("OutOfMemory", "hipMallocFromPoolAsync", address, 1 << 50, pool, 0)
    hip.gives("InvalidValue", "hipFreeAsync", _NOWHERE, 0)
    taken, used = hip.makes("hipMallocFromPoolAsync", 1 << 20, pool, 0), Cell()
    hip.gives("Success", "hipMemPoolGetAttribute", pool, 7, used)
    hip.same("used", used.value, 1 << 20)
    hip.gives("Success", "hipFreeAsync", taken, 0)
    hip.gives("Success", "hipStreamSynchronize", 0)
    hip.gives("Success", "hipMemPoolGetAttribute", pool, 7, used)
    hip.same("used", used.value, 0)
    hip.gives("Success", "hipMemPoolGetAttribute", pool, 5, used)
    hip.same("the pool keeps it", used.value >= 1 << 20, True)
    hip.gives("Success", "hipMemPoolTrimTo", pool, 0)
    hip.gives("Success", "hipMemPoolGetAttribute", pool, 5, used)
    hip.same("reserved after a trim", used.value, 0)
    hip.gives("Success", "hipMemPoolDestroy", pool)


def pools_and_other_memory(hip: Hip) -> None:
    pool, plain = _pool(hip), hip.memory()
    taken = hip.makes("hipMallocFromPoolAsync", 4096, pool, 0)
    hip.gives("Success", "hipFree", taken)
    hip.gives("Success", "hipFreeAsync", plain, 0, double="InvalidValue")
    hip.gives("Success", "hipStreamSynchronize", 0)
    hip.gives("InvalidValue", "hipFree", plain, double="Success")
    hip.gives("Success", "hipMemPoolDestroy", pool)


def a_pool_of_another_device(hip: Hip) -> None:
    pool, address = _pool(hip, 1), Cell()
    hip.gives("Success", "hipMallocFromPoolAsync", address, 4096, pool, 0, double="InvalidValue")


def copies(hip: Hip) -> None:
    device, host = hip.memory(256), (ctypes.c_char * 8192)()
    at = ctypes.addressof(host)
    for name, to, source in (("hipMemcpyHtoDAsync", device, at), ("hipMemcpyDtoHAsync", at, device)):
        hip.gives("Success", name, to, source, 256, 0)
        hip.gives("Success", name, to, source, 0, 0)
        hip.gives("InvalidValue", name, 0, source, 16, 0)
        hip.gives("InvalidValue", name, to, 0, 16, 0)
        hip.gives("InvalidValue", name, to, source, 8192, 0)
    hip.gives("Success", "hipMemsetD8Async", device, 1, 256, 0)
    hip.gives("Success", "hipMemsetD8Async", device, 1, 0, 0)
    hip.gives("InvalidValue", "hipMemsetD8Async", 0, 1, 16, 0)
    hip.gives("InvalidValue", "hipMemsetD8Async", device, 1, 8192, 0)
    hip.gives("Success", "hipStreamSynchronize", 0)
    hip.gives("Success", "hipFree", device)


def pointers(hip: Hip) -> None:
    """The first fields are the kind of memory and its device."""
    found, host = (ctypes.c_int32 * 16)(), ctypes.create_string_buffer(64)
    device, pinned = hip.memory(), hip.makes("hipHostMalloc", 4096, 0)
    hip.gives("InvalidValue", "hipPointerGetAttributes", None, device)
    hip.gives("Success", "hipPointerGetAttributes", found, 0, old="InvalidValue")
    hip.gives("Success", "hipPointerGetAttributes", found, device + 4095)
    hip.same("memory of the device", list(found[:2]), [2, 0])
    hip.gives("Success", "hipPointerGetAttributes", found, pinned + 4095)
    hip.same("pinned memory", list(found[:2]), [1, 0])
    hip.gives("Success", "hipPointerGetAttributes", found, ctypes.addressof(host))
    hip.same("memory of the host", list(found[:2]), [0, -2])
    hip.gives("Success", "hipFree", device)
    hip.gives("Success", "hipHostFree", pinned)
    hip.gives("Success", "hipPointerGetAttributes", found, device)
    hip.same("memory that was freed", list(found[:2]), [0, -2])


def modules(hip: Hip) -> None:
    code, made = scale_code("gfx942"), Cell()
    hip.gives("InvalidValue", "hipModuleLoadData", None, code)
    hip.gives("InvalidValue", "hipModuleLoadData", made, None)
    hip.gives("InvalidImage", "hipModuleLoadData", made, b"this is no code object" + bytes(64))
    hip.gives("NoBinaryForGpu", "hipModuleLoadData", made, scale_code("gfx1100"))
    module = hip.makes("hipModuleLoadData", code)
    hip.gives("InvalidValue", "hipModuleGetFunction", None, module, b"scale")
    hip.gives("InvalidValue", "hipModuleGetFunction", made, module, None)
    hip.gives("InvalidValue", "hipModuleGetFunction", made, module, b"")
    hip.gives("NotFound", "hipModuleGetFunction", made, module, b"scal")
    hip.gives("InvalidHandle", "hipModuleGetFunction", made, 0, b"scale")
    function = hip.makes("hipModuleGetFunction", module, b"scale")
    hip.same("a function", function != 0, True)
    hip.gives("InvalidHandle", "hipModuleUnload", 0)
    hip.gives("NotFound", "hipModuleUnload", _NOWHERE)
    hip.gives("Success", "hipModuleUnload", module)
    hip.gives("NotFound", "hipModuleUnload", module)
    hip.gives("NotFound", "hipModuleGetFunction", made, module, b"scale")


class _Launch:
    """The arguments of a valid launch of `scale`, which tests falsify one by one."""

    def __init__(self, hip: Hip):
        self.hip, self.code = hip, scale_code("gfx942")
        self.module = hip.makes("hipModuleLoadData", self.code)
        self.function = hip.makes("hipModuleGetFunction", self.module, b"scale")
        self.kernargs = (ctypes.c_char * 24)()
        self.size = ctypes.c_size_t(24)
        self.extra = self.list_of(1, ctypes.addressof(self.kernargs), 2, ctypes.addressof(self.size), 3)

    @staticmethod
    def list_of(*values: int) -> ctypes.Array[ctypes.c_void_p]:
        return (ctypes.c_void_p * 5)(*values)

    def gives(
        self, status: str, grid: tuple[int, int, int] = (1, 1, 1), block: tuple[int, int, int] = (128, 1, 1),
        lds: int = 0, stream: int = 0, parameters: object = None, old: str = "", double: str = "", **other: object,
    ) -> None:  # fmt: skip
        function, extra = other.get("function", self.function), other.get("extra", self.extra)
        launch = (function, *grid, *block, lds, stream, parameters, extra)
        self.hip.gives(status, "hipModuleLaunchKernel", *launch, old=old, double=double)

    def end(self) -> None:
        self.hip.gives("Success", "hipStreamSynchronize", 0)
        self.hip.gives("Success", "hipModuleUnload", self.module)


def launches(hip: Hip) -> None:
    launch = _Launch(hip)
    launch.gives("Success")
    launch.gives("InvalidHandle", function=0)
    for grid in ((0, 1, 1), (1, 0, 1), (1, 1, 0), (1 << 31, 1, 1)):
        launch.gives("InvalidValue", grid=grid)
    for block in ((0, 1, 1), (128, 0, 1), (2048, 1, 1), (64, 64, 1), (1, 2048, 1)):
        launch.gives("InvalidValue", block=block)
    launch.gives("InvalidValue", lds=1 << 20)
    launch.end()


def arguments_of_launches(hip: Hip) -> None:
    launch = _Launch(hip)
    address, size = ctypes.addressof(launch.kernargs), ctypes.addressof(launch.size)
    launch.gives("InvalidValue", extra=None)
    for wrong in ((2, size, 1, address, 3), (1, address, 2, size, 0), (0, 0, 0, 0, 0)):
        launch.gives("InvalidValue", extra=launch.list_of(*wrong))
    pointers = (ctypes.c_void_p * 4)(*[address] * 4)
    launch.gives("InvalidValue", parameters=pointers)
    launch.end()


def functions_and_streams_of_another_device(hip: Hip) -> None:
    launch, here = _Launch(hip), hip.stream()
    hip.gives("Success", "hipSetDevice", 1)
    launch.gives("InvalidDevice")
    launch.gives("InvalidHandle", stream=here, old="Success")
    there = hip.stream()
    hip.gives("Success", "hipSetDevice", 0)
    launch.gives("InvalidHandle", stream=there, old="InvalidDevice")
    launch.gives("Success", stream=here)
    hip.gives("Success", "hipStreamDestroy", there)
    hip.gives("Success", "hipStreamDestroy", here)
    launch.end()


def streams(hip: Hip) -> None:
    made = Cell()
    hip.gives("InvalidValue", "hipStreamCreateWithFlags", None, 0)
    hip.gives("InvalidValue", "hipStreamCreateWithFlags", made, 7)
    hip.gives("InvalidHandle", "hipStreamDestroy", 0)
    stream = hip.stream()
    for name in ("hipStreamSynchronize", "hipStreamQuery"):
        hip.gives("Success", name, stream)
        hip.gives("Success", name, 0)
    hip.gives("Success", "hipStreamDestroy", stream)


def streams_that_are_gone(hip: Hip) -> None:
    """Only few calls say so in 7.2, in which most others may crash."""
    stream, status = hip.stream(), Cell()
    hip.gives("Success", "hipStreamDestroy", stream)
    for handle in (stream, _NOWHERE):
        hip.gives("ContextIsDestroyed", "hipStreamGetCaptureInfo_v2", handle, status, *_NOTHING)


def streams_destroyed_in_use(hip: Hip) -> None:
    stream, size = hip.stream(), 1 << 20
    device, host = hip.memory(size), (ctypes.c_ubyte * size)()
    hip.gives("Success", "hipMemsetD8Async", device, 7, size, stream)
    hip.gives("Success", "hipMemcpyDtoHAsync", ctypes.addressof(host), device, size, stream)
    hip.gives("Success", "hipStreamDestroy", stream)
    hip.gives("Success", "hipStreamSynchronize", 0)
    hip.gives("Success", "hipFree", device)
    hip.same("the last byte", host[size - 1], 7)


def events(hip: Hip) -> None:
    made, stream = Cell(), hip.stream()
    hip.gives("InvalidValue", "hipEventCreateWithFlags", None, 0)
    hip.gives("InvalidValue", "hipEventCreateWithFlags", made, 0xFFFF)
    for name, more in (
        ("hipEventDestroy", ()), ("hipEventRecord", (0,)), ("hipEventSynchronize", ()),
    ):  # fmt: skip
        hip.gives("InvalidHandle", name, 0, *more)
    event = hip.event()
    hip.gives("Success", "hipEventSynchronize", event)
    hip.gives("Success", "hipStreamWaitEvent", stream, event, 0)
    hip.gives("InvalidHandle", "hipStreamWaitEvent", stream, 0, 0)
    hip.gives("InvalidValue", "hipStreamWaitEvent", stream, event, 7)
    hip.gives("Success", "hipEventDestroy", event)
    hip.gives("Success", "hipStreamDestroy", stream)


def times_between_events(hip: Hip) -> None:
    start, end, timeless, ms = hip.event(), hip.event(), hip.event(2), ctypes.c_float()
    hip.gives("InvalidHandle", "hipEventElapsedTime", ms, 0, end)
    hip.gives("InvalidHandle", "hipEventElapsedTime", ms, start, 0)
    hip.gives("InvalidHandle", "hipEventElapsedTime", ms, start, end)
    hip.gives("Success", "hipEventRecord", start, 0)
    hip.gives("InvalidHandle", "hipEventElapsedTime", ms, start, end)
    hip.gives("Success", "hipEventRecord", end, 0)
    hip.gives("Success", "hipEventSynchronize", end)
    hip.gives("InvalidValue", "hipEventElapsedTime", None, start, end)
    hip.gives("Success", "hipEventElapsedTime", ms, start, end)
    hip.gives("Success", "hipEventRecord", timeless, 0)
    hip.gives("Success", "hipEventSynchronize", timeless)
    hip.gives("InvalidHandle", "hipEventElapsedTime", ms, start, timeless)
    for event in (start, end, timeless):
        hip.gives("Success", "hipEventDestroy", event)


def events_of_another_device(hip: Hip) -> None:
    event = hip.event()
    hip.gives("Success", "hipSetDevice", 1)
    stream = hip.stream()
    hip.gives("InvalidHandle", "hipEventRecord", event, stream)
    hip.gives("InvalidHandle", "hipEventRecord", event, 0)
    hip.gives("Success", "hipSetDevice", 0)
    hip.gives("Success", "hipEventRecord", event, 0)
    hip.gives("Success", "hipStreamWaitEvent", stream, event, 0)
    hip.gives("Success", "hipStreamSynchronize", stream)
    hip.gives("Success", "hipStreamDestroy", stream)
    hip.gives("Success", "hipEventDestroy", event)


def beginning_and_ending_captures(hip: Hip) -> None:
    stream, graph, status = hip.stream(), Cell(), Cell()
    hip.gives("StreamCaptureUnsupported", "hipStreamBeginCapture", 0, _RELAXED)
    hip.gives("InvalidValue", "hipStreamBeginCapture", stream, 7)
    hip.gives("IllegalState", "hipStreamEndCapture", stream, graph)
    hip.gives("IllegalState", "hipStreamEndCapture", 0, graph)
    hip.gives("IllegalState", "hipStreamEndCapture", stream, None, old="InvalidValue")
    hip.gives("InvalidValue", "hipStreamGetCaptureInfo_v2", stream, None, *_NOTHING)
    hip.gives("Success", "hipStreamGetCaptureInfo_v2", 0, status, *_NOTHING)
    hip.gives("Success", "hipStreamBeginCapture", stream, _RELAXED)
    hip.gives("IllegalState", "hipStreamBeginCapture", stream, _RELAXED)
    hip.gives("Success", "hipStreamGetCaptureInfo_v2", stream, status, *_NOTHING)
    hip.same("capturing", status.value, 1)
    hip.gives("Success", "hipStreamEndCapture", stream, graph)
    hip.gives("Success", "hipGraphDestroy", graph.value)
    hip.gives("Success", "hipStreamDestroy", stream)


def modes_of_capture(hip: Hip) -> None:
    mode = Cell(_RELAXED)
    hip.gives("InvalidValue", "hipThreadExchangeStreamCaptureMode", None)
    hip.gives("Success", "hipThreadExchangeStreamCaptureMode", mode)
    hip.same("the mode before", mode.value, _GLOBAL)
    hip.gives("Success", "hipThreadExchangeStreamCaptureMode", mode)
    hip.same("the mode before", mode.value, _RELAXED)
    hip.gives("InvalidValue", "hipThreadExchangeStreamCaptureMode", Cell(7))


def captures_that_fail(hip: Hip) -> None:
    """Their stream takes no work until its next capture. To end one twice crashes AMD's library."""
    stream, graph, status, device = hip.stream(1), Cell(), Cell(), hip.memory()
    hip.gives("Success", "hipStreamBeginCapture", stream, _RELAXED)
    hip.gives("StreamCaptureUnsupported", "hipStreamSynchronize", stream)
    hip.gives("StreamCaptureInvalidated", "hipStreamEndCapture", stream, graph)
    hip.gives("Success", "hipStreamGetCaptureInfo_v2", stream, status, *_NOTHING)
    hip.same("capturing", status.value, 2)
    hip.gives("StreamCaptureInvalidated", "hipMemsetD8Async", device, 1, 16, stream)
    hip.gives("StreamCaptureUnsupported", "hipStreamSynchronize", stream)
    hip.gives("Success", "hipStreamBeginCapture", stream, _RELAXED)
    hip.gives("Success", "hipStreamEndCapture", stream, graph)
    hip.gives("Success", "hipStreamGetCaptureInfo_v2", stream, status, *_NOTHING)
    hip.same("capturing", status.value, 0)
    hip.gives("Success", "hipStreamSynchronize", stream)
    hip.gives("Success", "hipGraphDestroy", graph.value)
    hip.gives("Success", "hipStreamDestroy", stream)


_BREAKS = "StreamCaptureUnsupported", "StreamCaptureInvalidated"
_IMPLICIT = "StreamCaptureImplicit", "StreamCaptureInvalidated"
_PASSES = "Success", "Success"


def _captured(
    hip: Hip, mode: int, flags: int, expected: tuple[str, str], name: str, *arguments: object,
    double: tuple[str, str] = ("", ""),
) -> None:  # fmt: skip
    """Assert the statuses of a call during a capture, and of the capture's end; "stream" stands for what is
    captured."""
    stream, graph, kept = hip.stream(flags), Cell(), len(hip.differences)
    hip.gives("Success", "hipStreamBeginCapture", stream, mode)
    hip.gives(expected[0], name, *(stream if x == "stream" else x for x in arguments), double=double[0])
    hip.gives(expected[1], "hipStreamEndCapture", stream, graph, double=double[1])
    hip.differences[kept:] = [f"in a capture of mode {mode}, {name}: {found}" for found in hip.differences[kept:]]
    if graph.value:
        hip.gives("Success", "hipGraphDestroy", graph.value)
    hip.gives("Success", "hipStreamDestroy", stream)


def calls_in_a_capture(hip: Hip) -> None:
    made, device, event, code = Cell(), hip.memory(), hip.event(), scale_code("gfx942")
    for name in ("hipStreamSynchronize", "hipStreamQuery"):
        _captured(hip, _RELAXED, 1, _BREAKS, name, "stream")
    for name, *arguments in (
        ("hipMalloc", made, 16), ("hipMemsetD8Async", device, 0, 16, "stream"), ("hipEventRecord", event, "stream"),
        ("hipModuleLoadData", made, code),
    ):  # fmt: skip
        _captured(hip, _RELAXED, 1, _PASSES, name, *arguments)
    _captured(hip, _RELAXED, 1, ("InvalidValue", "Success"), "hipMemsetD8Async", device, 0, 0, "stream")
    for name, *arguments in (("hipMalloc", made, 16), ("hipFree", device), ("hipHostMalloc", made, 16, 0)):
        _captured(hip, _GLOBAL, 1, _BREAKS, name, *arguments)
    _captured(hip, _GLOBAL, 1, _PASSES, "hipModuleLoadData", made, code, double=_BREAKS)


def the_default_stream_in_a_capture(hip: Hip) -> None:
    """It waits for blocking streams, so CUDA and the double refuse it while one of these is captured."""
    device, event = hip.memory(), hip.event()
    for name, *arguments in (
        ("hipMemsetD8Async", device, 0, 16, 0), ("hipStreamSynchronize", 0), ("hipStreamQuery", 0),
        ("hipEventRecord", event, 0),
    ):  # fmt: skip
        for mode in (_GLOBAL, _RELAXED):
            _captured(hip, mode, 0, _PASSES, name, *arguments, double=_IMPLICIT)
        _captured(hip, _RELAXED, 1, _PASSES, name, *arguments)


def events_of_captures(hip: Hip) -> None:
    stream, other, event, graph = hip.stream(1), hip.stream(1), hip.event(), Cell()
    hip.gives("Success", "hipEventRecord", event, other)
    hip.gives("Success", "hipStreamBeginCapture", stream, _RELAXED)
    hip.gives("Success", "hipStreamWaitEvent", stream, event, 0, double="StreamCaptureIsolation")
    hip.call("hipStreamEndCapture", stream, graph)
    hip.gives("Success", "hipStreamBeginCapture", stream, _RELAXED)
    hip.gives("Success", "hipEventRecord", event, stream)
    hip.gives("CapturedEvent", "hipEventSynchronize", event)
    hip.call("hipStreamEndCapture", stream, graph)
    for handle in (stream, other):
        hip.gives("Success", "hipStreamDestroy", handle)


def graphs(hip: Hip) -> None:
    stream, graph, made, device = hip.stream(1), Cell(), Cell(), hip.memory()
    hip.gives("Success", "hipStreamBeginCapture", stream, _RELAXED)
    hip.gives("Success", "hipMemsetD8Async", device, 9, 4096, stream)
    hip.gives("Success", "hipStreamEndCapture", stream, graph)
    hip.gives("InvalidValue", "hipGraphInstantiateWithFlags", None, graph.value, 0)
    hip.gives("InvalidValue", "hipGraphInstantiateWithFlags", made, 0, 0)
    hip.gives("InvalidValue", "hipGraphInstantiateWithFlags", made, graph.value, 0xFFFF)
    executable = hip.makes("hipGraphInstantiateWithFlags", graph.value, 0)
    hip.gives("Success", "hipGraphDestroy", graph.value)
    hip.gives("InvalidValue", "hipGraphDestroy", 0)
    hip.gives("IllegalState", "hipGraphDestroy", graph.value)
    hip.gives("InvalidValue", "hipGraphLaunch", 0, stream)
    hip.gives("Success", "hipGraphLaunch", executable, stream)
    hip.gives("Success", "hipGraphLaunch", executable, 0)
    hip.gives("Success", "hipStreamSynchronize", stream)
    hip.gives("Success", "hipStreamSynchronize", 0)
    host = (ctypes.c_ubyte * 4096)()
    hip.gives("Success", "hipMemcpyDtoHAsync", ctypes.addressof(host), device, 4096, stream)
    hip.gives("Success", "hipStreamSynchronize", stream)
    hip.same("the last byte", host[4095], 9)
    hip.gives("Success", "hipGraphExecDestroy", executable)
    hip.gives("InvalidValue", "hipGraphExecDestroy", 0)
    hip.gives("Success", "hipStreamDestroy", stream)


FACTS: dict[str, Callable[[Hip], None]] = {
    fact.__name__: fact
    for fact in (
        versions, statuses, devices, the_last_error, properties, memory, memory_of_the_host, memory_freed_wrongly,
        making_pools, attributes_of_pools, memory_of_a_pool_in_a_capture, memory_of_pools, pools_and_other_memory,
        a_pool_of_another_device, copies, pointers, modules, launches, arguments_of_launches,
        functions_and_streams_of_another_device, streams, streams_that_are_gone, streams_destroyed_in_use, events,
        times_between_events, events_of_another_device, beginning_and_ending_captures, captures_that_fail,
        modes_of_capture, calls_in_a_capture, the_default_stream_in_a_capture, events_of_captures, graphs,
    )
}  # fmt: skip
