"""Try many inputs in a forked process, each within limits. The first failing one is shrunk.

An input fails if it raises an unexpected error, takes too much time or memory, ends its process, or does something
forbidden (`watch`). `FUZZ_COUNT` and `FUZZ_SEED` in the environment replace the number of inputs of each test and their
seed.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from aot.forked_process import ForkedProcess, TimeLimitError, WorkerDiedError

from .watch import Watch

SEED = int(os.environ.get("FUZZ_SEED", "20261122"))
CORPUS = Path(__file__).parent / "corpus"
CPU_SECONDS = 10.0
"""Processor time limit of an input."""
WALL_SECONDS = 120.0
"""Time limit of the first input, and one second more for each of the others."""
MEMORY_BYTES = 1 << 30
"""Memory that the process may take, in addition to what it has when it starts."""
_HARNESS = ("watch.py", "trial.py")
"""Files that raise what they find."""


class Handler(Protocol):
    """Handles inputs of one kind."""

    @property
    def readable(self) -> Path: ...
    def warm_up(self) -> None:
        """Do everything once that imports modules and fills tables."""

    def draw(self, number: int) -> Any: ...
    def prepare(self, given: Any) -> Any: ...
    def handle(self, given: Any, prepared: Any) -> str: ...
    def undo(self, given: Any, prepared: Any) -> None: ...


class CpuLimitError(BaseException):
    """Raised if an input took too long."""


def count_of(default: int) -> int:
    """Return the number of inputs to try: `FUZZ_COUNT`, or the test's default."""
    return int(os.environ.get("FUZZ_COUNT", default))


def try_inputs(make: Callable[[Path], Handler], count: int, folder: Path) -> Counter[str]:
    """Handle the inputs 0 … count - 1; returns a count of each outcome. Raises AssertionError for one that fails.

    Args:
        make: makes a handler, given a folder of its own. It must be picklable.
    """
    own, reached = folder / "inputs", folder / "reached"
    own.mkdir()
    with ForkedProcess(WALL_SECONDS + count) as process:
        try:
            counts, fault = process.run(_try_range, make, own, reached, count)
        except (WorkerDiedError, TimeLimitError) as error:
            raise AssertionError(f"input {reached.read_text()}: {error}") from error
    assert not fault, fault
    return counts


def _try_range(make: Callable[[Path], Handler], folder: Path, reached: Path, count: int) -> tuple[Counter[str], str]:
    handler, watch = make(folder), Watch()
    handler.warm_up()
    _limit_memory(MEMORY_BYTES)
    counts: Counter[str] = Counter()
    for number in range(count):
        reached.write_text(str(number))
        given = handler.draw(number)
        kind, signature, text = _attempt(handler, watch, given)
        if signature:
            small = smaller(given, lambda tried, found=signature: _attempt(handler, watch, tried)[1] == found)
            return counts, f"input {number}: {signature}\n{text}\n{json.dumps(asdict(small))}"
        counts[kind] += 1
    return counts, ""


def _attempt(handler: Handler, watch: Watch, given: Any) -> tuple[str, str, str]:
    """Handle an input; returns (its outcome, its fault's signature, the traceback), of which some are empty."""
    prepared = handler.prepare(given)
    try:
        with watch.over(handler.readable), _cpu_limit(CPU_SECONDS):
            return handler.handle(given, prepared), "", ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return "", _signature(error), "".join(traceback.format_exception(error))[-3000:]
    finally:
        handler.undo(given, prepared)


def _signature(error: BaseException) -> str:
    """Return the type of an error and the innermost function of the packages under test that raised it."""
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


def _limit_memory(nbytes: int) -> None:
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + nbytes, now + nbytes))


def smaller(given: Any, fails: Callable[[Any], bool]) -> Any:
    """Return an input with as few of its `edits` as still make it fail."""
    edits: Sequence[Any] = given.edits
    at = 0
    while at < len(edits):
        fewer = (*edits[:at], *edits[at + 1 :])
        if fails(replace(given, edits=fewer)):
            edits = fewer
        else:
            at += 1
    return replace(given, edits=tuple(edits))


def kept(name: str, kind: type[Any]) -> list[Any]:
    """Return the inputs of a folder of the corpus."""
    found = []
    for path in sorted((CORPUS / name).glob("*.json")):
        data = json.loads(path.read_text())
        del data["fault"]
        found.append(kind(**data | {"edits": tuple(data["edits"])}))
    return found
