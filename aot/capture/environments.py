"""Python environments that have the Triton of a captured program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from aot.errors import BuildError
from aot_bundle.terminal import Console

FOLDER = "environments"
"""Folder of environments in our cache."""
INSTALL_LIMIT_S = 1800.0
_VERSION = re.compile(r"\d+(\.\d+){1,3}([a-z0-9.+]{0,40})?")
_COMPLETE = ".complete"
"""File in an environment that is written last."""
_TOLD = 6
"""Most lines of pip in an error."""


@dataclass(frozen=True)
class Environment:
    """A Python that has Triton.

    Attributes:
        name: for messages.
        variables: of the environment of its processes.
    """

    python: Path
    name: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def with_variables(self, variables: Mapping[str, str]) -> Environment:
        return replace(self, variables=variables)


def own_environment() -> Environment:
    """Return the environment of this process."""
    return Environment(Path(sys.executable), f"this Python's Triton {own_version()}")


def own_version() -> str:
    """Return the version of Triton of this process's Python."""
    return metadata.version("triton")


def named_environment(python: Path) -> Environment:
    """Return the environment of a Python. Raises `BuildError` if it cannot be run or lacks Triton."""
    probe = "import importlib.metadata; print(importlib.metadata.version('triton'))"
    try:
        # Not resolved: a virtual environment's Python is a link.
        found = subprocess.run([python, "-I", "-c", probe], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"--python {python} cannot be run: {getattr(error, 'strerror', None) or error}") from None
    if found.returncode:
        raise BuildError(f"--python {python} has no Triton: {found.stderr.strip().splitlines()[-1:]}")
    return Environment(Path(os.path.abspath(python)), f"Triton {found.stdout.strip()} of {python}")  # noqa: PTH100


def made_environment(version: str, cache: Path, console: Console) -> Environment:
    """Return the environment with a version of Triton in our cache; make it there if it is missing, by venv and pip.

    Raises `BuildError`.
    """
    from filelock import FileLock  # where caches are installed, it may be missing

    if not _VERSION.fullmatch(version):
        raise BuildError(f"--triton {version!r} is not a version of Triton; 3.6.0 is one")
    folder = _folder(version, cache)
    found = Environment(folder / "bin" / "python", f"Triton {version}")
    if (folder / _COMPLETE).is_file():
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f"{folder.name}.lock"):
        if not (folder / _COMPLETE).is_file():
            console.print(f"making an environment with Triton {version}, once: {folder}")
            with console.status(f"pip install triton=={version}"):
                _make(folder, version)
    return found


def present_environment(version: str, cache: Path) -> Environment | None:
    """Return the environment with a version of Triton, if it was made before."""
    folder = _folder(version, cache)
    return Environment(folder / "bin" / "python", f"Triton {version}") if (folder / _COMPLETE).is_file() else None


def _folder(version: str, cache: Path) -> Path:
    return (cache / FOLDER).absolute() / f"triton-{version}-{sys.implementation.cache_tag}"


def _make(folder: Path, version: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # begun by a process that was killed
    _run([sys.executable, "-m", "venv", str(folder)], version, "venv")
    # setuptools is imported by Triton 3.4.
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    _run([*pip, "install", "--only-binary", ":all:", f"triton=={version}", "setuptools"], version, "pip")
    (folder / _COMPLETE).touch()


def _run(command: list[str], version: str, tool: str) -> None:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"no environment with Triton {version}: {tool} did not end in {INSTALL_LIMIT_S:g} s") from None
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if line.strip()]
        wrong = [line for line in said if line.startswith("ERROR")] or said
        raise BuildError(
            f"no environment with Triton {version} was made: {tool} failed\n    "
            + "\n    ".join(wrong[-_TOLD:])
            + "\nWithout a network, or for another Python, make one elsewhere and name its Python by --python"
        )
