"""Graphs: captured calls that are replayed with one launch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aot_runtime.errors import CaptureError, DeviceError

from .drivers import handle_of
from .streams import StreamLike
from .uncopyable import OneOfAKind

if TYPE_CHECKING:
    from .protocol import DeviceLike


class Graph(OneOfAKind):
    """A recorded sequence of calls (see `Device.capture`), replayed with one launch.

    A graph refers to the addresses of the arrays passed: keep them alive as long as the graph. Their contents may
    change between replays. The graph owns the workspaces of its calls and keeps their code loaded.
    """

    def __init__(self, device: DeviceLike, stream: int):
        self.device = device
        self.handle = 0
        self.is_over = self._is_ending = False
        self._stream = stream
        self._made = device.holdings.hold_handle(self, device.driver.destroy_graph)
        self._workspaces: list[_Workspace] = []
        self._needed: set[Any] = set()

    def workspace(self, nbytes: int) -> int:
        """Allocate memory that lives as long as the graph. Returns its address."""
        made = _Workspace(self.device, nbytes)
        self._workspaces.append(made)
        return made.address

    def need(self, thing: Any) -> None:
        """Keep an object alive as long as the graph."""
        self._needed.add(thing)

    def begin(self) -> None:
        """Begin the capture. Raises `CaptureError` if the stream is already being captured."""
        device, captures = self.device, self.device.holdings.captures
        device.holdings.settle()
        with device.holdings.lock:
            if self._stream in captures or device.driver.is_capturing(device.index, self._stream):
                raise CaptureError("the stream is being captured already")
            captures[self._stream] = self
            try:
                device.driver.begin_capture(device.index, self._stream)
            except DeviceError:
                del captures[self._stream]
                raise

    def end(self) -> None:
        """End the capture if it is in progress. Call again after an interrupt."""
        device, captures = self.device, self.device.holdings.captures
        self.is_over = True
        with device.holdings.lock:
            if captures.get(self._stream) is not self or self._is_ending:  # a reentrant call
                return
            self._is_ending = True
            try:
                if device.driver.is_capturing(device.index, self._stream):
                    device.driver.end_capture(device.index, self._stream, self._made)
            except DeviceError:
                del captures[self._stream]
                raise
            finally:
                self._is_ending = False
            self.handle = handle_of(self._made)
            del captures[self._stream]

    def launch(self, stream: StreamLike | None = None) -> None:
        """Replay the graph on a stream."""
        if not self.handle:
            raise CaptureError("the graph was not captured to its end")
        self.device.driver.launch_graph(self.device.index, self.handle, self.device.handle(stream))

    def __repr__(self) -> str:
        return f"<graph {self.handle:#x} on {self.device}>" if self.handle else f"<graph without work on {self.device}>"


@contextmanager
def captured(device: DeviceLike, stream: StreamLike) -> Iterator[Graph]:
    """Record the calls on a stream, and keep the stream alive meanwhile. See `Device.capture`."""
    graph = Graph(device, device.handle(stream))
    try:
        graph.begin()
        yield graph
    finally:
        graph.is_over = True  # from here on, any `settle` ends the capture
        try:
            graph.end()
        finally:
            device.holdings.settle()


class _Workspace:
    """Memory of a graph's calls."""

    __slots__ = ("__weakref__", "address")

    def __init__(self, device: DeviceLike, nbytes: int):
        made = device.holdings.hold_handle(self, device.driver.free_now)
        self.address = device.driver.allocate_now(device.index, nbytes, made)
