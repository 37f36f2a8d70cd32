"""Implementation of the `Driver` protocol on emulated devices."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from aot_emulator import statuses
from aot_emulator.captures import Captures, Work
from aot_emulator.errors import MemoryAccessError
from aot_emulator.isa.archs import ARCHS, Arch
from aot_emulator.machine.launch_options import Options, options_of_environment
from aot_emulator.machine.launch_records import Launch
from aot_emulator.machine.loader import Kernel, Module
from aot_emulator.profile.counters import Statistics
from aot_emulator.progress import shown_progress
from aot_emulator.state.device_memory import Memory
from aot_emulator.statuses import call_error
from aot_emulator.watched_launch import run_launch
from aot_runtime.contract.records import TensorMap
from aot_runtime.device.drivers import EMULATOR, DeviceProperties, Outcome
from aot_runtime.errors import BundleError, DeviceError, DeviceMemoryError

Runner = Callable[[Launch, Memory, Options], Statistics]
_MEMORY_BYTES = 64 << 30
_ADDRESSES = 1 << 40
"""Size of the address range reserved for each device."""


@dataclass
class _Device:
    arch: Arch
    memory: Memory


@dataclass
class _Event:
    time: float | None = None


@dataclass
class PreparedEmulation:
    """A launch prepared for repeated use (implements `PreparedLaunch`)."""

    driver: EmulatorDriver
    device: int
    kernel: Kernel
    grid: tuple[int, int, int]
    block: int
    lds_bytes: int
    kernargs: bytearray | memoryview
    stream: int = 0

    def place(self, stream: int) -> None:
        self.stream = stream

    def enqueue(self) -> int:
        """Run the launch, or record it if its stream is being captured. Raises `EmulationError`."""
        launch = Launch(self.kernel, self.grid, self.block, self.lds_bytes, bytes(self.kernargs))
        self.driver.do("ModuleLaunchKernel", self.device, self.stream, lambda: self.driver.launch(self.device, launch))
        return 0

    def settle(self, status: int) -> None:
        raise AssertionError(f"unexpected status {status}: the emulator raises its errors")

    def run(self, stream: int) -> None:
        self.place(stream)
        self.enqueue()


class EmulatorDriver:
    """Driver of emulated AMD GPUs, one for each architecture in `ARCHS`.

    The methods are documented in `Driver`. If `options` is omitted, it is read from the environment:
    AOTBUILD_EMULATOR_STRICT=1 enables strict mode, AOTBUILD_EMULATOR_IGNORE=race,wait ignores these kinds of faults,
    and AOTBUILD_EMULATOR_TIME_LIMIT limits the seconds per launch. Launches of more than a few seconds show their
    progress on a terminal.

    Raises:
        DeviceError: an environment variable has an invalid value.

    Attributes:
        options: options of the following launches; may be replaced between launches.
        last: `Statistics` of the latest launch, including its memory traffic if `options.profile` was set.
        record: list to which the statistics of each launch are appended, or None.
        runner: function that runs a launch.
    """

    name = EMULATOR
    dlpack_device: int | None = None
    is_emulated = True
    exact_allocations = True

    def __init__(self, options: Options | None = None):
        self.options = options or options_of_environment()
        self.last = Statistics()
        self.record: list[Statistics] | None = None
        self.runner: Runner = run_launch
        self._devices = [
            _Device(arch, Memory((index + 1) * _ADDRESSES, _MEMORY_BYTES, self.options.strict))
            for index, arch in enumerate(ARCHS.values())
        ]
        self._lock = threading.RLock()
        self._next = 1
        self._modules: dict[int, Module] = {}
        self._functions: dict[int, tuple[int, Kernel]] = {}
        self._streams: dict[int, int] = {}
        self._captures = Captures()
        self._graphs: dict[int, list[Work]] = {}
        self._events: dict[int, _Event] = {}

    def device_count(self) -> int:
        return len(self._devices)

    def properties(self, device: int) -> DeviceProperties:
        found = self._device("GetDeviceProperties", device)
        return DeviceProperties(
            name=found.arch.title,
            arch=found.arch.name,
            num_cus=found.arch.num_cus,
            warp_size=found.arch.lanes,
            lds_bytes=found.arch.lds_bytes,
            memory_bytes=_MEMORY_BYTES,
            driver_version=f"aotbuild {_version_of('aotbuild')}, tinygrad {_version_of('tinygrad')}",
        )

    def activate(self, device: int) -> None:
        self._device("SetDevice", device)

    # Memory

    def allocate(self, device: int, nbytes: int, stream: int, made: Outcome = None) -> int:
        self._captures.refuse("MallocAsync", device, stream)
        return self._allocate("MallocAsync", device, nbytes, made)

    def allocate_now(self, device: int, nbytes: int, made: Outcome = None) -> int:
        return self._allocate("Malloc", device, nbytes, made)

    def _allocate(self, call: str, device: int, nbytes: int, made: Outcome) -> int:
        memory = self._device(call, device).memory
        with self._lock:
            try:
                return memory.allocate(nbytes, [] if made is None else made)
            except MemoryError as error:
                raise DeviceMemoryError(
                    call, statuses.OUT_OF_MEMORY, statuses.CODES[statuses.OUT_OF_MEMORY], str(error)
                ) from None

    def free(self, device: int, address: int, stream: int, gone: Outcome = None) -> None:
        self._captures.refuse("FreeAsync", device, stream)
        self._free("FreeAsync", device, address, gone)

    def free_now(self, device: int, address: int, gone: Outcome = None) -> None:
        self._free("Free", device, address, gone)

    def memory(self, device: int) -> Memory:
        """Return the emulated memory of a device, for inspection."""
        return self._device("GetMemory", device).memory

    def trim(self, device: int, keep: int) -> None:
        """Do nothing: the emulator has no memory pool."""

    def memory_in_use(self, device: int) -> tuple[int, int]:
        used = self.memory(device).used
        return used, used

    def free_memory(self, device: int) -> int:
        return _MEMORY_BYTES - self.memory(device).used

    def _free(self, call: str, device: int, address: int, gone: Outcome) -> None:
        memory = self._device(call, device).memory
        with self._lock:
            try:
                memory.free(address, [] if gone is None else gone)
            except MemoryAccessError as error:
                raise call_error(call, statuses.INVALID_VALUE, error.message) from None

    def _on_memory(self, call: str, device: int, work: Callable[[Memory], Any]) -> Any:
        try:
            return work(self._device(call, device).memory)
        except MemoryAccessError as error:
            raise call_error(call, statuses.INVALID_VALUE, error.message) from None

    def copy_to_device(self, device: int, address: int, host: int, nbytes: int, stream: int) -> None:
        content = _host_bytes(host, nbytes).copy() if self.is_capturing(device, stream) else _host_bytes(host, nbytes)

        def copy() -> None:
            self._on_memory("MemcpyHtoD", device, lambda memory: memory.write(address, nbytes, content))

        self.do("MemcpyHtoD", device, stream, copy)

    def copy_to_host(self, device: int, host: int, address: int, nbytes: int, stream: int) -> None:
        def copy() -> None:
            found = self._on_memory("MemcpyDtoH", device, lambda memory: memory.bytes_at(address, nbytes))
            _host_bytes(host, nbytes)[:] = found

        self.do("MemcpyDtoH", device, stream, copy)

    def fill(self, device: int, address: int, byte: int, nbytes: int, stream: int) -> None:
        def fill() -> None:
            self._on_memory("Memset", device, lambda memory: memory.write(address, nbytes, byte))

        self.do("Memset", device, stream, fill)

    def device_of(self, address: int) -> int:
        device = address // _ADDRESSES - 1
        if 0 <= device < len(self._devices):
            self._on_memory("PointerGetAttributes", device, lambda memory: memory.find(address))
            return device
        raise call_error("PointerGetAttributes", statuses.INVALID_VALUE, f"{address:#x} is not device memory")

    # Code

    def load_module(self, device: int, image: bytes, made: Outcome = None) -> int:
        found = self._device("ModuleLoadData", device)
        try:
            return self._register(self._modules, Module(image, found.arch, found.memory), made)
        except BundleError as error:
            raise call_error("ModuleLoadData", statuses.INVALID_IMAGE, str(error)) from None

    def unload_module(self, device: int, module: int, gone: Outcome = None) -> None:
        self._find("ModuleUnload", self._modules, module).unload()
        with self._lock:
            self._functions = {key: value for key, value in self._functions.items() if value[0] != module}
            self._forget(self._modules, module, gone)

    def get_function(self, device: int, module: int, symbol: str, lds_bytes: int) -> int:
        found = self._find("ModuleGetFunction", self._modules, module)
        try:
            kernel = found.kernel(symbol)
        except BundleError as error:
            raise call_error("ModuleGetFunction", statuses.NOT_FOUND, str(error)) from None
        self._check_lds("ModuleGetFunction", device, kernel, lds_bytes)
        return self._register(self._functions, (module, kernel))

    def _check_lds(self, call: str, device: int, kernel: Kernel, lds_bytes: int) -> int:
        total, most = kernel.metadata.static_lds_bytes + lds_bytes, self._device(call, device).arch.lds_bytes
        if not 0 <= lds_bytes <= total <= most:
            raise call_error(
                call, statuses.INVALID_VALUE, f"{kernel.symbol} needs {total} bytes of LDS, a workgroup has {most}"
            )
        return total

    def prepare(
        self, device: int, function: int, grid: tuple[int, int, int], block: int, lds_bytes: int,
        kernargs: bytes | memoryview, early: bool = False,
    ) -> PreparedEmulation:  # fmt: skip
        if not function:
            raise DeviceError("cannot prepare the launch of a null function")
        _, kernel = self._find("ModuleLaunchKernel", self._functions, function)
        most = kernel.metadata.max_workgroup_size
        if not 0 < block <= most or min(grid) <= 0 or math.prod(grid) >= 1 << 32:
            raise call_error(
                "ModuleLaunchKernel",
                statuses.INVALID_VALUE,
                f"{kernel.symbol}: {block} threads in a grid of {grid}; allowed: 1 to {most}, one workgroup or more",
            )
        total = self._check_lds("ModuleLaunchKernel", device, kernel, lds_bytes)
        kernel.kernarg_segment(bytes(kernargs), grid, block, total)  # the size is checked
        segment = bytearray(kernargs) if isinstance(kernargs, bytes) else kernargs
        return PreparedEmulation(self, device, kernel, grid, block, total, segment)

    def tensor_map(
        self, device: int, tensor_map: TensorMap, shape: tuple[int, ...], strides: tuple[int, ...], address: int
    ) -> bytes:
        raise DeviceError("the emulator does not support tensor maps (NVIDIA sm_90 and later only)")

    def launch(self, device: int, launch: Launch) -> None:
        """Run a launch synchronously. Raises `EmulationError`."""
        with self._lock:
            memory = self._device("ModuleLaunchKernel", device).memory
            with shown_progress(launch.kernel.symbol, self.options) as options:
                self.last = self.runner(launch, memory, options)
            if self.record is not None:
                self.record.append(self.last)

    @contextmanager
    def recording(self, options: Options) -> Iterator[list[Statistics]]:
        """Run launches in the `with` block with `options`, and yield the list that collects their statistics."""
        before = self.options, self.record
        record: list[Statistics] = []
        self.options, self.record = options, record
        try:
            yield record
        finally:
            self.options, self.record = before

    @contextmanager
    def run_by(self, runner: Runner) -> Iterator[None]:
        """Run launches in the `with` block by `runner`."""
        before, self.runner = self.runner, runner
        try:
            yield
        finally:
            self.runner = before

    # Streams

    def create_stream(self, device: int, made: Outcome = None) -> int:
        self._device("StreamCreate", device)
        return self._register(self._streams, device, made)

    def destroy_stream(self, device: int, stream: int, gone: Outcome = None) -> None:
        self._find("StreamDestroy", self._streams, stream)
        with self._lock:
            self._captures.drop(stream)
            self._forget(self._streams, stream, gone)

    def synchronize(self, device: int, stream: int) -> None:
        if stream:
            self._find("StreamSynchronize", self._streams, stream)
        self._captures.refuse("StreamSynchronize", device, stream)

    def do(self, call: str, device: int, stream: int, work: Work) -> None:
        """Do work on a stream immediately, or record it if the stream is being captured."""
        if stream:
            self._find(call, self._streams, stream)
        if stream in self._captures:
            self._captures.add(stream, work)
        else:
            self._captures.refuse(call, device, stream)
            work()

    # Events

    def create_event(self, device: int, made: Outcome = None) -> int:
        self._device("EventCreate", device)
        return self._register(self._events, _Event(), made)

    def destroy_event(self, device: int, event: int, gone: Outcome = None) -> None:
        self._find("EventDestroy", self._events, event)
        with self._lock:
            self._forget(self._events, event, gone)

    def record_event(self, device: int, event: int, stream: int) -> None:
        found = self._find("EventRecord", self._events, event)

        def record() -> None:
            found.time = time.perf_counter()

        self.do("EventRecord", device, stream, record)

    def synchronize_event(self, device: int, event: int) -> None:
        self._find("EventSynchronize", self._events, event)

    def wait_event(self, device: int, stream: int, event: int) -> None:
        self._find("StreamWaitEvent", self._events, event)

    def elapsed_ms(self, device: int, start: int, end: int) -> float:
        times = [self._find("EventElapsedTime", self._events, event).time for event in (start, end)]
        if times[0] is None or times[1] is None:
            raise call_error("EventElapsedTime", statuses.INVALID_HANDLE, "an event has not been recorded")
        return 1e3 * (times[1] - times[0])

    # Graphs

    def is_capturing(self, device: int, stream: int) -> bool:
        return stream in self._captures

    def begin_capture(self, device: int, stream: int) -> None:
        self._find("StreamBeginCapture", self._streams, stream)
        self._captures.begin(device, stream)

    def end_capture(self, device: int, stream: int, made: Outcome = None) -> int:
        with self._lock:
            work = self._captures.end(stream)
        return self._register(self._graphs, work, made)

    def launch_graph(self, device: int, graph: int, stream: int) -> None:
        for work in self._find("GraphLaunch", self._graphs, graph):
            self.do("GraphLaunch", device, stream, work)

    def destroy_graph(self, device: int, graph: int, gone: Outcome = None) -> None:
        self._find("GraphExecDestroy", self._graphs, graph)
        with self._lock:
            self._forget(self._graphs, graph, gone)

    # Handles

    def _device(self, call: str, device: int) -> _Device:
        if 0 <= device < len(self._devices):
            return self._devices[device]
        raise call_error(call, statuses.INVALID_DEVICE, f"invalid device {device}; found {len(self._devices)} devices")

    def _register(self, table: dict[int, Any], thing: Any, made: Outcome = None) -> int:
        made = [] if made is None else made
        with self._lock:
            handle = self._next
            self._next += 1
            table[handle] = thing
            made += [handle]  # no call in between: an interrupt cannot separate these two statements
        return handle

    def _forget(self, table: dict[int, Any], handle: int, gone: Outcome) -> None:
        gone = [] if gone is None else gone
        del table[handle]
        gone += [0]

    def _find(self, call: str, table: dict[int, Any], handle: int) -> Any:
        try:
            return table[handle]
        except KeyError:
            raise call_error(call, statuses.INVALID_HANDLE, f"invalid handle {handle:#x}") from None


def _host_bytes(host: int, nbytes: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(host))


def _version_of(package: str) -> str:
    try:
        return version(package)
    except ImportError:
        return "unknown"
