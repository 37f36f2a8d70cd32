"""Runs many inputs in forked workers, each input held to its limits, and keeps those that fail.

An input fails that raises anything but the errors that its handler expects, that takes too long or too much memory,
that ends its process, or that has something done which no input may (`watch`). A worker that is ended is replaced, and
goes on with the next input.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import resource
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from .outcomes import Outcomes
from .watch import Watch

CPU_SECONDS = 10.0
"""Time of the processor that an input may take."""
WALL_SECONDS = 120.0
"""Time after which a worker that says nothing is killed: it waits for something, or does not come out of C code."""
MEMORY_BYTES = 1 << 30
"""Memory that a worker may take, on top of what it has at its start."""
_CHUNK = 200
_WATCHERS = ("watch.py", "campaign.py")
"""Files of the harness, which raise what they found out."""
_STATE = struct.Struct("@qd")
"""What a worker is at: the input's number, and since when; zeros while it is being written."""


class Handler(Protocol):
    """A kind of inputs."""

    @property
    def readable(self) -> Path: ...
    def warm_up(self) -> None:
        """Do once what imports and fills tables."""

    def draw(self, number: int) -> Any: ...
    def prepare(self, given: Any) -> Any: ...
    def handle(self, given: Any, prepared: Any) -> str: ...
    def undo(self, given: Any, prepared: Any) -> None: ...


class TimeLimitError(BaseException):
    """An input took too long."""


@dataclass(frozen=True)
class Failure:
    """An input that failed: its number, what happened, and what tells this fault from others."""

    number: int
    given: Any
    text: str
    signature: str


def attempt(handler: Handler, watch: Watch, given: Any) -> tuple[str, str, str]:
    """(what became of an input, its fault or nothing, the fault's signature)."""
    prepared = handler.prepare(given)
    try:
        with watch.over(handler.readable), _cpu_limit(CPU_SECONDS):
            return handler.handle(given, prepared), "", ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return "", "".join(traceback.format_exception(error))[-3000:], _signature(error)
    finally:
        handler.undo(given, prepared)


def _signature(error: BaseException) -> str:
    """Its type and where it was raised, in the packages under test where it came from there."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name not in _WATCHERS
    ]
    ours = [frame for frame in frames if "/aot" in frame.filename] or frames
    return f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].name}"


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeLimitError(f"more than {seconds:g} s of the processor")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Campaign:
    """A run of inputs `0 … count - 1` on some workers.

    Args:
        make: makes the handler in a worker, given a folder of its own.
        on_failure: called in this process, with each failure whose signature is new.
    """

    def __init__(
        self,
        make: Callable[[Path], Handler],
        count: int,
        workers: int,
        folder: Path,
        on_failure: Callable[[Failure], None],
    ):
        self._make, self._count, self._workers, self._folder = make, count, workers, folder
        self._on_failure = on_failure
        self._signatures: set[str] = set()
        self.outcomes = Outcomes()

    def run(self) -> Iterator[int]:
        """Run; yields how many are done, now and then."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            self._make(Path(folder)).warm_up()  # the workers inherit what that imports
        workers = [_Worker(self, number) for number in range(self._workers)]
        try:
            while any(worker.is_running for worker in workers):
                time.sleep(0.05)
                for worker in workers:
                    worker.poll()
                yield self.outcomes.total
        finally:
            for worker in workers:
                worker.kill()

    def failed(self, failure: Failure) -> None:
        """Take note of a failure; of those of one signature the first is kept."""
        is_new = failure.signature not in self._signatures
        self._signatures.add(failure.signature)
        self.outcomes.add(failure.signature, failure.text if is_new else failure.signature, f"input {failure.number}")
        if is_new:
            self._on_failure(failure)

    def serve(self, number: int, first: int, state: mmap.mmap, results: Connection) -> None:
        """A worker's process: every `workers`-th input, from `first` on."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=f"{number}-") as folder:
            handler, watch = self._make(Path(folder)), Watch()
            limit_memory(MEMORY_BYTES)
            outcomes = Outcomes()
            for done, at in enumerate(range(first, self._count, self._workers)):
                _STATE.pack_into(state, 0, at, time.monotonic())
                given = handler.draw(at)
                kind, fault, signature = attempt(handler, watch, given)
                if fault:
                    results.send(Failure(at, given, fault, signature))
                else:
                    outcomes.add(kind)
                if done % _CHUNK == _CHUNK - 1:
                    results.send(outcomes)
                    outcomes = Outcomes()
            results.send(outcomes)


def limit_memory(nbytes: int) -> None:
    """Let this process have so much more memory than it has."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + nbytes, now + nbytes))


class _Worker:
    """A worker as its parent sees it."""

    def __init__(self, campaign: Campaign, number: int):
        self._campaign, self._number = campaign, number
        self._state = mmap.mmap(-1, _STATE.size)
        self._start(number)

    def _start(self, first: int) -> None:
        self._pending = first
        self._results, theirs = multiprocessing.Pipe(duplex=False)
        self._pid = os.fork()
        if self._pid == 0:
            status = 1
            try:
                self._campaign.serve(self._number, first, self._state, theirs)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        theirs.close()
        _STATE.pack_into(self._state, 0, first, time.monotonic())
        self.is_running = True

    def poll(self) -> None:
        if not self.is_running:
            return
        self._take()
        at, since = _STATE.unpack_from(self._state)
        if since and time.monotonic() - since > WALL_SECONDS:
            self.kill()
            self._replace(at, f"more than {WALL_SECONDS:g} s", "stuck")
            return
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            self._take()
            self.is_running = False
            if status:
                ending = f"the process ended: {os.waitstatus_to_exitcode(status)}"
                self._replace(_STATE.unpack_from(self._state)[0], ending, ending)

    def _take(self) -> None:
        with suppress(EOFError):
            while self._results.poll():
                found = self._results.recv()
                if isinstance(found, Failure):
                    self._campaign.failed(found)
                else:
                    self._campaign.outcomes.counts.update(found.counts)

    def _replace(self, at: int, what: str, signature: str) -> None:
        self._campaign.failed(Failure(at, None, what, signature))
        self._start(at + self._campaign._workers)

    def kill(self) -> None:
        if self.is_running:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self.is_running = False
