"""A process for foreign code: if that code exits, crashes or hangs, it ends its own process only."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

from aot_runtime.errors import AotError

from .errors import CompileError, described

T = TypeVar("T")


class WorkerDiedError(AotError):
    """The process that ran a job ended abnormally: a crash of the compiler, or out of memory."""


class TimeLimitError(AotError):
    """A job ran past its time limit, and its process was killed."""


class ForkedProcess:
    """A fork of this process that runs functions which execute users' files, one at a time.

    It starts at the first `run` and keeps what it imports. After it had to be killed, the next `run` forks another. A
    fork takes milliseconds if Triton is imported already. The process never outlives this one.
    """

    def __init__(self, limit_s: float | None = None):
        """`limit_s` is the time limit of one `run`."""
        self._limit_s = limit_s
        self._process: ForkProcess | None = None
        self._lifeline = -1

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a module's function with plain arguments, and return its result.

        Raises:
            TimeLimitError: it took too long.
            WorkerDiedError: the process ended.
            AotError: raised by the function. Any other exception becomes a `CompileError` that describes it.
        """
        if self._process is None:
            self._start()
        try:
            self._connection.send((function, arguments))
            if not self._connection.poll(self._limit_s):
                raise TimeLimitError(f"timed out after {self._limit_s:g} s")
            error, result = self._connection.recv()
        except (EOFError, ConnectionError):
            raise WorkerDiedError(f"the process that ran it {self._ending()}") from None
        except BaseException:
            self.close()
            raise
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the process, and all that it started."""
        if self._process is not None and self._process.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join()
            self._connection.close()
            os.close(self._lifeline)
        self._process = None

    def _start(self) -> None:
        reader, self._lifeline = os.pipe()
        self._connection, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        arguments = (theirs, self._connection, reader, self._lifeline)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        with warnings.catch_warnings():  # Python 3.12 warns where numpy has threads, which know how to be forked
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()
        os.close(reader)
        with suppress(OSError):  # it does so itself, and may have ended
            os.setpgid(self._process.pid or 0, self._process.pid or 0)

    def _ending(self) -> str:
        assert self._process is not None
        self._process.join(1)
        code = self._process.exitcode
        self.close()
        return ending(code)


def ending(code: int | None) -> str:
    """Describe how a process ended, by its exit code."""
    if code is None:
        return "closed its connection"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def die_with(lifeline: int) -> None:
    """Kill this process's group once the other end of a pipe is closed.

    The operating system does so, whatever runs: Python, LLVM, or a process that waits for ptxas.

    Args:
        lifeline: the reading end of the pipe. It stays open.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)


def _serve(connection: Connection, theirs: Connection, lifeline: int, held: int) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the build, which then ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    theirs.close()
    os.close(held)
    die_with(lifeline)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        connection.send(_outcome(function, arguments))


def _outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[AotError | None, Any]:
    try:
        result = function(*arguments)
        with suppress(Exception):  # what a file prints; it may have closed that, too
            sys.stdout.flush()
        return None, result
    except AotError as error:
        return error, None
    except BaseException as error:
        return CompileError(described(error), traceback.format_exc()), None
