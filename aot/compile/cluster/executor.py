"""Compile jobs on a cluster: an executor, as `aot.compile.pool.WarmPool` is one for this machine.

Each job is given to one worker by name, no more at once than it has threads, so that it is known which jobs a worker
had that is gone. Everything but the waiting for dask is done by one thread.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import logging
import pickle
import threading
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from distributed import Client, KilledWorker
from distributed.versions import VersionMismatchWarning

from aot_runtime.errors import AotError

from ..errors import KernelFileError, described
from . import worker
from .roster import Call, Roster, Seat, differences
from .sources import packed_sources

T = TypeVar("T")

LOG = logging.getLogger("aotbuild.build")
CONNECT_S = 10.0
"""Time for the scheduler to answer at first."""
_GRACE_S = 2.0
"""Time for dask to say that it did not."""
ANSWER_S = 60.0
"""Time for it to answer later on, and for a result to come once it is there."""
WORKERS_S = 60.0
"""Time in which a cluster without workers has to get one."""
ATTEMPTS = 2
"""How often a job is given to a worker that is then lost, or cannot compile."""
_TELL_AFTER_S = 5.0
"""Seconds after which it is said that there is no worker yet."""
_LOOK_EVERY_S = 0.5
"""Seconds between looks at which workers there are."""


class ClusterError(AotError):
    """There is no scheduler, or no worker, that a build can use."""


class JobLostError(AotError):
    """Every worker that was given a job was lost with it, or could not compile."""


class ClusterPool(Executor):
    """The workers of a dask.distributed cluster, for jobs of some targets.

    Used as a context manager: leaving it waits for the jobs; leaving it by an exception (Ctrl-C too) cancels them, and
    the workers end what they were compiling. They do that, too, where this process ends, however abruptly.
    """

    def __init__(
        self,
        address: str,
        archs: Sequence[str],
        line_info: bool = False,
        timeout_s: float | None = None,
        limit: int | None = None,
    ):
        """Connect, and wait for a worker that has what this machine has. Raises `ClusterError`, in bounded time.

        Args:
            timeout_s: limit of one job, from when it starts.
            limit: jobs at once, at most.
        """
        self.address = address
        self._archs, self._line_info, self._timeout_s, self._limit = tuple(archs), line_info, timeout_s, limit
        self._wanted = worker.facts(self._archs, line_info)
        self._client = _connected(address)
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._roster, self._waiting = Roster(), deque[Call]()
        self._unsettled: set[Future[Any]] = set()
        self._fault: ClusterError | None = None
        self._empty_since: float | None = None
        self._closed = threading.Event()
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="aotbuild: cluster", daemon=True)
        self._thread.start()
        try:
            self._wait_for_a_worker()
        except BaseException:
            self.shutdown(cancel_futures=True)
            raise

    def _wait_for_a_worker(self) -> None:
        if concurrent.futures.wait([self._ready], _TELL_AFTER_S).not_done:
            LOG.warning("waiting for a worker of %s", self.address)
        self._ready.result()

    @property
    def workers(self) -> int:
        """How many workers may have jobs, those counted that are yet to be looked at."""
        return sum(not seat.fault for seat in tuple(self._roster))

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a function of a module on a worker; its one argument is a job, whose sources are sent along.

        The future may raise what that of `WarmPool.submit` may, `KernelFileError` where a source is not what was
        hashed, `JobLostError`, and `ClusterError` once the cluster cannot be used any more.
        """
        (job,) = args
        call = Call(Future(), fn, job)
        self._unsettled.add(call.outcome)
        self._events.put(partial(self._take, call))
        call.outcome.add_done_callback(lambda _: self._events.put(partial(self._drop, call)))
        return call.outcome

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the jobs; with `cancel_futures`, or without `wait`, cancel them."""
        if wait and not cancel_futures:
            concurrent.futures.wait(tuple(self._unsettled))
        self._closed.set()
        self._events.put(lambda: None)
        self._thread.join(_LOOK_EVERY_S)  # not for ever: it may wait for a scheduler that does not answer
        for outcome in tuple(self._unsettled):
            outcome.cancel()
        with suppress(Exception):  # of a connection that is lost
            self._client.close(timeout=CONNECT_S)  # the scheduler cancels what nobody waits for any more

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.shutdown(cancel_futures=kind is not None)

    # What the thread does

    def _run(self) -> None:
        next_look = 0.0
        while not self._closed.is_set():
            try:
                with suppress(Empty):
                    self._events.get(timeout=_LOOK_EVERY_S)()
                if time.monotonic() >= next_look and not self._fault:
                    self._look()
                    next_look = time.monotonic() + _LOOK_EVERY_S
                self._hand_out()
            except ClusterError as error:
                self._end(error)
            except Exception as error:
                self._end(ClusterError(f"the cluster at {self.address} cannot be used any more: {described(error)}"))

    def _end(self, error: ClusterError) -> None:
        self._fault = error
        if not self._ready.done():
            self._ready.set_exception(error)
        for call in [*self._waiting, *(call for seat in self._roster for call in seat.calls)]:
            self._settle(call, error)
        self._waiting.clear()

    def _take(self, call: Call) -> None:
        if self._fault:
            self._settle(call, self._fault)
        else:
            self._waiting.append(call)

    def _drop(self, call: Call) -> None:
        """Forget a call that is settled or cancelled; in the latter case its worker is to stop."""
        self._unsettled.discard(call.outcome)
        if call in self._waiting:
            self._waiting.remove(call)
        if call.task is not None:
            next(seat for seat in self._roster if call in seat.calls).calls.remove(call)
            call.task.cancel()
            call.task = None

    def _look(self) -> None:
        """See who is there: check who is new, and give what those had who are gone to others."""
        if self._client.status != "running":
            raise ClusterError(f"the connection to the scheduler {self.address} was lost")
        new, gone = self._roster.update(self._client.sync(_workers, self._client, callback_timeout=ANSWER_S))
        for seat in gone:
            self._lose(seat)
        for seat in new:
            seat.check = self._start(seat, self._checked, worker.facts, self._archs, self._line_info)
        if faults := self._roster.faults():
            raise ClusterError(f"no worker of {self.address} can be used: {faults}")
        if len(self._roster):
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = time.monotonic()
        elif time.monotonic() - self._empty_since > WORKERS_S:
            raise ClusterError(f"the cluster at {self.address} has no workers, which was waited for {WORKERS_S:g} s")

    def _hand_out(self) -> None:
        """Give waiting jobs to free workers. Those that were lost come first, and wait for a worker that is idle."""
        while self._waiting and (self._limit is None or self._roster.running < self._limit):
            call = self._waiting[0]
            seat = self._roster.pick(call.alone)
            if seat is None:
                break
            self._waiting.popleft()
            try:
                sources = packed_sources(call.job.root, call.job.sources)
            except KernelFileError as error:
                self._settle(call, error)
                continue
            job = replace(call.job, root="")  # of this machine
            seat.calls.append(call)
            done = partial(self._done, call)
            call.task = self._start(seat, done, worker.run_job, call.function, job, sources, self._timeout_s)

    def _start(
        self, seat: Seat, done: Callable[[Seat, Any, Any], None], function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Run a function on one worker; once it ended, the thread is to call `done` with its future and outcome."""
        key = f"aotbuild-{function.__name__}-{uuid.uuid4().hex}"
        task = self._client.submit(
            pickle.loads, _pickled_call(function, arguments), key=key, pure=False,
            workers=[seat.address], allow_other_workers=False,
        )  # fmt: skip

        def gather(task: Any) -> None:
            try:
                outcome = task.result(timeout=ANSWER_S)
            except BaseException as error:
                outcome = error
            self._events.put(partial(done, seat, task, outcome))

        task.add_done_callback(gather)
        return task

    def _checked(self, seat: Seat, task: Any, outcome: Any) -> None:
        if seat.check is not task or seat not in self._roster:
            return
        seat.check = None
        if isinstance(outcome, BaseException):
            self._leave_out(seat, described(outcome))
        elif different := differences(outcome, self._wanted):
            self._leave_out(seat, different)
        else:
            seat.admitted = True
            if not self._ready.done():
                self._ready.set_result(None)

    def _done(self, call: Call, seat: Seat, task: Any, outcome: Any) -> None:
        if call.task is not task:
            return  # of an attempt that was given up
        call.task = None
        seat.calls.remove(call)
        if isinstance(outcome, worker.Reply):
            if outcome.unfit:
                self._leave_out(seat, outcome.unfit)
                self._again(call, f"worker {seat.address} cannot compile: {outcome.unfit}")
            elif hashlib.sha256(outcome.content).hexdigest() != outcome.digest:
                self._again(call, f"the result of worker {seat.address} is damaged")
            else:
                self._settle(call, *pickle.loads(outcome.content))
        elif isinstance(outcome, CancelledError | KilledWorker | TimeoutError):
            self._again(call, f"worker {seat.address} lost it: {described(outcome)}")
        else:
            self._leave_out(seat, described(outcome))
            self._again(call, f"worker {seat.address} cannot compile: {described(outcome)}")

    def _lose(self, seat: Seat) -> None:
        LOG.log(
            logging.WARNING if seat.calls else logging.INFO,
            "worker %s is gone; jobs that it had: %d", seat.address, len(seat.calls),
        )  # fmt: skip
        for call in reversed(seat.calls):  # the first one is to be the first again
            call.task.cancel()
            call.task = None
            only = "nothing else" if call.alone else "this"
            self._again(call, f"worker {seat.address} died when it compiled {only}")

    def _leave_out(self, seat: Seat, fault: str) -> None:
        seat.fault = fault
        LOG.warning("worker %s is not used: %s", seat.address, fault)

    def _again(self, call: Call, loss: str) -> None:
        call.losses.append(loss)
        call.alone = True
        if len(call.losses) < ATTEMPTS:
            self._waiting.appendleft(call)
        else:
            self._settle(call, JobLostError("; ".join(call.losses)))

    def _settle(self, call: Call, error: BaseException | None, result: Any = None) -> None:
        if call.outcome.done() or not call.outcome.set_running_or_notify_cancel():
            return
        if error is not None:
            call.outcome.set_exception(error)
        else:
            call.outcome.set_result(result)


@dataclass(frozen=True)
class _CallOf:
    """Whose pickle, when it is loaded, is what a function returns."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.function, self.arguments


def _pickled_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """A call, in bytes that the task itself unpickles. What dask unpickles, it does on the scheduler, too, and on a
    worker before there is a task: one that has no such module, or another version of it, would lose its connection."""
    return pickle.dumps(_CallOf(function, arguments))


async def _workers(client: Client) -> Mapping[str, Mapping[str, Any]]:
    assert client.scheduler is not None
    found = await client.scheduler.identity(n_workers=-1)
    return found["workers"]


def _connected(address: str) -> Client:
    """A client of the scheduler. Raises `ClusterError`."""
    if not LOG.isEnabledFor(logging.INFO):
        for name in ("distributed", "distributed.client"):  # what is wrong, a `ClusterError` says
            logging.getLogger(name).setLevel(logging.CRITICAL)
        warnings.simplefilter("ignore", VersionMismatchWarning)
    opened: Future[Client] = Future()
    # By a thread that may be left behind: dask waits for ever for what takes the connection and says nothing.
    threading.Thread(target=_open, args=(address, opened), name="aotbuild: connecting", daemon=True).start()
    try:
        return opened.result(CONNECT_S + _GRACE_S)
    except Exception as error:  # of every kind, by what answers there
        reason = str(error) or f"it did not answer within {CONNECT_S:g} s"
        raise ClusterError(f"no scheduler can be reached at {address}: {reason}") from None


def _open(address: str, opened: Future[Client]) -> None:
    try:
        opened.set_result(Client(address, timeout=CONNECT_S, set_as_default=False, name="aotbuild"))
    except BaseException as error:
        opened.set_exception(error)
