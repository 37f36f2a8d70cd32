"""Worker processes that rebuild captured kernels: another Python, which has the captured program's Triton.

They are held as the processes are that run kernel files (`aot.forked_process`): a process group of their own, a time
limit a job, and an end with this process, whatever they are doing. Their environment is bare.
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
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import aot_capture
from aot.compile.diagnostics import diagnostics, errors, foremost, last_words, ptxas_output, warnings
from aot.errors import CompileError
from aot.forked_process import TimeLimitError, WorkerDiedError, die_with, ending
from aot_runtime.folders import opened_folder

from .environments import Environment
from .rebuilt import RebuildJob, RebuiltKernel, check_rebuilt
from .selection import target_parts

MAX_ANSWER_BYTES = 64 << 20
MAX_FILE_BYTES = 256 << 20
"""Largest file of a kernel that is read."""
JOBS_PER_WORKER = 256
"""Jobs after which a worker is replaced: the compiler does not give back all of its memory."""
START_LIMIT_S = 120.0
"""Time limit of importing Triton and of hashing its files."""
_SCRIPT = Path(aot_capture.__file__).parent / "rebuild.py"
_KEPT = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "CC", "TRITON_HIP_LLD_PATH")
"""Variables of this environment that workers have. The last names the linker of Triton 3.4 for HIP."""
Message = Mapping[str, Any]


class Workers:
    """Up to `count` workers, each started when it is needed. `run` may be called from any thread.

    Leaving the context by an exception kills them at once.
    """

    def __init__(self, environment: Environment, session: Message | None, count: int, limit_s: float):
        """`session` is sent to each worker first, see `aot_capture.rebuild`. `limit_s` is the time limit of a job."""
        self.environment, self._session, self._limit_s = environment, session, limit_s
        self._folder = tempfile.TemporaryDirectory(prefix="aotbuild-rebuild-", ignore_cleanup_errors=True)
        self._free: SimpleQueue[_Worker | None] = SimpleQueue()
        self._all: list[_Worker] = []
        self._closed = False
        self.executor = ThreadPoolExecutor(count, thread_name_prefix="aotbuild: rebuild")
        for _ in range(count):
            self._free.put(None)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.executor.shutdown()
        self._closed = True
        for worker in self._all:
            worker.kill()
        self.executor.shutdown(cancel_futures=True)
        self._folder.cleanup()

    def ask(self, message: Message, limit_s: float | None = None) -> dict[str, Any]:
        """Return a worker's answer, without files. Raises as `rebuild` does."""
        with self._worker() as worker:
            return worker.ask(message, limit_s or self._limit_s)

    def rebuild(self, job: RebuildJob) -> RebuiltKernel:
        """Compile a kernel and read it back. Raises `CompileError`, `TimeLimitError` and `WorkerDiedError`."""
        message = {"kind": "kernel", "kernel": vars(job.kernel), "target": target_parts(job.target)}
        with self._worker() as worker:
            answer = worker.ask(message, self._limit_s)
            files = worker.take(answer["folder"], answer["files"])
        printed = diagnostics(answer["native"] + ptxas_output(answer["python"]), answer["listing"])
        if wrong := errors(printed):
            raise CompileError(f"{job.name}: " + "\n    ".join(map(str, foremost(wrong))))
        arguments = answer["arguments"]
        kernel = RebuiltKernel(
            folder=answer["folder"],
            hash=answer["hash"],
            key=tuple(answer["key"]),
            unlike=tuple(answer["unlike"]),
            files=files,
            binary=answer["binary"],
            symbol=answer["symbol"],
            arguments=None if arguments is None else tuple((name, kind) for name, kind in arguments),
            scratch_pointers=answer["scratch_pointers"],
            num_warps=answer["num_warps"],
            warp_size=answer["warp_size"],
            lds_bytes=answer["lds_bytes"],
            recipe=job.recipe,
            warnings=tuple(f"{job.name}: {text}" for text in warnings(printed)),
        )
        check_rebuilt(kernel, job.target)
        return kernel

    def modules(self, message: Message) -> dict[str, dict[str, bytes]]:
        """Return folders of files that a worker writes for a message: content by name, by folder."""
        with self._worker() as worker:
            answer = worker.ask(message, self._limit_s)
            made = answer.get("modules", [answer])
            return {one["folder"]: worker.take(one["folder"], one["files"], keep=True) for one in made}

    @contextmanager
    def _worker(self) -> Iterator[_Worker]:
        worker = self._free.get()
        if worker is not None and (worker.jobs >= JOBS_PER_WORKER or not worker.is_alive):
            worker.kill()
            worker = None
        try:
            if worker is None:
                worker = self._started()
            yield worker
        finally:
            self._free.put(worker)

    def _started(self) -> _Worker:
        if self._closed:
            raise WorkerDiedError("the build has ended")
        worker = _Worker(self.environment, Path(tempfile.mkdtemp(dir=self._folder.name)))
        self._all.append(worker)
        if self._session is not None:
            try:
                worker.ask(self._session, START_LIMIT_S)
            except BaseException:
                worker.kill()
                raise
        return worker


class _Worker:
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
            raise WorkerDiedError("the compiler process sent something else than an answer") from None
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
    """Describe the Triton of an environment, as the captured one is. Raises `CompileError` and `AotError`."""
    with Workers(environment, None, 1, START_LIMIT_S) as workers:
        return workers.ask({"kind": "describe", "targets": targets})
