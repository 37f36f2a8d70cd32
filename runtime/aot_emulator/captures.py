"""Stream capture: records the work of a stream, and rejects calls that are illegal during capture, like a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aot_emulator.statuses import CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, INVALID_HANDLE, call_error

Work = Callable[[], None]


@dataclass
class _Capture:
    """Work recorded on a stream. is_broken: an illegal call has invalidated the capture."""

    device: int
    work: list[Work] = field(default_factory=list)
    is_broken: bool = False


class Captures:
    """Captures in progress, by stream."""

    def __init__(self) -> None:
        self._by_stream: dict[int, _Capture] = {}

    def __contains__(self, stream: int) -> bool:
        return stream in self._by_stream

    def begin(self, device: int, stream: int) -> None:
        if stream in self._by_stream:
            raise call_error("StreamBeginCapture", CAPTURE_UNSUPPORTED, "the stream is already being captured")
        self._by_stream[stream] = _Capture(device)

    def end(self, stream: int) -> list[Work]:
        """End the capture of a stream and return its work."""
        capture = self._by_stream.pop(stream, None)
        if capture is None:
            raise call_error("StreamEndCapture", INVALID_HANDLE, f"stream {stream:#x} is not being captured")
        if capture.is_broken:
            meaning = "a call during the capture invalidated it"
            raise call_error("StreamEndCapture", CAPTURE_INVALIDATED, meaning)
        return capture.work

    def drop(self, stream: int) -> None:
        """Discard the capture of a stream that is being destroyed."""
        self._by_stream.pop(stream, None)

    def add(self, stream: int, work: Work) -> None:
        """Record work on a stream that is being captured."""
        self._by_stream[stream].work.append(work)

    def refuse(self, call: str, device: int, stream: int) -> None:
        """Reject a call on a captured stream, or on the default stream of its device, and invalidate the capture.

        The default stream would implicitly wait for the captured stream, so GPUs reject work on it.
        """
        broken = [item for key, item in self._by_stream.items() if item.device == device and stream in (0, key)]
        for capture in broken:
            capture.is_broken = True
        if broken and stream:
            raise call_error(call, CAPTURE_UNSUPPORTED, "the stream is being captured")
        if broken:
            meaning = "the default stream cannot be used while another stream is being captured"
            raise call_error(call, CAPTURE_IMPLICIT, meaning)
