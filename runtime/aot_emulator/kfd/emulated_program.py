"""Run programs with emulated GPUs, for `aotbundle emulate`."""

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
"""Environment variable that passes the folder of the emulated machine to the preloaded library."""
_END_S = 15.0
_BACKLOG = 64


@contextmanager
def emulated_machine(
    devices: Sequence[str] = ("mi300x",),
    environment: Mapping[str, str] | None = None,
    profile: bool = False,
    timed: Timed | None = None,
) -> Iterator[dict[str, str]]:
    """Start a machine with emulated GPUs, and yield the environment variables for programs that use it.

    Programs need AMD's libraries, bundled or installed on the system. Child processes can use the GPUs too.

    Args:
        devices: GPU names from `models.MODELS`, one for each device.
        environment: base environment of the programs; default: this process's.
        profile: write a table of kernel statistics to standard error when a program ends.
        timed: dispatches to model; their times are written to standard error.

    Raises:
        DeviceError: the system is not Linux, no compiler is found, a GPU is unknown or not supported by the time model,
            or too many GPUs are requested.
    """
    if sys.platform != "linux":
        raise DeviceError(f"emulating GPUs for AMD's runtime requires Linux, not {sys.platform}")
    if not 0 < len(devices) <= MAX_DEVICES:
        raise DeviceError(f"{len(devices)} GPUs requested; 1 to {MAX_DEVICES} can be emulated")
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
        except OSError as error:  # includes paths that are too long for a socket
            raise DeviceError(f"cannot create the emulated machine in {folder} (TMPDIR): {error}") from None
        listening.listen(_BACKLOG)
        names = [next(key for key, model in MODELS.items() if model is found) for found in models]
        arguments = [str(listening.fileno()), *names, *(["--profile"] if profile else [])]
        if timed is not None:
            arguments += [f"--time={timed.kernels.pattern}", *(["--time-only"] if timed.only else [])]
        command = [sys.executable, "-m", "aot_emulator.kfd.server", *arguments]
        # Keep the server in the program's session and thus scheduling group (sched(7), autogroup). ROCr busy-waits for
        # copies, which can starve processes of other groups on a busy machine.
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=[listening.fileno()], process_group=0,
            env={**given, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        listening.close()  # only the server listens: connections fail once it has ended
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
        "HSA_USERPTR_FOR_PAGED_MEM": "0",  # keep queues and signals in shared memory
    }
    if given.get(STRICT_VARIABLE, "") not in ("", "0"):
        found["HSA_DISABLE_FRAGMENT_ALLOCATOR"] = "1"  # a driver allocation for each allocation of the program
    return found


def run_program(
    program: Sequence[str], devices: Sequence[str] = ("mi300x",), strict: bool = False, ignored: Sequence[str] = (),
    time_limit_s: float | None = None, profile: bool = False, timed: Timed | None = None,
) -> int:  # fmt: skip
    """Run a program with emulated GPUs. Returns its exit status, or 128 + N if signal N ended it.

    Args:
        program: the program and its arguments.
        devices: GPU names, one for each device.
        strict: check launches with the sanitizer.
        ignored: kinds of faults that the sanitizer ignores.
        time_limit_s: maximum duration of a launch in seconds.
        profile: write a table of kernel statistics to standard error at the end.
        timed: dispatches to model; a line for each is written to standard error.

    Raises:
        DeviceError: the machine or the program cannot be started.
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
            raise DeviceError(f"cannot run {program[0]}: {error.strerror}") from None
        with _signals_of(running):
            status = running.wait()
        folder = Path(variables[FOLDER_VARIABLE])
        if not (folder / OPENED).exists():
            write_lines([f"aotbuild emulator: {_why_unopened(program[0], folder)}"], err=True)
    return status if status >= 0 else 128 - status


def _why_unopened(program: str, folder: Path) -> str:
    if not (folder / LOADED).exists():
        return (
            f"{program} did not load the library that emulates the driver, so it used no GPU: it is linked "
            "statically, or uses another C library than this machine's compiler"
        )
    reason = f"{program} did not open /dev/kfd, so it used no GPU"
    if find_library("hsa-runtime64") or find_library("amdhip64"):
        return reason
    return (
        f"{reason}; the dynamic loader finds neither libamdhip64 nor libhsa-runtime64: install ROCm's user-mode "
        "libraries (Debian sid: apt install libamdhip64-6), or add their folder to LD_LIBRARY_PATH"
    )


@contextmanager
def _signals_of(running: subprocess.Popen[bytes]) -> Iterator[None]:
    """Forward SIGTERM to the program, and ignore SIGINT, which the terminal sends to both processes."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: running.terminate()),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
