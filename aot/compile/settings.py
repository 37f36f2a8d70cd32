"""Compiler options, and the process-wide settings of Triton that change code."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from aot.errors import CompileError
from aot.targets import Target
from aot_runtime.contract.arch import HIP

from .diagnostics import MAX_TOLD, last_words, ptxas_output

# Options that are not the user's to give: fixed by the target, or naming files, which no key could cover.
_RESERVED_OPTIONS = frozenset({"arch", "backend_name", "warp_size", "extern_libs", "ir_override"})


@functools.cache
def option_names(target: Target) -> frozenset[str]:
    """Return the names of the compiler options that a job for `target` may have."""
    return frozenset(field.name for field in dataclasses.fields(_option_class(target))) - _RESERVED_OPTIONS


def _option_class(target: Target) -> type:
    if target.backend == HIP.name:
        from triton.backends.amd.compiler import HIPOptions

        return HIPOptions
    from triton.backends.nvidia.compiler import CUDAOptions

    return CUDAOptions


def parsed_options(options: Iterable[tuple[str, Any]], target: Target) -> Any:
    """Return the backend's options object with defaults filled in. Raises `CompileError`."""
    from triton.compiler import make_backend

    given, allowed = dict(options), option_names(target)
    for name in given:
        if name not in allowed:
            nearest = difflib.get_close_matches(name, allowed, n=1)
            hint = f"; the nearest is {nearest[0]!r}" if nearest else f"; allowed: {', '.join(sorted(allowed))}"
            raise CompileError(f"unknown compiler option {name!r} for {target.arch}{hint}")
    try:
        # Whether multiply and add fuse is always said: Triton's default depends on the environment and is to change.
        return make_backend(target.gpu_target()).parse_options({"enable_fp_fusion": True, **given})
    except (AssertionError, TypeError, ValueError) as error:
        raise CompileError(f"compiler options {given} for {target.arch}: {error}") from None


def plain_options(options: Any) -> dict[str, Any]:
    used = {name: value for name, value in vars(options).items() if name not in ("extern_libs", "ir_override")}
    return json.loads(json.dumps(used, sort_keys=True))


# Settings that `pinned_knobs` decides, whatever the environment says of them.
_PINNED = frozenset(
    {
        "TRITON_DISABLE_LINE_INFO",
        "TRITON_STORE_BINARY_ONLY",
        "TRITON_ALWAYS_COMPILE",
        "TRITON_KERNEL_OVERRIDE",
        "TRITON_OVERRIDE_ARCH",
        "TRITON_DUMP_PTXAS_LOG",
    }
)


@contextmanager
def pinned_knobs(line_info: bool) -> Iterator[None]:
    """Override settings of the environment that would change code without changing its key."""
    from triton import knobs

    with knobs.compilation.scope(), knobs.runtime.scope(), knobs.nvidia.scope():
        knobs.compilation.disable_line_info = not line_info
        knobs.compilation.store_binary_only = True
        knobs.compilation.always_compile = True
        knobs.compilation.override = False
        knobs.runtime.override_arch = None
        knobs.nvidia.dump_ptxas_log = True  # its warnings; what is an error is told in any case
        yield


@dataclasses.dataclass(frozen=True)
class CompilerOutput:
    """Output of a compilation, in files, so that it can be read even after the compiler crashed its process.

    Attributes:
        native: output that MLIR, LLVM and the programs that they start wrote to the file descriptors.
        python: output that Triton and the kernel's files printed, including ptxas's, which Triton prints.
        about: description of the compilation, for the error if its process dies.
    """

    native: Path
    python: Path
    about: Path

    @classmethod
    def within(cls, folder: Path) -> CompilerOutput:
        return cls(folder / "native", folder / "python", folder / "about")

    @classmethod
    def of_process(cls, folder: Path, pid: int | None) -> list[CompilerOutput]:
        """Find the output of compilations that a process did not finish, in its folder of temporary files."""
        return [cls.within(path) for path in sorted(folder.glob(f"{_PREFIX}{pid}-*"))]

    def text(self) -> str:
        """Return the whole output."""
        return _text(self.native) + _text(self.python)

    def sizes(self) -> tuple[int, int]:
        """Return the sizes of the output so far."""
        return len(_text(self.native)), len(_text(self.python))

    def of_compilers(self, after: tuple[int, int] = (0, 0)) -> str:
        """Return the output of programs other than Python after these sizes."""
        return _text(self.native)[after[0] :] + ptxas_output(_text(self.python)[after[1] :])

    def epitaph(self) -> list[str]:
        """Explain how a process ended: the compiler's last words, then what was compiled."""
        return [*last_words(_text(self.native)), *_text(self.about).splitlines()[:MAX_TOLD]]


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


_PREFIX = "aotbuild-"


@contextmanager
def quiet_triton(line_info: bool) -> Iterator[CompilerOutput]:
    """Compile with a private, empty Triton cache, and with the compiler's own output going to the files yielded."""
    from triton import knobs

    # The pid lets the pool find the output of a worker that the compiler took down with it.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-")))
        stack.enter_context(pinned_knobs(line_info))
        stack.enter_context(knobs.cache.scope())
        knobs.cache.dir = str(folder / "cache")
        knobs.cache.manager_class = None
        output = CompilerOutput.within(folder)
        stack.enter_context(_output_to(output))
        yield output


@contextmanager
def _output_to(output: CompilerOutput) -> Iterator[None]:
    """Redirect the output of the process to files.

    MLIR, LLVM and the programs that Triton starts write to the file descriptors. Python's output is kept apart, since a
    kernel may print anything while it is compiled.
    """
    with output.native.open("wb") as file, output.python.open("w", buffering=1) as text, ExitStack() as stack:
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            saved = os.dup(descriptor)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, descriptor)
            stack.callback(stream.flush)
            os.dup2(file.fileno(), descriptor)
        stack.enter_context(redirect_stdout(text))
        stack.enter_context(redirect_stderr(text))
        yield


def code_environment() -> dict[str, str]:
    """Return the environment variables that change Triton's code."""
    from triton import knobs
    from triton._C.libtriton import get_cache_invalidating_env_vars

    groups = (knobs.compilation, knobs.language, knobs.amd, knobs.nvidia)
    names = {descriptor.key for group in groups for descriptor in group.knob_descriptors.values()}
    values = {name: os.environ[name] for name in names if name in os.environ}
    values |= get_cache_invalidating_env_vars()
    return {name: value for name, value in values.items() if name not in _PINNED}
