"""Compile captured kernels on several worker processes, and read what they make back."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from aot.compile.diagnostics import diagnostics, errors, foremost, ptxas_output, warnings
from aot.errors import CompileError
from aot.forked_process import WorkerDiedError

from .environments import Environment
from .rebuilt import RebuildJob, RebuiltKernel, check_rebuilt, launch_warning
from .selection import target_parts
from .worker_process import START_LIMIT_S, Message, WorkerProcess

JOBS_PER_WORKER = 256
"""Jobs after which a worker is replaced: the compiler does not give back all of its memory."""


class Workers:
    """Up to `count` workers, each started when it is needed. `run` may be called from any thread.

    Leaving the context by an exception kills them at once.
    """

    def __init__(self, environment: Environment, session: Message | None, count: int, limit_s: float):
        """`session` is sent to each worker first, see `aot_capture.rebuild`. `limit_s` is the time limit of a job."""
        self.environment, self._session, self._limit_s = environment, session, limit_s
        self._folder = tempfile.TemporaryDirectory(prefix="aotbuild-rebuild-", ignore_cleanup_errors=True)
        self._free: SimpleQueue[WorkerProcess | None] = SimpleQueue()
        self._all: list[WorkerProcess] = []
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
        if unfit := launch_warning(kernel, job.target):
            return replace(kernel, warnings=(*kernel.warnings, f"{job.name}: {unfit}"))
        return kernel

    def modules(self, message: Message) -> dict[str, dict[str, bytes]]:
        """Return folders of files that a worker writes for a message: content by name, by folder."""
        with self._worker() as worker:
            answer = worker.ask(message, self._limit_s)
            made = answer.get("modules", [answer])
            return {one["folder"]: worker.take(one["folder"], one["files"], keep=True) for one in made}

    @contextmanager
    def _worker(self) -> Iterator[WorkerProcess]:
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

    def _started(self) -> WorkerProcess:
        if self._closed:
            raise WorkerDiedError("the build has ended")
        worker = WorkerProcess(self.environment, Path(tempfile.mkdtemp(dir=self._folder.name)))
        self._all.append(worker)
        if self._session is not None:
            try:
                worker.ask(self._session, START_LIMIT_S)
            except BaseException:
                worker.kill()
                raise
        return worker
