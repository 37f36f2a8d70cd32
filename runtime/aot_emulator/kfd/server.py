"""GPU server of an emulated machine: `python -m aot_emulator.kfd.server FD MODEL…`.

Programs connect to the socket FD. The server forks a GPU process for each program that opens the driver, with options
from the environment. On SIGTERM it waits for the programs' reports and exits.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

from aot_emulator.machine.launch_options import Options, options_of_environment
from aot_runtime.terminal import write_lines

from .gpu import Gone, Gpus
from .models import MODELS, Model
from .timed import Timed

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_GRACE_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=int)
    parser.add_argument("models", nargs="+", choices=MODELS)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--time", type=re.compile)
    parser.add_argument("--time-only", action="store_true")
    given = parser.parse_args()
    _die_with_parent()
    options = replace(options_of_environment(), profile=given.profile, lds_is_bounded=False)  # as on hardware
    timed = None if given.time is None else Timed(given.time, given.time_only)
    serve(socket.socket(fileno=given.socket), [MODELS[name] for name in given.models], options, timed)


def serve(listening: socket.socket, models: Sequence[Model], options: Options, timed: Timed | None = None) -> None:
    """Serve each program that connects in a forked process, until SIGTERM."""
    players: set[int] = set()

    def end(_signal: int, _frame: FrameType | None) -> None:
        _wait_for(players)
        os._exit(0)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)
    while True:
        connection, _ = listening.accept()
        players -= {pid for pid in players if os.waitpid(pid, os.WNOHANG)[0]}
        if pid := os.fork():
            players.add(pid)
            connection.close()
            continue
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _die_with_parent()
        listening.close()
        _play(connection, models, options, timed)


def _play(connection: socket.socket, models: Sequence[Model], options: Options, timed: Timed | None) -> None:
    status = 1
    try:
        gpus = Gpus(connection, models, options, _say, timed)
        gpus.serve()
        write_lines(gpus.report.lines(), err=True)
        status = 0
    except (Gone, ProcessLookupError, FileNotFoundError):  # the program has already ended
        status = 0
    except OSError as error:
        _say(f"cannot access the program's memory like a debugger (ptrace): {error}")
    finally:
        sys.stderr.flush()
        os._exit(status)


def _wait_for(players: set[int]) -> None:
    deadline = time.monotonic() + _GRACE_S
    while players and time.monotonic() < deadline:
        players -= {pid for pid in players if os.waitpid(pid, os.WNOHANG)[0]}
        time.sleep(0.01)
    for pid in players:
        os.kill(pid, signal.SIGKILL)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)


def _say(text: str) -> None:
    write_lines((f"aotbuild emulator: {line}" for line in text.splitlines()), err=True)
    sys.stderr.flush()


if __name__ == "__main__":
    main()
