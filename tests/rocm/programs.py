"""Run programs of tests with `aotbundle emulate`, on the session's release of ROCm and separate GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes import descendants, kill

from .packages import Rocm
from .session import inside

ROOT = Path(__file__).parents[2]
_LIMIT_S = 120
_OF_THE_SESSION = ("LD_PRELOAD", "AOTBUILD_KFD")
PYTHON = Path(sys.executable)


@dataclass(frozen=True)
class Done:
    """The end of a program: the exit status of `aotbundle emulate`, and what was written."""

    status: int
    output: str
    errors: str


def emulate(program: Sequence[str], *options: str, **variables: str) -> Done:
    """Run a program with `aotbundle emulate OPTIONS`."""
    return finished(emulation(program, *options), environment(**variables))


def finished(command: Sequence[str], variables: Mapping[str, str], limit_s: float = _LIMIT_S) -> Done:
    """Run a command to its end. If it takes too long, kill it and all that it started, and fail with what they did."""
    running = subprocess.Popen(command, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = running.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        started = [running.pid, *descendants(running.pid)]
        doing = "\n".join(line for pid in started for line in threads_of(pid))
        for pid in started:
            kill(pid)
        output, errors = running.communicate()
        pytest.fail(f"{command} has not ended after {limit_s} s:\n{doing}\n{output}{errors}")
    return Done(running.returncode, output, errors)


def threads_of(pid: int) -> Iterator[str]:
    """Return the threads of a process, one per line: state, system call with arguments, and the file of the code that
    waits."""
    with suppress(OSError):  # it has just ended
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        files = [(*(int(end, 16) for end in line.split()[0].split("-")), line.split()[-1]) for line in lines]
        for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            call = (task / "syscall").read_text().split()
            at = int(call[-1], 16) if len(call) > 1 else 0
            places = [name for start, stop, name in files if start <= at < stop]
            yield f"{pid} {(task / 'comm').read_text().strip()}: {state} {' '.join(call[:-2])} {' '.join(places)}"


def emulation(program: Sequence[str], *options: str) -> list[str]:
    """Return the command of `aotbundle emulate OPTIONS` with a program."""
    return [sys.executable, "-m", "aot_bundle", "emulate", *options, "--", *program]


def script(text: str, *arguments: str | Path, more: tuple[Path, ...] = ()) -> list[str]:
    """The command that runs a Python script with the release's libraries, and those in further folders."""
    rocm = Rocm(inside().folder, more)
    return rocm.python("-c", textwrap.dedent(text), *arguments, executable=PYTHON)


def environment(**more: str) -> dict[str, str]:
    """The session's, without its own GPUs."""
    found = {name: value for name, value in os.environ.items() if name not in _OF_THE_SESSION}
    return found | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | more
