"""Run a test session, or a program of a test, on AMD's own libraries and an emulated GPU."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .packages import Rocm, Unavailable, cache_folder, install

ROOT_VARIABLE = "AOTBUILD_TEST_ROCM"
"""Environment variable of a session inside: the folder of the release."""
_PYTHON = Path(sys.executable)


def is_inside() -> bool:
    """Tell whether this process has the libraries and the GPU."""
    return ROOT_VARIABLE in os.environ


def installed(release: str) -> Rocm:
    """A release, in the cache. Raises `Unavailable`."""
    return install(cache_folder() / release, release)


def run_inside(release: str, arguments: Sequence[str]) -> int:
    """Run pytest with the same arguments there: its exit status. Tests are skipped where that is not possible."""
    from aot_emulator.kfd.emulated_program import emulated_machine
    from aot_runtime.errors import DeviceError

    try:
        rocm = installed(release)
        with emulated_machine(("mi300x", "mi300x")) as environment:
            command = rocm.python("-m", "pytest", *arguments, executable=_PYTHON)
            return subprocess.run(command, env=environment | {ROOT_VARIABLE: str(rocm.folder)}).returncode
    except (Unavailable, DeviceError) as error:
        print(f"tests with --on rocm are skipped: {error}", file=sys.stderr)
        return 0


def inside_too(workers: Sequence[str]) -> list[str]:
    """Have xdist's workers, given by their execnet specifications, started as this session was."""
    python = shlex.join(inside().python(executable=_PYTHON))
    return [f"{worker}//python={python}" for worker in workers]


def inside() -> Rocm:
    """The release that this session has. Only with `--on rocm`."""
    return Rocm(Path(os.environ[ROOT_VARIABLE]))
