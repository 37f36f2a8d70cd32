"""A worker process that rebuilds captured kernels: another Python, which has the captured program's Triton.

It is held as the processes are that run kernel files (`aot.forked_process`): a process group of its own, a time limit
for each answer, and an end with this process, whatever it is doing. Its environment is bare.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import aot_capture
from aot.compile.diagnostics import diagnostics, errors, foremost, last_words, ptxas_output
from aot.errors import CompileError
from aot.forked_process import TimeLimitError, WorkerDiedError, die_with, ending
from aot_runtime.folders import opened_folder

from .environments import Environment

MAX_ANSWER_BYTES = 64 << 20
MAX_FILE_BYTES = 256 << 20
"""Largest file of a kernel that is read."""
START_LIMIT_S = 120.0
"""Time limit of importing Triton and of hashing its files."""
_SCRIPT = Path(aot_capture.__file__).parent / "rebuild.py"
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "CC", "TRITON_HIP_LLD_PATH")
"""Variables of this environment that workers have. The last names the linker of Triton 3.4 for HIP."""
Message = Mapping[str, Any]


class WorkerProcess:
    """A process, and the folder that it writes to."""

    def __init__(self, environment: Environment, folder: Path):
        self.folder, self.jobs = folder, 0
        reader, self._lifeline = os.pipe()
        variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._process = subprocess.Popen(
            [environment.python, "-I", "-X", "utf8", _SCRIPT, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={**variables, **environment.variables, "HOME": str(folder), "TMPDIR": str(folder)},
            cwd=folder,
            pass_fds=[reader],
            process_group=0,
            preexec_fn=partial(die_with, reader),
        )
        os.close(reader)
        self._received = bytearray()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def ask(self, message: Message, limit_s: float) -> dict[str, Any]:
        """Send a message and return its answer.

        Raises:
            CompileError: the answer is an error.
            TimeLimitError: it took too long; the process was killed.
            WorkerDiedError: the process ended.
        """
        self.jobs += 1
        assert self._process.stdin is not None
        try:
            _write_all(self._process.stdin.fileno(), json.dumps(message).encode() + b"\n", time.monotonic() + limit_s)
            answer = json.loads(self._line(time.monotonic() + limit_s))
        except TimeLimitError:
            self.kill()
            raise TimeLimitError(f"timed out after {limit_s:g} s") from None
        except (OSError, EOFError):
            raise WorkerDiedError(self._obituary()) from None
        except (ValueError, RecursionError):
            self.kill()
            raise WorkerDiedError("the compiler process sent a malformed answer") from None
        if "error" in answer:
            printed = errors(diagnostics(answer["native"] + ptxas_output(answer["python"])))
            reason = "\n    ".join([answer["error"], *map(str, foremost(printed))])
            raise CompileError(reason, f"{answer['traceback']}\n{answer['native']}{answer['python']}")
        return dict(answer)

    def take(self, folder: str, names: list[str], keep: bool = False) -> dict[str, bytes]:
        """Read files that the process wrote to a folder of its cache, and remove the folder."""
        cache = self.folder / "cache"
        try:
            with opened_folder(cache) as top, top.below(folder) as opened:
                files = {}
                for name in names:
                    with os.fdopen(opened.open(name), "rb") as file:
                        files[name] = file.read(MAX_FILE_BYTES + 1)
                    if len(files[name]) > MAX_FILE_BYTES:
                        raise CompileError(f"{name} has more than {MAX_FILE_BYTES} bytes")
        except OSError as error:
            raise CompileError(f"{folder}: {error.strerror}: {error.filename}") from None
        if not keep:
            shutil.rmtree(cache, ignore_errors=True)
        return files

    def _line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._received:
            _wait(descriptor, select.POLLIN, deadline)
            part = os.read(descriptor, 1 << 20)
            if not part:
                raise EOFError
            self._received += part
            if len(self._received) > MAX_ANSWER_BYTES:
                raise ValueError("too long")
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        return line

    def _obituary(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        code = self._process.poll()
        self.kill()
        said = ""
        with suppress(OSError):
            said = (self.folder / "native").read_text(errors="replace")
        return ": ".join([f"the compiler process {ending(code)}", *last_words(said)[:1]])


def _write_all(descriptor: int, data: bytes, deadline: float) -> None:
    os.set_blocking(descriptor, False)
    view = memoryview(data)
    while view:
        _wait(descriptor, select.POLLOUT, deadline)
        view = view[os.write(descriptor, view[: 1 << 16]) :]


def _wait(descriptor: int, event: int, deadline: float) -> None:
    """Wait until a pipe is ready. Raises `TimeLimitError`."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeLimitError


def describe(environment: Environment, targets: list[list[str | int]]) -> dict[str, Any]:
    """Describe the Triton of an environment in the form of a capture file, and its compilers for some targets.

    Raises as `WorkerProcess.ask` does.
    """
    with tempfile.TemporaryDirectory(prefix="aotbuild-rebuild-") as folder:
        process = WorkerProcess(environment, Path(folder))
        try:
            return process.ask({"kind": "describe", "targets": targets}, START_LIMIT_S)
        finally:
            process.kill()
