"""Programs that the check runs, and findings of its parts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.support.processes import kill_tree

TIMEOUT_S = 1800.0
SHOWN_LINES = 12
"""Last lines of a failed program's output that a report repeats."""

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Result:
    """A program that ended: its exit status, its stdout and stderr together, and the seconds that it took."""

    status: int
    output: str
    seconds: float

    def tail(self) -> str:
        """Return the end of the output, indented."""
        lines = self.output.rstrip().splitlines()
        left_out = [f"… {len(lines) - SHOWN_LINES} lines before"] if len(lines) > SHOWN_LINES else []
        return "\n".join(f"      {line}" for line in [*left_out, *lines[-SHOWN_LINES:]])


@dataclass
class Findings:
    """The findings of a part of the check. `done` summarises it; failures may have several lines."""

    done: str = ""
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def run(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str], *, timeout: float = TIMEOUT_S, echo: bool = False
) -> Result:
    """Run a program to its end; it and what it started are killed after `timeout` seconds. `echo` repeats its lines."""
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=cwd, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    timer = threading.Timer(timeout, _kill, [process])
    timer.start()
    lines = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if echo:
                print(f"      {line}", end="", flush=True)
        status = process.wait()
    except BaseException:
        _kill(process)
        raise
    finally:
        timed_out = not timer.is_alive()
        timer.cancel()
    if timed_out:
        lines.append(f"killed after {timeout:.0f} s\n")
    return Result(status, "".join(lines), time.monotonic() - started)


def _kill(process: subprocess.Popen[str]) -> None:
    kill_tree(process.pid)


def each(function: Callable[[Item], Value], items: Iterable[Item], jobs: int) -> Iterator[tuple[Item, Value]]:
    """Return (item, function(item)) of all items, in their order; up to `jobs` run at a time."""
    listed = list(items)
    with ThreadPoolExecutor(jobs) as pool:
        yield from zip(listed, pool.map(function, listed), strict=True)


def environment(cache: Path) -> dict[str, str]:
    """Return this process's environment with its interpreter's programs first, `cache` as the only cache, and no GPU
    visible."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    gpus = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    hidden = dict.fromkeys((*gpus, "AOTBUILD_SHARED_CACHE"), "")
    return os.environ | hidden | {"PATH": programs, "AOTBUILD_CACHE_DIR": str(cache), "PYTHONUNBUFFERED": "1"}
