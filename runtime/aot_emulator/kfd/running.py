"""Programs run with emulated GPUs: `run_program`, which `aotbundle emulate` is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path

from aot_emulator.machine.launch_options import IGNORE_VARIABLE, STRICT_VARIABLE, TIME_LIMIT_VARIABLE
from aot_emulator.timing.constants import machine_of
from aot_runtime.errors import DeviceError
from aot_runtime.terminal import write_lines

from .models import MODELS, find_model
from .protocol import LOADED, MAX_DEVICES, OPENED
from .shim import build_shim
from .timed import Timed
from .topology import write_machine

FOLDER_VARIABLE = "AOTBUILD_KFD"
"""Environment variable: the folder of the emulated machine, for the preloaded library."""
_END_S = 15.0
_BACKLOG = 64


@contextmanager
def emulated_machine(
    devices: Sequence[str] = ("mi300x",),
    environment: Mapping[str, str] | None = None,
    profile: bool = False,
    timed: Timed | None = None,
) -> Iterator[dict[str, str]]:
    """A machine with these GPUs: the environment that its programs are to be run with.

    Programs need AMD's libraries, of their own or the system's; children of theirs have the GPUs too.

    Args:
        devices: names of GPUs, one for each, as `models.MODELS` has them.
        environment: what the programs' is made of; by default this process's.
        profile: write a table of what the kernels did to standard error when a program ends.
        timed: dispatches whose time is modelled, which is written to standard error.

    Raises `DeviceError` where this is not Linux, where there is no compiler, no such GPU, or too many, and where the
    model of time has no figures of a GPU that it is asked for.
    """
    if sys.platform != "linux":
        raise DeviceError(f"GPUs are emulated under AMD's runtime on Linux alone, and this is {sys.platform}")
    if not 0 < len(devices) <= MAX_DEVICES:
        raise DeviceError(f"{len(devices)} GPUs are asked for; 1 to {MAX_DEVICES} can be emulated")
    models = [find_model(name) for name in devices]
    for model in models if timed is not None else ():
        machine_of(model.arch.name)
    library = build_shim()
    given = dict(os.environ if environment is None else environment)
    with (
        tempfile.TemporaryDirectory(prefix="aotbuild-kfd-") as name,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
    ):
        folder = Path(name)
        try:
            write_machine(folder, models)
            listening.bind(str(folder / "gpu"))
        except OSError as error:  # of a path that is too long for a socket, too
            raise DeviceError(f"the emulated machine cannot be put into {folder} (TMPDIR): {error}") from None
        listening.listen(_BACKLOG)
        names = [next(key for key, model in MODELS.items() if model is found) for found in models]
        arguments = [str(listening.fileno()), *names, *(["--profile"] if profile else [])]
        if timed is not None:
            arguments += [f"--time={timed.kernels.pattern}", *(["--time-only"] if timed.only else [])]
        command = [sys.executable, "-m", "aot_emulator.kfd.server", *arguments]
        # In the program's session, and so in its scheduling group (sched(7), autogroup): ROCr waits for copies in a
        # loop without a pause, beside which a process of another group may get no time on a busy machine.
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[listening.fileno()], process_group=0,
            env={**given, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        listening.close()  # only the server listens: where it has ended, programs are refused
        try:
            yield given | _variables(given, library, folder)
        finally:
            server.terminate()
            try:
                server.wait(_END_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _variables(given: Mapping[str, str], library: Path, folder: Path) -> dict[str, str]:
    preloaded = [str(library), *filter(None, [given.get("LD_PRELOAD")])]
    found = {
        "LD_PRELOAD": ":".join(preloaded),
        FOLDER_VARIABLE: str(folder),
        "HSA_USERPTR_FOR_PAGED_MEM": "0",  # queues and signals in memory that is shared
    }
    if given.get(STRICT_VARIABLE, "") not in ("", "0"):
        found["HSA_DISABLE_FRAGMENT_ALLOCATOR"] = "1"  # an allocation of the driver for each of the program's
    return found


def run_program(
    program: Sequence[str], devices: Sequence[str] = ("mi300x",), strict: bool = False, ignored: Sequence[str] = (),
    time_limit_s: float | None = None, profile: bool = False, timed: Timed | None = None,
) -> int:  # fmt: skip
    """Run a program with emulated GPUs: its exit status, or 128 and the number of the signal that ended it.

    Args:
        program: the program and its arguments.
        devices: names of GPUs, one for each.
        strict: have launches watched by the sanitizer.
        ignored: kinds of faults that it passes over.
        time_limit_s: seconds that a launch may take.
        profile: write a table of what the kernels did to standard error at the end.
        timed: dispatches whose time is modelled: a line for each, on standard error.

    Raises `DeviceError` where the machine or the program cannot be had.
    """
    environment = dict(os.environ)
    if strict:
        environment[STRICT_VARIABLE] = "1"
    if ignored:
        environment[IGNORE_VARIABLE] = ",".join(ignored)
    if time_limit_s is not None:
        environment[TIME_LIMIT_VARIABLE] = str(time_limit_s)
    with emulated_machine(devices, environment, profile, timed) as variables:
        try:
            running = subprocess.Popen(program, env=variables)
        except OSError as error:
            raise DeviceError(f"{program[0]} cannot be run: {error.strerror}") from None
        with _signals_of(running):
            status = running.wait()
        folder = Path(variables[FOLDER_VARIABLE])
        if not (folder / OPENED).exists():
            write_lines([f"aotbuild emulator: {_why_unopened(program[0], folder)}"], err=True)
    return status if status >= 0 else 128 - status


def _why_unopened(program: str, folder: Path) -> str:
    if not (folder / LOADED).exists():
        return (
            f"{program} has not loaded the library that emulates the driver, so it has used no GPU: it is linked "
            "statically, or runs with another C library than the compiler here builds for"
        )
    reason = f"{program} has not opened /dev/kfd, so it has used no GPU"
    if find_library("hsa-runtime64") or find_library("amdhip64"):
        return reason
    return (
        f"{reason}; the dynamic loader knows no libamdhip64 and no libhsa-runtime64: install ROCm's user-mode "
        "libraries (Debian sid: apt install libamdhip64-6), or name their folder in LD_LIBRARY_PATH"
    )


@contextmanager
def _signals_of(running: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals that end this process on to the program; the terminal's interrupt reaches both."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: running.terminate()),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
