"""Watch a process while it handles an input: it may only read below one folder.

By Python's audit events, starting a process, opening a connection, loading a library or writing a file raises
`ForbiddenError`. It is not an `Exception`, so no handler catches it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN = frozenset(
    {"os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.kill",
     "os.killpg",
     "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
     "subprocess.Popen", "pty.spawn", "socket.connect", "socket.bind", "socket.getaddrinfo",
     "ctypes.dlopen", "pickle.find_class", "webbrowser.open", "sys.addaudithook", "sys.settrace", "signal.pthread_kill"}
)  # fmt: skip


class ForbiddenError(BaseException):
    """Raised if an input causes an action that no input may cause."""


class Watch:
    """The audit hook of this process. There is only one, as hooks cannot be removed."""

    def __init__(self) -> None:
        self._allowed: tuple[str, ...] | None = None
        known = (*sys.path, sys.prefix, sys.base_prefix, Path(__file__).parents[2])
        self._sources = tuple(str(Path(path).absolute()) for path in known if path)
        sys.addaudithook(self._event)

    @contextmanager
    def over(self, *folders: Path) -> Iterator[None]:
        """Allow reading below these folders and from Python's own files, and nothing else."""
        self._allowed = tuple(map(str, folders))
        try:
            yield
        finally:
            self._allowed = None

    def _event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._allowed is None:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING:
                raise self._stop(f"{path} was opened for writing")
            if isinstance(path, str | bytes) and os.path.isabs(path) and not self._may_read(os.fsdecode(path)):
                raise self._stop(f"{path!r} was read")
        elif event in _FORBIDDEN:
            raise self._stop(f"{event}{arguments!r:.200}")

    def _may_read(self, path: str) -> bool:
        assert self._allowed is not None
        return os.path.normpath(path).startswith((*self._allowed, *self._sources))

    def _stop(self, what: str) -> ForbiddenError:
        self._allowed = None
        return ForbiddenError(what)
