"""Programs that a command runs with `aot_capture` in their processes: environment, signals, exit status."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import click

import aot_capture
from aot.targets import Target
from aot_bundle.terminal import write
from aot_runtime.contract.arch import CUDA

SITE = Path(aot_capture.__file__).parent / "site"
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that start `aot_capture` in a program and in the processes that it starts."""
    path = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
    return {**settings, "PYTHONPATH": path}


def print_exports(settings: Mapping[str, str]) -> None:
    """Print the variables as a shell reads them, for a program that is started elsewhere."""
    for name, value in settings.items():
        write(f"export {name}={shlex.quote(value)}")
    write(f'export PYTHONPATH={shlex.quote(str(SITE))}"${{PYTHONPATH:+:$PYTHONPATH}}"')


def triton_target(target: Target) -> str:
    """Return a target as `aot_capture.no_gpu` reads it."""
    arch = target.arch.removeprefix("sm_") if target.backend == CUDA.name else target.arch
    return f"{target.backend}:{arch}:{target.warp_size}"


def run_program(command: tuple[str, ...], settings: Mapping[str, str]) -> int:
    """Run a program to its end, pass signals on to it, and return its exit status: 128 + N after signal N."""
    try:
        process = subprocess.Popen(command, env={**os.environ, **environment(settings)})
    except OSError as error:
        raise click.UsageError(f"cannot start {command[0]}: {error.strerror}") from None

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    with ExitStack() as handlers:
        handlers.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_IGN))
        for number in _FORWARDED:
            handlers.callback(signal.signal, number, signal.signal(number, forward))
        status = process.wait()
    return 128 - status if status < 0 else status
