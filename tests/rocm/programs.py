"""Programs of tests, above the session's release of ROCm and GPUs of their own, by `aotbundle emulate`."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    done = subprocess.run(
        emulation(program, *options), env=environment(**variables), capture_output=True, text=True, timeout=_LIMIT_S
    )
    return Done(done.returncode, done.stdout, done.stderr)


def emulation(program: Sequence[str], *options: str) -> list[str]:
    """The command that does so."""
    return [sys.executable, "-m", "aot_bundle", "emulate", *options, "--", *program]


def script(text: str, *arguments: str | Path, more: tuple[Path, ...] = ()) -> list[str]:
    """The command that runs a Python script with the release's libraries, and those in further folders."""
    rocm = Rocm(inside().folder, more)
    return rocm.python("-c", textwrap.dedent(text), *arguments, executable=PYTHON)


def environment(**more: str) -> dict[str, str]:
    """The session's, without its own GPUs."""
    found = {name: value for name, value in os.environ.items() if name not in _OF_THE_SESSION}
    return found | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | more
