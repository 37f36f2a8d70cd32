"""Compile jobs on worker processes.

`run_jobs` schedules jobs over any `concurrent.futures.Executor`. `WarmPool` is the local one: processes that compile
many jobs each, are killed when a job runs too long, and never outlive the process that made them.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import multiprocessing
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, TypeVar

from aot.compile.settings import CompilerOutput
from aot.errors import CompileError
from aot.forked_process import TimeLimitError, WorkerDiedError, die_with, ending
from aot_runtime.errors import AotError

if TYPE_CHECKING:
    import pebble

T = TypeVar("T")
Job = TypeVar("Job")

WORKER_MEMORY_BYTES = 3 << 29
"""Memory that a worker is assumed to need: 1.5 GiB, five times the largest use seen with attention kernels."""

_LOOK_EVERY_S = 0.2
"""Interval of checks that the workers are alive."""

JOBS_PER_WORKER = 256
"""Jobs after which a worker is replaced: the compiler does not give back all of its memory."""


@dataclass(frozen=True)
class CompileFailure:
    """The failure of a job: the reason in a few lines, and the traceback if there is one."""

    reason: str
    traceback_text: str = ""


def run_jobs(
    jobs: Iterable[Job],
    executor: Executor,
    work: Callable[[Job], T],
    again: Callable[[Job], T] | None = None,
    at_once: int | None = None,
) -> Iterator[tuple[Job, T | CompileFailure]]:
    """Run `work` on every job, and yield each job with its result as it completes.

    A failure never stops the other jobs. A job whose process died is run once more, by `again` if that is given,
    since the cause (memory, a neighbour) may have passed. Closing the generator cancels what has not started.
    `at_once` limits the jobs that the executor has at a time.
    """
    waiting = iter(jobs)
    finished: SimpleQueue[Future[T]] = SimpleQueue()
    running: dict[Future[T], tuple[Job, int]] = {}

    def submit(job: Job, attempt: int) -> None:
        future = _submit(executor, work if attempt == 1 else again or work, job)
        running[future] = job, attempt
        future.add_done_callback(finished.put)

    try:
        for job in itertools.islice(waiting, at_once):
            submit(job, 1)
        while running:
            future = finished.get()
            job, attempt = running.pop(future)
            error = future.exception()
            if isinstance(error, WorkerDiedError | BrokenExecutor) and attempt == 1:
                submit(job, 2)
            else:
                for next_job in itertools.islice(waiting, 1):
                    submit(next_job, 1)
                yield job, future.result() if error is None else _failure(error)
    finally:
        for future in running:
            future.cancel()


def _submit(executor: Executor, work: Callable[[Job], T], job: Job) -> Future[T]:
    try:
        return executor.submit(work, job)
    except (BrokenExecutor, AotError) as error:
        failed: Future[T] = Future()
        failed.set_exception(error)
        return failed


def _failure(error: BaseException) -> CompileFailure:
    if isinstance(error, CompileError):
        return CompileFailure(error.reason, error.traceback_text)
    if isinstance(error, AotError):
        return CompileFailure(str(error))
    return CompileFailure(f"{type(error).__name__}: {error}", str(error.__cause__ or ""))


def default_workers(jobs: int) -> int:
    """Return the number of workers for some jobs, limited by this process's CPUs and by the memory for compilers."""
    by_memory = _available_memory_bytes() // WORKER_MEMORY_BYTES
    return max(1, min(len(os.sched_getaffinity(0)), by_memory, jobs))


def _available_memory_bytes() -> int:
    """Return the free memory of the machine, or of the control group (v2) if that has less."""
    available = _available_kib() << 10
    try:
        group = Path("/sys/fs/cgroup")
        limit, used = (group / "memory.max").read_text(), (group / "memory.current").read_text()
        return min(available, int(limit) - int(used))
    except (OSError, ValueError):
        return available


def _available_kib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1])
    return 1 << 40  # a kernel that does not say so does not limit anything


class WarmPool(Executor):
    """Worker processes that stay warm from one job to the next.

    Leaving its context waits for the jobs; leaving it by an exception (Ctrl-C too) kills the workers at once. Workers
    are
    spawned: they see the environment as it is when they start, and run functions of importable modules only.

    A worker lives as long as the pool's lifeline: a FIFO that the pool holds open for writing. When that end closes,
    because the pool was shut down or its process died, the kernel sends SIGIO to the worker's process group, which ends
    it
    in Python, in LLVM or while it waits for ptxas.
    """

    def __init__(self, workers: int, timeout_s: float | None = None, jobs_per_worker: int = JOBS_PER_WORKER):
        """`timeout_s`: limit of one job, from when it starts; its future then raises `TimeLimitError`."""
        import pebble  # it imports asyncio, and not every build compiles

        self.timeout_s = timeout_s
        self._expired = pebble.ProcessExpired
        self._futures: dict[Future[Any], pebble.ProcessPool] = {}
        """Futures that are not settled, and the processes that they were given to."""
        remove_leftovers(Path(tempfile.gettempdir()))
        self._folder = tempfile.TemporaryDirectory(prefix=_FOLDER, ignore_cleanup_errors=True)
        self._lock = _lock_folder(Path(self._folder.name))
        lifeline = Path(self._folder.name) / "lifeline"
        os.mkfifo(lifeline)
        # For reading as well: to open a FIFO for writing alone waits for a reader.
        self._lifeline = os.open(lifeline, os.O_RDWR | os.O_CLOEXEC)
        self._workers = functools.partial(
            pebble.ProcessPool,
            max_workers=workers,
            max_tasks=jobs_per_worker,
            initializer=_start_worker,
            initargs=(self._folder.name, str(lifeline)),
            context=_DetachedContext(),
        )
        self._pool = self._workers()
        self._settling = threading.Lock()
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._look_after, name="aotbuild: pool", daemon=True)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run `fn` in a worker. The future may raise `TimeLimitError` or `WorkerDiedError`; cancelling it kills its
        worker."""
        try:
            inner = self._schedule(fn, args, kwargs)
        except RuntimeError as error:
            raise BrokenExecutor(str(error)) from error
        outer: Future[T] = Future()
        self._futures[outer] = self._pool
        if self._watch.ident is None:
            self._watch.start()
        outer.add_done_callback(lambda future: inner.cancel() if future.cancelled() else None)
        inner.add_done_callback(functools.partial(self._settle, outer))
        return outer

    def _schedule(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[T]:
        """Give a job to the workers. If one died while it had none, pebble gives up, and new workers are started."""
        try:
            return self._pool.schedule(fn, args=args, kwargs=kwargs, timeout=self.timeout_s)
        except RuntimeError:
            if self._closed.is_set():
                raise
        self._end_workers()
        self._pool = self._workers()
        return self._pool.schedule(fn, args=args, kwargs=kwargs, timeout=self.timeout_s)

    def _end_workers(self) -> None:
        self._pool.stop()
        self._pool.join()

    def _look_after(self) -> None:
        """Fail the jobs of processes that pebble gave up, since it forgets jobs that it had not started. Runs in a
        thread."""
        while not self._closed.wait(_LOOK_EVERY_S):
            for outer, pool in tuple(self._futures.items()):
                if not pool.active and self._take(outer):
                    outer.set_exception(WorkerDiedError("the compiler process died before it began"))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the jobs, then end the workers; with `cancel_futures`, or without `wait`, end them at once."""
        if wait and not cancel_futures:
            self._pool.close()
            self._pool.join()
        self._closed.set()
        self._pool.stop()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        for future in tuple(self._futures):
            future.cancel()
        self._pool.join()
        self._folder.cleanup()
        self._lock.close()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def _settle(self, outer: Future[T], inner: Future[T]) -> None:
        if inner.cancelled():
            outer.cancel()
        if not self._take(outer):
            return
        error = inner.exception()
        if isinstance(error, self._expired):
            outer.set_exception(WorkerDiedError(*self._obituary(error)))
        elif isinstance(error, TimeoutError):
            outer.set_exception(TimeLimitError(f"timed out after {self.timeout_s:g} s"))
        elif error is not None:
            outer.set_exception(error)
        else:
            outer.set_result(inner.result())

    def _take(self, outer: Future[Any]) -> bool:
        with self._settling:
            return self._futures.pop(outer, None) is not None and outer.set_running_or_notify_cancel()

    def _obituary(self, death: pebble.ProcessExpired) -> Iterator[str]:
        """Describe how a worker ended, the compiler's last words, and what it was compiling."""
        left = CompilerOutput.of_process(Path(self._folder.name), death.pid)
        first, *more = [line for output in left for line in output.epitaph()] or [""]
        yield ": ".join(filter(None, (f"the compiler process {ending(death.exitcode)}", first)))
        yield from (f"  {line}" for line in more)


_FOLDER = "aotbuild-pool-"
_FOLDER_NAME = re.compile(re.escape(_FOLDER) + r"[a-z0-9_]{8}")
_LOCK = "lock"


def _lock_folder(folder: Path) -> IO[bytes]:
    """Lock a pool's folder until the returned file is closed, at the latest when the process ends."""
    path = folder / f"{_LOCK}.new"
    file = path.open("wb")
    fcntl.flock(file, fcntl.LOCK_EX)
    path.rename(folder / _LOCK)  # nobody sees a lock that is not locked
    return file


def remove_leftovers(parent: Path) -> None:
    """Remove folders of this user's pools whose processes were killed: those that nobody locks."""
    for folder in parent.glob(f"{_FOLDER}*"):
        with suppress(OSError):
            status = folder.lstat()
            if not (_FOLDER_NAME.fullmatch(folder.name) and stat.S_ISDIR(status.st_mode)):
                continue
            if status.st_uid != os.getuid():
                continue
            with os.fdopen(os.open(folder / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


_MAIN_LOCK = threading.Lock()


class _DetachedProcess(SpawnProcess):
    """A spawned process that does not import its parent's main module.

    A script that builds without `if __name__ == "__main__"` would otherwise run again in every worker. The parent may
    be
    daemonic, as dask's workers are, although multiprocessing forbids it to start processes: these end with their pool.
    """

    def start(self) -> None:
        with _MAIN_LOCK:
            main, parent = sys.modules["__main__"], multiprocessing.current_process()
            daemonic = parent.daemon
            sys.modules["__main__"] = ModuleType("__main__")
            try:
                parent.daemon = False
                super().start()
            finally:
                parent.daemon = daemonic
                sys.modules["__main__"] = main

    def run(self) -> None:
        """Run the worker, and end without Python's clean-up, in which Triton's bindings would print what they leak."""
        super().run()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class _DetachedContext(SpawnContext):
    Process = _DetachedProcess


def _start_worker(folder: str, lifeline: str) -> None:
    """Set up a worker process: its temporary folder, its end, and the import that makes it warm."""
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    # An open file description of its own, for it has one owner to signal.
    reader = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    die_with(reader)
    parent = multiprocessing.parent_process()
    if parent is None or not parent.is_alive():
        os._exit(1)
    import triton  # noqa: F401
