"""Compile jobs on the workers of a dask.distributed cluster, which have aotbuild and Triton but not the kernels."""

from __future__ import annotations

import functools
import logging
import pickle
import socket
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future, wait
from contextlib import suppress
from dataclasses import replace
from multiprocessing.util import Finalize
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from distributed import Client, get_worker

from aot.compile.jobs import CompileJob
from aot.compile.keys import JobKeys
from aot.errors import BuildError, CompileError, KernelFileError
from aot.forked_process import WorkerDiedError
from aot.targets import parse_arch

from .pool import WarmPool, default_workers

T = TypeVar("T")
Sources = tuple[tuple[str, bytes], ...]
"""(path from the project's root, content) of each file that a job is compiled from."""

CONNECT_S, WORKERS_S = 10.0, 60.0
"""Time limits for the scheduler to answer, and for a first worker to register with it."""
_LOOK_EVERY_S = 0.2
_POOL_LOCK = threading.Lock()


class ClusterPool(Executor):
    """An executor on the workers of a cluster. Leaving its context by an exception cancels what is running."""

    def __init__(self, address: str, timeout_s: float | None = None):
        """Connect and wait for a first worker. Raises `BuildError`. `timeout_s` limits each job, from its start."""
        self.address, self._timeout_s = address, timeout_s
        self._client = _connect(address)
        try:
            self._client.wait_for_workers(1, timeout=WORKERS_S)
        except TimeoutError:
            self._client.close()
            raise BuildError(f"the cluster at {address} has no workers after {WORKERS_S:g} s") from None
        self._executor = self._client.get_executor(pure=False)

    @property
    def workers(self) -> int:
        return len(self._client.scheduler_info(n_workers=-1)["workers"])

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a function on one job, with its source files, whose digests the job has. Raises `KernelFileError`."""
        (job,) = args
        try:
            sources = tuple((file, Path(job.root, file).read_bytes()) for file, _ in job.sources)
        except OSError as error:
            raise KernelFileError(f"file {error.filename} cannot be read: {error.strerror}") from None
        toolchain = _toolchain(job.arch, job.line_info)
        call = _Call((run_job, (fn, replace(job, root=""), sources, toolchain, self._timeout_s)))
        # Pickled here and unpickled by the task: dask itself would unpickle the call on the scheduler as well.
        return self._executor.submit(pickle.loads, pickle.dumps(call))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with suppress(Exception):  # the connection may be lost
            self._executor.shutdown(wait=wait and not cancel_futures)
            self._client.close(timeout=CONNECT_S)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.shutdown(cancel_futures=kind is not None)
        if isinstance(error, CancelledError):
            raise BuildError(f"the connection to the scheduler {self.address} was lost") from None


def _connect(address: str) -> Client:
    opened: Future[Client] = Future()
    if not logging.getLogger("aotbuild.build").isEnabledFor(logging.INFO):  # errors tell what is wrong
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def connect() -> None:
        try:
            opened.set_result(Client(address, timeout=CONNECT_S, set_as_default=False, name="aotbuild"))
        except BaseException as error:
            opened.set_exception(error)

    # In a thread that may be left behind: dask waits forever for a server that accepts and never answers.
    threading.Thread(target=connect, daemon=True).start()
    try:
        return opened.result(CONNECT_S + 1)
    except Exception as error:
        reason = str(error) or f"no answer within {CONNECT_S:g} s"
        raise BuildError(f"cannot connect to the scheduler at {address}: {reason}") from None


@functools.cache
def _toolchain(arch: str, line_info: bool) -> dict[str, Any]:
    """The part of a job's recipe that the machine decides: the compiler and the environment."""
    return JobKeys(parse_arch(arch), line_info).common


class _Call(tuple[Any, ...]):
    """(function, arguments) that unpickles to the function's result."""

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple(self)


def run_job(
    function: Callable[[CompileJob], T], job: CompileJob, sources: Sources, toolchain: dict[str, Any],
    timeout_s: float | None,
) -> T:  # fmt: skip
    """Run a function on a job, on a worker: in a process of its own, which is killed if the task is cancelled."""
    worker = get_worker()
    try:
        with _POOL_LOCK:
            pool = _pool(worker.state.nthreads, timeout_s)
        future = pool.submit(_run_unpacked, function, job, sources, toolchain)
        while not wait([future], _LOOK_EVERY_S).done:
            task = worker.state.tasks.get(worker.get_current_task())
            if task is None or task.state not in ("executing", "long-running"):
                future.cancel()
        return future.result()
    except (OSError, WorkerDiedError) as error:
        raise WorkerDiedError(f"{error} (worker {worker.address})") from None


@functools.cache
def _pool(threads: int, timeout_s: float | None) -> WarmPool:
    pool = WarmPool(default_workers(threads), timeout_s)
    Finalize(None, pool.shutdown, kwargs={"cancel_futures": True}, exitpriority=1)  # before children are waited for
    return pool


def _run_unpacked(
    function: Callable[[CompileJob], T], job: CompileJob, sources: Sources, toolchain: dict[str, Any]
) -> T:
    found = _toolchain(job.arch, job.line_info)
    if other := [name for name, value in toolchain.items() if found[name] != value]:
        raise CompileError(
            f"{socket.gethostname()} has another {' and '.join(other)} than the machine that runs the build"
        )
    return function(replace(job, root=str(_unpacked(sources))))


@functools.lru_cache(maxsize=64)
def _unpacked(sources: Sources) -> Path:
    """Write the sources to a folder, in which they lie as they do from the project's root."""
    root = Path(tempfile.mkdtemp(prefix="aotbuild-sources-"))
    for level in range(max((PurePosixPath(file).parts.count("..") for file, _ in sources), default=0)):
        root /= str(level)
    for file, content in sources:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root
