"""Streams that are being captured: what they are given is kept, and some calls are refused meanwhile, as on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aot_emulator.statuses import CAPTURE_IMPLICIT, CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, INVALID_HANDLE, call_error

Work = Callable[[], None]


@dataclass
class _Capture:
    """What a stream was given so far. is_broken: some call broke the capture, so that its end fails."""

    device: int
    work: list[Work] = field(default_factory=list)
    is_broken: bool = False


class Captures:
    """The captures in progress."""

    def __init__(self) -> None:
        self._by_stream: dict[int, _Capture] = {}

    def __contains__(self, stream: int) -> bool:
        return stream in self._by_stream

    def begin(self, device: int, stream: int) -> None:
        if stream in self._by_stream:
            raise call_error("StreamBeginCapture", CAPTURE_UNSUPPORTED, "the stream is being captured already")
        self._by_stream[stream] = _Capture(device)

    def end(self, stream: int) -> list[Work]:
        """What the stream was given."""
        capture = self._by_stream.pop(stream, None)
        if capture is None:
            raise call_error("StreamEndCapture", INVALID_HANDLE, f"{stream:#x} is no stream that is being captured")
        if capture.is_broken:
            meaning = "a call was made meanwhile that no capture survives"
            raise call_error("StreamEndCapture", CAPTURE_INVALIDATED, meaning)
        return capture.work

    def drop(self, stream: int) -> None:
        """End the capture of a stream that is destroyed."""
        self._by_stream.pop(stream, None)

    def add(self, stream: int, work: Work) -> None:
        """Keep some work of a stream that is being captured."""
        self._by_stream[stream].work.append(work)

    def refuse(self, call: str, device: int, stream: int) -> None:
        """Refuse a call on a stream that is being captured, or on its device's default stream, and break the capture.

        The default stream would wait for the stream that is captured, so no GPU takes anything on it.
        """
        broken = [item for key, item in self._by_stream.items() if item.device == device and stream in (0, key)]
        for capture in broken:
            capture.is_broken = True
        if broken and stream:
            raise call_error(call, CAPTURE_UNSUPPORTED, "the stream is being captured")
        if broken:
            meaning = "the default stream takes nothing while another stream is being captured"
            raise call_error(call, CAPTURE_IMPLICIT, meaning)
