"""What is run on a worker of a cluster: facts about it, and jobs.

A job is compiled in a process of its own, of a `WarmPool`, as it is locally: it has the same time limit, and what
crashes is that process, not the worker. The processes end with the worker, and when they had nothing to do for a while.
"""

from __future__ import annotations

import concurrent.futures
import errno
import functools
import hashlib
import os
import pickle
import platform
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.util import Finalize
from typing import Any

from distributed import Worker, get_worker

import aot
from aot.targets import Target
from aot_runtime.errors import AotError

from ..errors import CompileError, described
from ..isolation import WorkerDiedError
from ..jobs import CompileJob
from ..keys import JobKeys
from ..pool import WarmPool, default_workers
from .sources import unpacked_root

IDLE_S = 120.0
"""Seconds after which processes that have nothing to do are ended."""
_LOOK_EVERY_S = 0.2
"""Seconds between looks at whether a job is still wanted."""
_PROBE_BYTES = 1 << 20
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO})


@dataclass(frozen=True)
class Reply:
    """What became of a job.

    Attributes:
        content: (the exception that it ended with or None, its result), pickled.
        digest: SHA-256 of that.
        unfit: why the worker cannot compile any job, as for a full disk; empty where it can.
    """

    content: bytes = b""
    digest: str = ""
    unfit: str = ""


def sealed(error: AotError | None, result: Any = None) -> Reply:
    content = pickle.dumps((error, result))
    return Reply(content, hashlib.sha256(content).hexdigest())


def facts(archs: Sequence[str], line_info: bool) -> dict[str, str]:
    """What decides, on this machine, which code is made of a job: name → what it is here."""
    found = {
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "machine": platform.machine(),
        "aotbuild": aot.__version__,
    }
    try:
        import triton

        found["Triton"] = triton.__version__
        for arch in archs:
            common = JobKeys(Target(arch), line_info).common
            found["version of compile keys"] = str(common["version"])
            found[f"compiler for {arch}"] = " ".join(map(str, common["compiler"]))
            found |= {f"environment variable {name}": value for name, value in common["environment"].items()}
    except Exception as error:  # of another Triton, too
        found.setdefault("Triton", "not installed" if isinstance(error, ModuleNotFoundError) else described(error))
    return found


def run_job(function: Callable[[CompileJob], Any], job: CompileJob, sources: bytes, limit_s: float | None) -> Reply:
    """Run a function on a job whose project's files are `sources`, in a process of this worker's."""
    worker = get_worker()
    processes = _processes(worker.address, worker.state.nthreads, limit_s)
    try:
        return _awaited(processes.submit(_run_unpacked, function, job, sources), worker)
    except WorkerDiedError as error:
        fault = _disk_fault()
        return Reply(unfit=fault) if fault else sealed(WorkerDiedError(f"{error} (worker {worker.address})"))
    except AotError as error:
        return sealed(error)
    except OSError as error:
        return Reply(unfit=described(error))


def _awaited(future: concurrent.futures.Future[Reply], worker: Worker) -> Reply:
    """The reply of a process, which is ended once nobody wants that. Raises what is wrong with the process."""
    key = worker.get_current_task()
    while not concurrent.futures.wait([future], _LOOK_EVERY_S).done:
        if not _is_wanted(worker, key):
            future.cancel()
    return Reply(unfit="it ended its processes") if future.cancelled() else future.result()


def _is_wanted(worker: Worker, key: Any) -> bool:
    """Whether a running task was neither cancelled nor forgotten, as it is where the build has ended."""
    task = worker.state.tasks.get(key)
    return task is not None and task.state in ("executing", "long-running")


# Processes


@functools.cache
def _processes(address: str, threads: int, limit_s: float | None) -> Processes:
    return Processes(threads, limit_s)


class Processes:
    """A pool that is made when there is a job, and ended once it had none for a while."""

    def __init__(self, workers: int, limit_s: float | None):
        self._workers, self._limit_s = workers, limit_s
        self._lock = threading.Lock()
        self._pool: WarmPool | None = None
        self._running = 0
        self._end: threading.Timer | None = None
        # A process waits at its end for those that it started, be it dask's or not; finalizers come before.
        Finalize(None, self._end_now, exitpriority=1)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> concurrent.futures.Future[Any]:
        """Run a function in one of the processes. Raises OSError where none can be made."""
        with self._lock:
            if self._end is not None:
                self._end.cancel()
            if self._pool is None:
                self._pool = WarmPool(default_workers(self._workers), self._limit_s)
            future = self._pool.submit(function, *arguments)
            self._running += 1
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: object) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._end = threading.Timer(IDLE_S, self._end_idle)
                self._end.daemon = True
                self._end.start()

    def _end_idle(self) -> None:
        with self._lock:
            pool, self._pool = (self._pool, None) if self._running == 0 else (None, self._pool)
        if pool is not None:
            pool.shutdown(cancel_futures=True)

    def _end_now(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _run_unpacked(function: Callable[[CompileJob], Any], job: CompileJob, sources: bytes) -> Reply:
    try:
        root = unpacked_root(sources)
        return sealed(None, function(replace(job, root=str(root))))
    except AotError as error:
        return _failed(error, error)
    except Exception as error:
        return _failed(error, CompileError(described(error), traceback.format_exc()))


def _failed(error: BaseException, told: AotError) -> Reply:
    """A reply of a failure: the job's, unless the disk is its cause, as Python or the compiler says."""
    for found in _chain(error):
        for code in _DISK_ERRORS:
            if getattr(found, "errno", None) == code or os.strerror(code) in str(found):
                return Reply(unfit=f"{os.strerror(code)} in {tempfile.gettempdir()}")
    return sealed(told)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _disk_fault() -> str:
    try:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return f"{error.strerror} in {tempfile.gettempdir()}"
    return ""
