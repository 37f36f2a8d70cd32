"""What the pool's tests run in workers in place of `compile_job`: a job's `function` says what to do."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from aot.compile.jobs import CompiledKernel, CompileJob
from aot.compile.project import CompileError


def act(job: CompileJob) -> CompiledKernel:
    verb, _, argument = job.function.partition(":")
    return ACTIONS[verb](argument)


def crash_once(marker: str):
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    return "second"


def crash_always(marker: str):
    with Path(marker).open("a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGABRT)


def fail(reason: str):
    raise CompileError(reason, f"Traceback of {reason}")


def child(folder: str):
    """Wait for a process of its own, as Triton waits for ptxas."""
    waiting = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(folder, f"{os.getpid()}.worker").touch()
    Path(folder, f"{waiting.pid}.child").touch()
    waiting.wait()


def hold(folder: str):
    """Hold the interpreter in one C call, as LLVM does: no Python signal handler can run."""
    Path(folder, f"{os.getpid()}.worker").touch()
    sum(range(10**12))


ACTIONS = {
    "echo": lambda argument: argument,
    "pid": lambda _: os.getpid(),
    "sleep": lambda seconds: time.sleep(float(seconds)),
    "exit": lambda code: os._exit(int(code)),
    "raise": lambda message: (_ for _ in ()).throw(KeyError(message)),
    "fail": fail,
    "crash_once": crash_once,
    "crash_always": crash_always,
    "child": child,
    "hold": hold,
}
