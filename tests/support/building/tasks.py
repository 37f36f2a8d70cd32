"""Functions that tests run in workers instead of `compile_job`, selected by a job's `function`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aot.compile.jobs import CompileJob
from aot.errors import CompileError


def act(job: CompileJob) -> Any:
    verb, _, argument = job.function.partition(":")
    return ACTIONS[verb](argument)


def crash_once(marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    return "second"


def die(marker: str) -> None:
    with Path(marker).open("a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


def throw(error: Exception) -> None:
    raise error


def child(folder: str) -> None:
    """Wait for a process of its own, as Triton waits for ptxas."""
    waiting = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    Path(folder, f"{os.getpid()}.worker").touch()
    Path(folder, f"{waiting.pid}.child").touch()
    waiting.wait()


def hold(folder: str) -> None:
    """Hold the interpreter in one C call, as LLVM does: no Python signal handler can run."""
    Path(folder, f"{os.getpid()}.worker").touch()
    sum(range(10**12))


ACTIONS = {
    "echo": lambda argument: argument,
    "pid": lambda _: os.getpid(),
    "touch": lambda marker: Path(marker).touch(),
    "until": lambda marker: wait_for(Path(marker).exists),
    "die": die,
    "raise": lambda message: throw(KeyError(message)),
    "fail": lambda reason: throw(CompileError(reason, f"Traceback of {reason}")),
    "crash_once": crash_once,
    "child": child,
    "hold": hold,
}


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)
