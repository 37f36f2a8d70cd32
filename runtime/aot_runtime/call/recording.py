"""Record the distinct calls that a program makes.

A recording covers the whole process, as calls come from any thread and any bundle. Calls are noted when they are
planned. While recording, a repeated call also increments a counter; otherwise its cost is unchanged.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from aot_runtime.contract.arch import device_names
from aot_runtime.errors import ArgumentError, NoVariantError
from aot_runtime.texts import escaped

from .choosing import Decision
from .recorder import RECORD_VARIABLE, current, swap

if TYPE_CHECKING:
    from aot_runtime.contract.layout import Layout
    from aot_runtime.contract.records import Op
    from aot_runtime.device.device import Device

    from .entries import Entry
    from .planner import Planner

MAX_CALLS = 1000
"""Maximum number of distinct calls in a recording. Further calls are dropped, with a warning on close."""


class Caller(Protocol):
    """An op that plans its calls."""

    planner: Planner
    device: Device

    def decide(self, layouts: Mapping[str, Any], scalars: Mapping[str, Any]) -> Decision: ...


class Note:
    """A distinct call and its lock-free counter. Read `total` only once: it increments the counter, too."""

    def __init__(self, entry: Entry):
        self.entry, self.add = entry, itertools.count().__next__

    def total(self) -> int:
        """Return the number of calls."""
        return self.add()

    def counting(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a plan's function to count its successful calls."""
        add = self.add

        def run_and_count(*arguments: Any) -> Any:
            result = run(*arguments)
            add()
            return result

        return run_and_count


class Recording:
    """An active recording. It is written to the file when it is closed or the process exits.

    Attributes:
        path: the calls file.
        launch: True if calls are also launched.
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
        """Plan and note a new call. A valid call is noted even if no variant fits it. Raises `ArgumentError`."""
        here = caller.device.properties
        hardware = device_names(here.arch, here.num_cus, here.num_xcds)
        laid_out = lay_out(caller.planner, layouts, scalars, caller.device.key, hardware)
        note = self._note(caller.planner.entry(layouts, scalars, laid_out.names))
        if not self.launch:
            return laid_out, note
        try:
            return caller.decide(layouts, scalars), note
        except NoVariantError:
            note.add()
            raise

    def contract(self, op: Op, given: frozenset[str]) -> Op:
        """Return the contract by which a call of `op` is made: outputs that no launch writes are zeroed instead.

        Args:
            given: the tensors that the caller passes.
        """
        if self.launch:
            return op
        replace = msgspec.structs.replace
        allocated = [tensor.role == "output" and tensor.name not in given for tensor in op.tensors]
        tensors = (replace(tensor, zero=new) for tensor, new in zip(op.tensors, allocated, strict=True))
        return replace(op, tensors=tuple(tensors))

    def _note(self, entry: Entry) -> Note:
        with self._lock:
            key = repr(entry)
            if key not in self._notes and len(self._notes) >= MAX_CALLS:
                self._passed_over += 1
                return Note(entry)
            return self._notes.setdefault(key, Note(entry))

    def close(self) -> None:
        """End the recording and merge its calls into the file. Raises `CallsFileError`.

        A forked child process writes nothing.
        """
        if not swap(self, None) or os.getpid() != self._process:
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


def lay_out(
    planner: Planner,
    layouts: Mapping[str, Layout | None],
    scalars: Mapping[str, Any],
    device: tuple[str, int],
    hardware: Mapping[str, Any],
) -> Decision:
    """Return the outputs and names of a call without choosing variants. Raises `ArgumentError`.

    Args:
        device: (driver name, device index), where outputs are allocated.
        hardware: values of the names that describe the device; see `device_names`.
    """
    with planner.named_failures():
        call = planner.checking.check(layouts, scalars, device, hardware)
    present = {name: layout for name, layout in call.layouts.items() if layout is not None}
    return Decision(call.names, False, (), present, (), ())


def record(path: str | os.PathLike[str], *, launch: bool = True) -> Recording:
    """Record the calls that the process makes, for `aotbuild --for`.

    Each distinct call of an op is noted once, with the number of times it was made. An entry holds shapes, dtypes, and
    the scalars, strides and addresses that affect the choice of variants. Calls that no variant fits are noted, too.
    The file is written when the recording is closed or the process exits. Existing entries are kept and counts are
    added up, so several processes may record to one file.

    Args:
        path: the calls file, YAML. Reading and writing it needs the extra `record`.
        launch: False launches nothing: calls return arrays of zeros and leave inout tensors unchanged. This records
            a program without a GPU, or before its variants are built.

    Returns:
        the recording, a context manager with a method `close`.

    Raises:
        CallsFileError: the file exists but is not a calls file, it cannot be written, or the extra is not installed.
        ArgumentError: another recording is active in this process.

    Examples:
        >>> with aot_runtime.record("calls.yaml"):
        ...     attention.flash_attention(q, k, v, causal=True)
    """
    from .calls_file import check

    chosen = Path(path).absolute()
    check(chosen)
    recording = Recording(chosen, launch)
    if not swap(None, recording):
        raise ArgumentError(f"{current()} runs already; close it first")
    atexit.register(recording.close)
    return recording


_by_environment = threading.Lock()
"""Acquired once and never released: the environment starts at most one recording per process."""


def record_by_environment() -> None:
    """Start recording to the file in AOTBUILD_RECORD, unless this was done before or a recording is active."""
    path = os.environ.get(RECORD_VARIABLE, "")
    if path and current() is None and _by_environment.acquire(blocking=False):
        record(path)
