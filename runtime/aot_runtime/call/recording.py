"""Recordings: which calls a program makes, noted where a call is planned.

A recording is of the whole process, as calls come from any thread and any bundle. What one costs: while none runs, a
look at a variable where a call is planned; while one runs, a call of a known plan counts itself.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from aot_runtime.errors import NoVariantError
from aot_runtime.texts import escaped

from .recorder import begin, current, end

if TYPE_CHECKING:
    from .decision import Decision
    from .entries import Entry
    from .planner import Planner

MAX_CALLS = 1000
"""Distinct calls of a recording; further ones are not noted, which a warning says when it is written."""


class Caller(Protocol):
    """An op that makes plans."""

    planner: Planner

    def decide(self, layouts: Mapping[str, Any], scalars: Mapping[str, Any]) -> Decision: ...

    def lay_out(self, layouts: Mapping[str, Any], scalars: Mapping[str, Any]) -> Decision: ...


class Note:
    """A distinct call. `add` counts one, from any thread and without a lock; so does `total`, which is asked once."""

    def __init__(self, entry: Entry):
        self.entry, self.add = entry, itertools.count().__next__

    def total(self) -> int:
        """How often the call was made."""
        return self.add()

    def counting(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """A plan's function that counts the calls that it has made."""
        add = self.add

        def run_and_count(*arguments: Any) -> Any:
            result = run(*arguments)
            add()
            return result

        return run_and_count


class Recording:
    """A recording that runs. Its calls are in the file once it is closed, or the process ends.

    Attributes:
        path: the calls file.
        launch: whether calls are launched, too.
    """

    def __init__(self, path: Path, launch: bool):
        self.path, self.launch = path, launch
        self._notes: dict[str, Note] = {}
        self._passed_over = 0
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<recording in {self.path}, {len(self._notes)} calls{'' if current() is self else ', closed'}>"

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def plan(self, caller: Caller, layouts: Mapping[str, Any], scalars: Mapping[str, Any]) -> tuple[Decision, Note]:
        """The decision on a new call, and the note of it. Raises `ArgumentError`; a call that the contract allows is
        noted where nothing is built for it, too."""
        laid_out = caller.lay_out(layouts, scalars)
        note = self._note(caller.planner.entry(layouts, scalars, laid_out.names))
        if not self.launch:
            return laid_out, note
        try:
            return caller.decide(layouts, scalars), note
        except NoVariantError:
            note.add()
            raise

    def _note(self, entry: Entry) -> Note:
        with self._lock:
            key = repr(entry)
            if key not in self._notes and len(self._notes) >= MAX_CALLS:
                self._passed_over += 1
                return Note(entry)
            return self._notes.setdefault(key, Note(entry))

    def close(self) -> None:
        """End the recording and write what was called to the file, merged with what is there.

        Raises `CallsFileError` where that cannot be done. A process that was forked from the one that records writes
        nothing: it has its own recording, or none.
        """
        if not end(self) or os.getpid() != self._process:
            return
        atexit.unregister(self.close)
        from .calls_file import merge

        totals = [(note.entry, note.total()) for note in self._notes.values()]
        if made := [{**entry, "count": total} for entry, total in totals if total]:
            merge(self.path, made)
        if self._passed_over:
            import warnings

            told = f"{self.path} has the first {MAX_CALLS} distinct calls; {self._passed_over} plans were not noted"
            warnings.warn(escaped(told), RuntimeWarning, stacklevel=2)


def record(path: str | os.PathLike[str], *, launch: bool = True) -> Recording:
    """Note which calls the process makes, for `aotbuild --for`.

        with aot_runtime.record("calls.yaml"):
            ...  # the program

    Each distinct call of an op is noted once, with how often it was made: shapes, dtypes, the scalars that decide
    something, and strides and addresses where they do. So is a call that the bundle has no variant for. The file is
    written when the recording is closed, or the process ends; what is in it already is kept, and counts are added.
    Several processes may record in one file.

    Args:
        path: the calls file, YAML. Reading and writing it needs the extra `record`.
        launch: False: nothing is launched. Calls only return arrays of zeros, so that a program can be recorded with
            no GPU, and with a bundle that has not the variants yet. Values of inout tensors stay as they are.

    Returns:
        the recording: a context manager, with a method `close`.

    Raises:
        CallsFileError: the file is there and is no calls file, or cannot be written, or the extra is not installed.
        ArgumentError: another recording runs in this process.
    """
    from .calls_file import check

    chosen = Path(path).absolute()
    check(chosen)
    recording = Recording(chosen, launch)
    begin(recording)
    atexit.register(recording.close)
    return recording


_by_environment = threading.Lock()
"""Taken for good by the recording that the environment asks for: it begins once in a process."""


def record_by_environment() -> None:
    """Record in the file that AOTBUILD_RECORD names, unless a recording runs or that one has begun before."""
    path = os.environ.get("AOTBUILD_RECORD", "")
    if path and current() is None and _by_environment.acquire(blocking=False):
        record(path)
