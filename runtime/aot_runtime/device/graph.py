"""`Graph`: calls that were recorded, to be launched again as one."""

from __future__ import annotations

import sys

from aot_runtime.errors import CaptureError

from .identity import OneOfAKind
from .streams import StreamDevice, StreamLike


class Graph(OneOfAKind):
    """A recorded sequence of calls (see `Device.capture`), replayed with one launch.

    It keeps the arrays' addresses: the arrays that were passed must live as long as it does, and their contents
    may change between replays. Workspaces of the captured calls belong to the graph.
    """

    def __init__(self, device: StreamDevice):
        self.device = device
        self.handle = 0
        self._workspaces: list[int] = []

    def workspace(self, nbytes: int) -> int:
        """Memory that lives as long as the graph."""
        address = self.device.driver.allocate_now(self.device.index, nbytes)
        self._workspaces.append(address)
        return address

    def launch(self, stream: StreamLike | None = None) -> None:
        """Replay the graph on a stream."""
        if not self.handle:
            raise CaptureError("the graph was not captured to its end")
        self.device.driver.launch_graph(self.device.index, self.handle, self.device.handle(stream))

    def __repr__(self) -> str:
        return f"<graph {self.handle:#x} on {self.device}>" if self.handle else f"<graph without work on {self.device}>"

    def __del__(self) -> None:
        if getattr(self, "handle", 0) and not sys.is_finalizing():
            self.device.driver.destroy_graph(self.device.index, self.handle)
            for address in self._workspaces:
                self.device.driver.free_now(self.device.index, address)
