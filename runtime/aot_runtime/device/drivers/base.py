"""The `Driver` protocol: all that the runtime asks of a GPU.

Handles (modules, functions, streams, events, graphs) and device addresses are plain integers; stream 0 is
the device's default stream. A driver holds no policy: which device, which stream, who owns what, and when
memory is freed is decided above it.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import msgspec

from aot_runtime.contract.records import TensorMap

EMULATOR = "emulator"
"""The name of the driver whose devices are emulated. It has one for each architecture that it knows, which is named by
the architecture."""
Outcome: TypeAlias = "list[Any] | None"
"""The list that a call leaves its result in, or None: see `Driver`."""


def handle_of(outcome: list[Any]) -> int:
    """The handle or address that a call left, itself or in a `c_void_p`; 0 where it was not made, or failed."""
    made = outcome[0] if outcome else 0
    return made if isinstance(made, int) else made.value or 0


class DeviceProperties(msgspec.Struct, frozen=True):
    """Properties of a device that dispatch and diagnostics use."""

    name: str
    arch: str
    """Bare name as `--arch` spells it: `gfx942`, `sm_90`."""
    num_cus: int
    """Compute units (AMD) or streaming multiprocessors (NVIDIA) of this device or partition."""
    warp_size: int
    lds_bytes: int
    """The most LDS (shared memory) that one workgroup may have, opt-in included."""
    memory_bytes: int
    driver_version: str
    num_xcds: int | None = None
    """Dies of this device or partition that workgroups are dealt to in turn; None: those of the architecture's row."""
    library: str = ""
    """The API's library, and why it is this one; empty where there is no choice."""
    clock: float = 0
    """Highest clock of the compute units, Hz; 0: not known."""
    memory_clock: float = 0
    pci: str = ""
    """The PCI address, as Linux writes it: `0000:c1:00.0`; empty if not known. Partitions of a GPU share it."""


class PreparedLaunch(Protocol):
    """A launch whose grid, block, LDS and kernarg segment are set up; only the stream is open.

    One `PreparedLaunch` is used by one thread at a time: whoever holds it writes `kernargs`, then calls `run`, or what
    that is made of. The driver has copied the kernargs when `enqueue` returns, so they may be overwritten at once.
    """

    kernargs: bytearray | memoryview
    """The kernarg segment, writable in place (`struct.pack_into`); its size never changes."""

    def enqueue(self) -> int:
        """Make the launch, on the stream that it was placed on last, at first the default stream. Returns the API's
        status, 0 for success; any other one is for `settle`."""

    def place(self, stream: int) -> None:
        """Have it go to `stream` from now on."""

    def settle(self, status: int) -> None:
        """Make the launch that `enqueue` did not, if all it needed was its device to be current. Raises
        `DriverCallError` for any other status."""

    def run(self, stream: int) -> None:
        """Enqueue the launch on `stream`. Raises `DriverCallError`."""


class Driver(Protocol):
    """A GPU API. Every method raises `DriverCallError` (out of memory: `DeviceMemoryError`) when a call fails.

    All but `activate` leave the device that is current in the calling thread as it was.

    What makes something takes a list `made`, and what gives something back a list `gone`. A call leaves its outcome
    there at the moment at which it is made: where an interrupt (Ctrl-C) ends the method, an empty list says that
    nothing was done, and `handle_of` what was made.
    """

    name: str
    """`hip`, `cuda` or `emulator`."""
    dlpack_device: int | None
    """`DLDeviceType` of its memory; None if other libraries cannot use the memory."""
    is_emulated: bool
    """The device is emulated: its times say nothing about a GPU."""
    exact_allocations: bool
    """Memory is to be asked for to the byte and given back at once, so that faults show."""

    def device_count(self) -> int:
        """Number of visible devices; 0 where the library is there and a GPU is not."""

    def properties(self, device: int) -> DeviceProperties: ...

    def activate(self, device: int) -> None:
        """Make `device` current for the calling thread, and leave it so."""

    # Memory. Addresses are integers; `allocate` and `free` are ordered on `stream` and take from a pool
    # that belongs to the driver object. nbytes > 0. Allocations are aligned to at least 256 bytes.
    def allocate(self, device: int, nbytes: int, stream: int, made: Outcome = None) -> int: ...

    def allocate_now(self, device: int, nbytes: int, made: Outcome = None) -> int:
        """Memory that is valid on every stream at once and legal to take while a stream is being captured."""

    def free(self, device: int, address: int, stream: int, gone: Outcome = None) -> None: ...

    def free_now(self, device: int, address: int, gone: Outcome = None) -> None:
        """Give back what `allocate_now` gave; the device may synchronise."""

    def trim(self, device: int, keep: int) -> None:
        """Give memory of the pool that nothing uses back to the system, as long as it holds more than `keep` bytes."""

    def memory_in_use(self, device: int) -> tuple[int, int]:
        """Bytes that the pool holds, and of them those that were allocated and not given back."""

    def free_memory(self, device: int) -> int:
        """Bytes of the device's memory that no process has taken; what a pool holds is taken."""

    def copy_to_device(self, device: int, address: int, host: int, nbytes: int, stream: int) -> None:
        """Copy host memory to the device in stream order; when it returns, the host memory may be reused.

        Of copies between host and device, `stream` is not being captured: the graph would copy at each replay.
        """

    def copy_to_host(self, device: int, host: int, address: int, nbytes: int, stream: int) -> None:
        """Copy device memory to the host after all earlier work of `stream`; when it returns, the bytes are there."""

    def fill(self, device: int, address: int, byte: int, nbytes: int, stream: int) -> None:
        """Set nbytes bytes to `byte`, in stream order."""

    def device_of(self, address: int) -> int:
        """The device that owns an address. Raises `DriverCallError` when it is not device memory."""

    # Code. A module holds one code object; a function belongs to its module and dies with it.
    def load_module(self, device: int, image: bytes, made: Outcome = None) -> int: ...

    def unload_module(self, device: int, module: int, gone: Outcome = None) -> None: ...

    def get_function(self, device: int, module: int, symbol: str, lds_bytes: int) -> int:
        """A kernel of a module, ready to be launched with `lds_bytes` of dynamic LDS. Never returns 0."""

    def prepare(
        self, device: int, function: int, grid: tuple[int, int, int], block: int, lds_bytes: int,
        kernargs: bytes | memoryview, early: bool = False,
    ) -> PreparedLaunch:  # fmt: skip
        """A launch of `grid` workgroups of `block` threads whose kernarg segment starts out as `kernargs`, and is that
        very memory where it is a writable view: one buffer may have the segments of several launches.

        It sees to it that `device` is current meanwhile wherever more than one device is visible, so that a launch
        goes where its arguments live, whatever is current in the calling thread.

        early: the kernel waits by itself for those that precede it on its stream (Triton's option `launch_pdl`), so
        that a device that can may begin it before they have ended.
        """

    def tensor_map(
        self, device: int, tensor_map: TensorMap, shape: tuple[int, ...], strides: tuple[int, ...], address: int
    ) -> bytes:
        """The 128 bytes that a kernel takes as the map of the tensor at `address`.

        Args:
            shape: extents in elements, outermost first.
            strides: in bytes, of all dims but the last.

        Raises:
            DeviceError: the API has no tensor maps.
        """

    # Streams, events, graphs.
    def create_stream(self, device: int, made: Outcome = None) -> int:
        """A stream whose work is ordered with the default stream's: neither overtakes what the other was given first.

        So nothing may go to the default stream while such a stream is being captured: the call would fail, and the
        capture with it.
        """

    def destroy_stream(self, device: int, stream: int, gone: Outcome = None) -> None: ...

    def synchronize(self, device: int, stream: int) -> None:
        """Wait until all work of `stream` is done."""

    def create_event(self, device: int, made: Outcome = None) -> int:
        """An event that records time."""

    def destroy_event(self, device: int, event: int, gone: Outcome = None) -> None: ...

    def record_event(self, device: int, event: int, stream: int) -> None: ...

    def synchronize_event(self, device: int, event: int) -> None: ...

    def wait_event(self, device: int, stream: int, event: int) -> None:
        """Make later work of `stream` wait for `event`."""

    def elapsed_ms(self, device: int, start: int, end: int) -> float:
        """Milliseconds between two recorded events that have completed."""

    def is_capturing(self, device: int, stream: int) -> bool: ...

    def begin_capture(self, device: int, stream: int) -> None:
        """Start to record a non-zero stream's work into a graph instead of running it."""

    def end_capture(self, device: int, stream: int, made: Outcome = None) -> int:
        """Stop recording; returns an executable graph."""

    def launch_graph(self, device: int, graph: int, stream: int) -> None: ...

    def destroy_graph(self, device: int, graph: int, gone: Outcome = None) -> None: ...
