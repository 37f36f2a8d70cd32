"""Builds that are forked off this process, where what a build imports is imported already: one takes tenths of a
second, and may be killed."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aot.build  # noqa: F401  (and with it all that a fork needs)
from aot.cli import main
from aot_runtime.bundle.reading import read_blob, read_checked, read_index
from tests.support.processes import descendants, gone

MANIFEST = Path(__file__).parents[1] / "support" / "small" / "small.yaml"
BUNDLE = "small-gfx942"
LIMIT_S, HUNG_STATUS = 300.0, 98
"""Seconds after which a build is taken for one that waits for ever, and what its exit status is said to be then."""
_PIPE_BYTES = 1 << 20


@dataclass(frozen=True)
class Place:
    """A place for builds: output, cache and temporary files below one folder."""

    folder: Path

    @property
    def output(self) -> Path:
        return self.folder / "out"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def bundle(self) -> Path:
        return self.output / BUNDLE

    def make(self) -> Place:
        for path in (self.output, self.cache, self.temporary):
            path.mkdir(parents=True, exist_ok=True)
        return self


@dataclass
class Build:
    """A build in a process of its own. `processes`: its processes that were seen alive."""

    pid: int
    printed: int
    """The pipe that it prints to: files may be limited."""
    started: float
    processes: set[int] = field(default_factory=set)
    _text: bytes = b""

    def close(self) -> None:
        os.close(self.printed)

    def look(self) -> list[int]:
        """Return its processes that are alive now."""
        self.processes.update(descendants(self.pid))
        return [pid for pid in sorted(self.processes) if not gone(pid)]

    @property
    def said(self) -> str:
        """Output so far."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.printed, 1 << 16):
                self._text += chunk
        return self._text.decode(errors="replace")

    def wait(self) -> int:
        """Wait for its exit status; a negative one is the signal that ended it. A build that hangs is killed:
        `HUNG_STATUS`."""
        while time.monotonic() - self.started < LIMIT_S:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return HUNG_STATUS

    def wait_for_processes(self, seconds: float = 10.0) -> list[int]:
        """Processes that are alive some time after the build's own has ended."""
        deadline = time.monotonic() + seconds
        while (alive := [pid for pid in self.processes if not gone(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        return alive


def start(place: Place, wanted: str, *, jobs: int = 1, largest_file: int | None = None) -> Build:
    """Start a build of some of small.yaml.

    Args:
        wanted: as for `--filter`.
        largest_file: bytes that it may write to one file, as if the disk were full then.
    """
    started = time.monotonic()
    printed, printer = os.pipe()
    fcntl.fcntl(printed, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.set_blocking(printed, False)
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            _become(place, printer, largest_file)
            words = ["--arch", "gfx942", str(MANIFEST), "-o", str(place.output), "--cache-dir", str(place.cache)]
            main([*words, "--jobs", str(jobs), "--filter", wanted])
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(printer)
    return Build(pid, printed, started)


def _become(place: Place, printer: int, largest_file: int | None) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for stream in (1, 2):
        os.dup2(printer, stream)
    # A test's runner may have put streams of its own there.
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1, closefd=False) for stream in (1, 2))
    os.environ["TMPDIR"] = str(place.temporary)
    tempfile.tempdir = None
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))


def run(place: Place, wanted: str, *, jobs: int = 1, largest_file: int | None = None) -> tuple[int, str, float]:
    """(exit status, what it printed, seconds) of a build."""
    build = start(place, wanted, jobs=jobs, largest_file=largest_file)
    status = build.wait()
    seconds = time.monotonic() - build.started
    said = build.said
    build.close()
    return status, said, seconds


def opened(folder: Path) -> str:
    """The id of a bundle whose every file was read, as a device would have it."""
    index = read_index(folder)
    for blob in index.blobs.values():
        read_blob(folder, blob, index.target.arch)
    for case in index.selftest:
        read_checked(folder, case.vectors, "selftest vectors")
    return index.id


def leftovers(place: Place) -> list[str]:
    """Leftovers that builds must not leave: folders of pools, and bundles that were being written."""
    found = [*place.temporary.glob("aotbuild-*"), *place.bundle.glob(".aotbuild-*"), *place.cache.rglob(".new-*")]
    return sorted(str(path.relative_to(place.folder)) for path in found)
