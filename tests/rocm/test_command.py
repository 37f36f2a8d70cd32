"""The command `python -m tests.rocm`."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from click.testing import CliRunner

from . import __main__ as command
from .packages import Unavailable


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were started: those for HIP 7.2.4 fail."""
    found: list[list[str]] = []

    def run(arguments: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        found.append(arguments)
        return subprocess.CompletedProcess(arguments, "7.2.4" in arguments)

    monkeypatch.setattr(command.subprocess, "run", run)
    monkeypatch.setattr(command, "installed", lambda release: None)
    return found


def test_selftests_run_on_every_release_with_slow_ones(started: list[list[str]]):
    done = CliRunner().invoke(command.main, ["selftests", "-x"])
    assert [arguments[arguments.index("--rocm") + 1] for arguments in started] == ["6.4.3", "7.2.4"]
    assert all("slow or not slow" in arguments and "-x" in arguments for arguments in started)
    assert done.exit_code == 1 and done.output == "Error: selftests fail on HIP 7.2.4\n"


def test_selftests_fail_without_the_packages(started: list[list[str]], monkeypatch: pytest.MonkeyPatch):
    def installed(release: str) -> None:
        raise Unavailable(f"no {release}")

    monkeypatch.setattr(command, "installed", installed)
    done = CliRunner().invoke(command.main, ["selftests"])
    assert (done.exit_code, done.output, started) == (1, "Error: no 6.4.3\n", [])
