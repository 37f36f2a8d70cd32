"""Run many inputs in forked processes, each input within its limits, and collect those that fail.

An input fails if it raises anything but the errors that its handler expects, takes too long or too much memory, ends
its process, or does something that no input may (`watch`).
"""

from __future__ import annotations

import resource
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aot.forked_process import ForkedProcess, TimeLimitError, WorkerDiedError

from .outcomes import Outcomes
from .watch import Watch

CPU_SECONDS = 10.0
"""Processor time limit of an input."""
WALL_SECONDS = 120.0
"""Time limit of an input that waits, or does not return from C code."""
MEMORY_BYTES = 1 << 30
"""Memory that a process may take, in addition to what it has when it starts."""
CHUNK = 500
"""Inputs of one process."""
_HARNESS = ("watch.py", "campaign.py")
"""Files that raise what they find."""


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


class CpuLimitError(BaseException):
    """An input took too long."""


@dataclass(frozen=True)
class Failure:
    """An input that failed: its number, what happened, and the signature that distinguishes the fault from others."""

    number: int
    given: Any
    text: str
    signature: str


def attempt(handler: Handler, watch: Watch, given: Any) -> tuple[str, str, str]:
    """Handle an input; returns (its outcome, its fault, the fault's signature), of which some are empty."""
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
    """The type of an error and the innermost function of the packages under test that raised it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name not in _HARNESS]
    ours = [frame for frame in frames if "/aot" in frame.filename] or frames
    return f"{type(error).__name__} at {Path(ours[-1].filename).name}:{ours[-1].name}"


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise CpuLimitError(f"more than {seconds:g} s of the processor")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run_inputs(
    make: Callable[[Path], Handler], count: int, folder: Path, on_failure: Callable[[Failure], None]
) -> Iterator[Outcomes]:
    """Run the inputs 0 … count - 1; yields the outcomes of each chunk.

    Args:
        make: makes a handler, given a folder of its own. It must be picklable.
        on_failure: called with the first failure of each signature.
    """
    with tempfile.TemporaryDirectory(dir=folder) as warm:
        make(Path(warm)).warm_up()  # the forked processes inherit what this imports
    known: set[str] = set()
    for start in range(0, count, CHUNK):
        outcomes = Outcomes()
        for kinds, failures in _tried(make, folder, range(start, min(start + CHUNK, count))):
            outcomes.counts.update(kinds)
            for failure in failures:
                is_new = failure.signature not in known
                known.add(failure.signature)
                text = failure.text if is_new else failure.signature
                outcomes.add(failure.signature, text, f"input {failure.number}")
                if is_new:
                    on_failure(failure)
        yield outcomes


Tried = tuple[list[str], list[Failure]]
"""The outcomes of inputs, and the inputs that failed."""


def _tried(make: Callable[[Path], Handler], folder: Path, numbers: range) -> Iterator[Tried]:
    try:
        yield _forked(make, folder, numbers)
    except (WorkerDiedError, TimeLimitError) as error:
        tried = [*_one_by_one(make, folder, numbers)]
        yield from tried
        if not any(failures for _, failures in tried):  # none of them does it alone
            yield [], [Failure(numbers[0], None, f"one of {len(numbers)} inputs: {error}", str(error))]


def _one_by_one(make: Callable[[Path], Handler], folder: Path, numbers: range) -> Iterator[Tried]:
    for number in numbers:
        try:
            yield _forked(make, folder, range(number, number + 1))
        except (WorkerDiedError, TimeLimitError) as error:
            yield [], [Failure(number, None, str(error), str(error))]


def _forked(make: Callable[[Path], Handler], folder: Path, numbers: range) -> Tried:
    limit_s = WALL_SECONDS + len(numbers)
    with tempfile.TemporaryDirectory(dir=folder) as own, ForkedProcess(limit_s) as process:
        return process.run(_try_range, make, Path(own), numbers)


def _try_range(make: Callable[[Path], Handler], folder: Path, numbers: range) -> Tried:
    handler, watch = make(folder), Watch()
    limit_memory(MEMORY_BYTES)
    kinds, failures = [], []
    for number in numbers:
        given = handler.draw(number)
        kind, fault, signature = attempt(handler, watch, given)
        if fault:
            failures.append(Failure(number, given, fault, signature))
        else:
            kinds.append(kind)
    return kinds, failures


def limit_memory(nbytes: int) -> None:
    """Limit the memory that this process takes from now on."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + nbytes, now + nbytes))
