"""Errors of builds and of kernels."""

from __future__ import annotations

import signal

from aot_runtime.errors import AotError
from aot_runtime.texts import escaped


class BuildError(AotError):
    """A build cannot continue: the output cannot be written, or a cluster cannot be used."""


class CompileError(AotError):
    """A kernel cannot be built.

    Attributes:
        reason: description of the fault in a few lines, with the offending line of the kernel if there is one.
        traceback_text: the full Python traceback of the cause; empty if the reason is sufficient.
    """

    def __init__(self, reason: str, traceback_text: str = ""):
        super().__init__(reason, traceback_text)
        self.reason, self.traceback_text = reason, traceback_text

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.reason.split("\n"))

    def __str__(self) -> str:
        return "\n".join(map(escaped, self.lines))


class KernelFileError(CompileError):
    """A kernel file is missing, changed during the build, or failed in statements that its kernel needs."""


class KernelFunctionError(CompileError):
    """A kernel file has no `@triton.jit` function of the name."""


def described(error: BaseException) -> str:
    """Describe an exception in one line."""
    return ": ".join(filter(None, [type(error).__name__, str(error)]))


def is_interrupt(error: BaseException) -> bool:
    """Tell the user's Ctrl-C from a KeyboardInterrupt that a kernel's file raises in a process that ignores SIGINT."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
