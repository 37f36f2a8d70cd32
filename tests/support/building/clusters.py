"""A real cluster on this machine: a scheduler and workers, each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.processes import kill_tree

from .tasks import wait_for


class Cluster:
    """A scheduler, and the workers that are started. Used as a context manager: leaving it kills them all.

    Args:
        folder: created; the working and temporary folders of the scheduler and the workers are in it.
        options: command-line options of `dask scheduler` and `dask worker`.
        environment: variables of the scheduler, in addition to this process's.
    """

    def __init__(self, folder: Path, *options: str, environment: Mapping[str, str] | None = None):
        self.folder, self._options, self._environment = folder, options, environment
        self._started: list[subprocess.Popen[bytes]] = []
        self.address = ""

    def __enter__(self) -> Cluster:
        self.folder.mkdir(parents=True)
        self.scheduler, log = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", *self._options, environment=self._environment
        )
        mark = "Scheduler at:"
        wait_for(lambda: mark in log.read_text())
        self.address = next(line for line in log.read_text().splitlines() if mark in line).split()[-1]
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            kill(process)

    def worker(
        self, *options: str, environment: Mapping[str, str] | None = None
    ) -> tuple[subprocess.Popen[bytes], str]:
        """Start a worker, by default of one thread; return its process and its address."""
        options = (self.address, "--host", "127.0.0.1", "--nthreads", "1", *self._options, *options)
        process, log = self._start("worker", *options, environment=environment)
        wait_for(lambda: "Registered to:" in log.read_text())
        line = next(line for line in log.read_text().splitlines() if "Start worker at:" in line)
        return process, line.split()[-1]

    def _start(
        self, what: str, *options: str, environment: Mapping[str, str] | None = None
    ) -> tuple[subprocess.Popen[bytes], Path]:
        folder = self.folder / f"{len(self._started)}-{what}"
        folder.mkdir()
        log = folder / "log"
        # Of the project nothing is found by relative names, nor by where a worker was started.
        given = {"TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | (environment or {})
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", "--no-dashboard", *options]
        nannies = ["--no-nanny"] if what == "worker" and "--nanny" not in options else []
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, *nannies], cwd=folder, env=os.environ | given, stdout=file, stderr=subprocess.STDOUT
            )
        self._started.append(process)
        return process, log


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and all that it started."""
    if process.poll() is None:
        kill_tree(process.pid)
    process.wait()


def changed(folder: Path, change: str) -> dict[str, str]:
    """Return environment variables by which Python runs a line when it starts."""
    (folder / "changed").mkdir()
    (folder / "changed" / "sitecustomize.py").write_text(change)
    return {"PYTHONPATH": os.pathsep.join([str(folder / "changed"), *filter(None, sys.path)])}
