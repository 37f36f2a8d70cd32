"""The `Driver` protocol, through which the runtime uses a GPU.

Handles (modules, functions, streams, events, graphs) and device addresses are integers. Stream 0 is the device's
default stream. A driver has no policy: its callers choose devices and streams, own objects and free memory.

Only type checkers import this module.
"""

from __future__ import annotations

from typing import Protocol

from aot_runtime.contract.records import TensorMap

from . import DeviceProperties, Outcome


class PreparedLaunch(Protocol):
    """A launch with its grid, block, LDS and kernarg segment set up, for any stream.

    A `PreparedLaunch` is used by one thread at a time, which writes `kernargs` and then calls `run` (or `place`,
    `enqueue` and `settle`). The driver has copied the kernargs when `enqueue` returns.
    """

    kernargs: bytearray | memoryview
    """The kernarg segment, writable in place (`struct.pack_into`) and of constant size."""

    def enqueue(self) -> int:
        """Launch on the stream of the last `place`; initially the default stream.

        Returns:
            The API's status, 0 for success. Pass any other to `settle`.
        """

    def place(self, stream: int) -> None:
        """Set the stream of later launches."""

    def settle(self, status: int) -> None:
        """Repeat a failed launch with its device current, if that was the failure.

        Raises:
            DriverCallError: the status stands for any other failure.
        """

    def run(self, stream: int) -> None:
        """Enqueue the launch on `stream`. Raises `DriverCallError`."""


class Driver(Protocol):
    """A GPU API. Every method raises `DriverCallError` (out of memory: `DeviceMemoryError`) if a call fails.

    All methods but `activate` preserve the calling thread's current device.

    Methods that create an object take a list `made`, and those that destroy one a list `gone`. The outcome of the call
    is in the list as soon as the call is made. So if an interrupt (Ctrl-C) ends the method, an empty list means that
    nothing was done, and `handle_of` returns the handle of an object that was created.
    """

    name: str
    """`hip`, `cuda` or `emulator`."""
    dlpack_device: int | None
    """`DLDeviceType` of the device memory; None if other libraries cannot use it."""
    is_emulated: bool
    """The device is emulated, so measured times say nothing about a GPU."""
    exact_allocations: bool
    """Memory should be allocated in exact sizes and freed at once, so that out-of-bounds accesses are detected."""

    def device_count(self) -> int:
        """Return the number of visible devices; 0 if the library is installed but there is no GPU."""

    def properties(self, device: int) -> DeviceProperties: ...

    def activate(self, device: int) -> None:
        """Make `device` current in the calling thread."""

    # Memory. `allocate` and `free` are ordered on `stream` and use a pool of the driver object. nbytes > 0.
    # Allocations are aligned to at least 256 bytes.
    def allocate(self, device: int, nbytes: int, stream: int, made: Outcome = None) -> int: ...

    def allocate_now(self, device: int, nbytes: int, made: Outcome = None) -> int:
        """Allocate memory that is valid on all streams at once. Allowed while a stream is being captured."""

    def free(self, device: int, address: int, stream: int, gone: Outcome = None) -> None: ...

    def free_now(self, device: int, address: int, gone: Outcome = None) -> None:
        """Free memory of `allocate_now`. The device may synchronise."""

    def trim(self, device: int, keep: int) -> None:
        """Return unused memory of the pool to the system until it holds at most `keep` bytes."""

    def memory_in_use(self, device: int) -> tuple[int, int]:
        """Return (bytes that the pool holds, bytes of them that are allocated)."""

    def free_memory(self, device: int) -> int:
        """Return the bytes of free device memory. Memory held by a pool is not free."""

    def copy_to_device(self, device: int, address: int, host: int, nbytes: int, stream: int) -> None:
        """Copy host memory to the device in stream order. On return, the host memory may be reused.

        `stream` must not be in capture, as the graph would repeat the copy. This holds for `copy_to_host` as well.
        """

    def copy_to_host(self, device: int, host: int, address: int, nbytes: int, stream: int) -> None:
        """Copy device memory to the host after all earlier work of `stream`, and wait for the copy."""

    def fill(self, device: int, address: int, byte: int, nbytes: int, stream: int) -> None:
        """Set `nbytes` bytes to `byte`, in stream order."""

    def device_of(self, address: int) -> int:
        """Return the device that owns an address. Raises `DriverCallError` if it is not device memory."""

    # Code. A module holds a code object; a function is valid until its module is unloaded.
    def load_module(self, device: int, image: bytes, made: Outcome = None) -> int: ...

    def unload_module(self, device: int, module: int, gone: Outcome = None) -> None: ...

    def get_function(self, device: int, module: int, symbol: str, lds_bytes: int) -> int:
        """Return a kernel of a module, set up for `lds_bytes` of dynamic LDS. Never returns 0."""

    def prepare(
        self, device: int, function: int, grid: tuple[int, int, int], block: int, lds_bytes: int,
        kernargs: bytes | memoryview, early: bool = False,
    ) -> PreparedLaunch:  # fmt: skip
        """Prepare a launch of `grid` workgroups of `block` threads.

        If several devices are visible, the launch makes `device` current meanwhile, so it runs where its arguments are.

        Args:
            kernargs: initial content of the kernarg segment. A writable view becomes the segment itself, so that a
                buffer can hold the segments of several launches.
            early: the kernel may start before its predecessors on the stream have ended, as it waits for them itself
                (Triton's option `launch_pdl`).
        """

    def tensor_map(
        self, device: int, tensor_map: TensorMap, shape: tuple[int, ...], strides: tuple[int, ...], address: int
    ) -> bytes:
        """Encode the 128 bytes of the tensor map that a kernel gets for the tensor at `address`.

        Args:
            shape: extents in elements, outermost first.
            strides: strides in bytes of all dims but the last.

        Raises:
            DeviceError: the API has no tensor maps.
        """

    # Streams, events, graphs.
    def create_stream(self, device: int, made: Outcome = None) -> int:
        """Create a stream that is ordered with the default stream (a blocking stream).

        While it is being captured, nothing may be enqueued on the default stream: the call and the capture would fail.
        """

    def destroy_stream(self, device: int, stream: int, gone: Outcome = None) -> None: ...

    def synchronize(self, device: int, stream: int) -> None:
        """Wait until all work of `stream` has completed."""

    def create_event(self, device: int, made: Outcome = None) -> int:
        """Create an event that records time."""

    def destroy_event(self, device: int, event: int, gone: Outcome = None) -> None: ...

    def record_event(self, device: int, event: int, stream: int) -> None: ...

    def synchronize_event(self, device: int, event: int) -> None: ...

    def wait_event(self, device: int, stream: int, event: int) -> None:
        """Make later work of `stream` wait for `event`."""

    def elapsed_ms(self, device: int, start: int, end: int) -> float:
        """Return the milliseconds between two events that have completed."""

    def is_capturing(self, device: int, stream: int) -> bool: ...

    def begin_capture(self, device: int, stream: int) -> None:
        """Start recording the work of a stream other than 0 into a graph."""

    def end_capture(self, device: int, stream: int, made: Outcome = None) -> int:
        """Stop recording and create an executable graph."""

    def launch_graph(self, device: int, graph: int, stream: int) -> None: ...

    def destroy_graph(self, device: int, graph: int, gone: Outcome = None) -> None: ...
