"""What Triton is told beside the kernel: compiler options, and the process-wide settings that change code."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from aot.targets import Target

from .errors import CompileError

# Options that are not the user's to give: fixed by the target, or naming files, which no key could cover.
_RESERVED_OPTIONS = frozenset({"arch", "backend_name", "warp_size", "extern_libs", "ir_override"})


@functools.cache
def option_names(target: Target) -> frozenset[str]:
    """Names of the compiler options that a job for `target` may give."""
    return frozenset(field.name for field in dataclasses.fields(_option_class(target))) - _RESERVED_OPTIONS


def _option_class(target: Target) -> type:
    if target.backend == "hip":
        from triton.backends.amd.compiler import HIPOptions

        return HIPOptions
    from triton.backends.nvidia.compiler import CUDAOptions

    return CUDAOptions


def parsed_options(options: Iterable[tuple[str, Any]], target: Target) -> Any:
    """The backend's own options object, defaults filled in. Raises `CompileError`."""
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
    }
)


@contextmanager
def pinned_knobs(line_info: bool) -> Iterator[None]:
    """Set what must not come from the environment: it would change code behind the key's back."""
    from triton import knobs

    with knobs.compilation.scope(), knobs.runtime.scope():
        knobs.compilation.disable_line_info = not line_info
        knobs.compilation.store_binary_only = True
        knobs.compilation.always_compile = True
        knobs.compilation.override = False
        knobs.runtime.override_arch = None
        yield


@contextmanager
def quiet_triton(line_info: bool) -> Iterator[Path]:
    """Compile with a private, empty Triton cache, and with the compiler's own output going to the file yielded."""
    from triton import knobs

    # The pid lets the pool find the output of a worker that the compiler took down with it.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"aotbuild-{os.getpid()}-")))
        stack.enter_context(pinned_knobs(line_info))
        stack.enter_context(knobs.cache.scope())
        knobs.cache.dir = str(folder / "cache")
        knobs.cache.manager_class = None
        log = folder / "log"
        stack.enter_context(_output_to(log))
        yield log


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Send the process's standard output and error to a file: MLIR, LLVM and ptxas write to the descriptors."""
    with path.open("wb") as file, ExitStack() as stack:
        for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
            stream.flush()
            saved = os.dup(descriptor)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, descriptor)
            stack.callback(stream.flush)
            os.dup2(file.fileno(), descriptor)
        yield


def code_environment() -> dict[str, str]:
    """Every environment variable that Triton reads to decide what code it makes."""
    from triton import knobs
    from triton._C.libtriton import get_cache_invalidating_env_vars

    groups = (knobs.compilation, knobs.language, knobs.amd, knobs.nvidia)
    names = {descriptor.key for group in groups for descriptor in group.knob_descriptors.values()}
    values = {name: os.environ[name] for name in names if name in os.environ}
    values |= get_cache_invalidating_env_vars()
    return {name: value for name, value in values.items() if name not in _PINNED}
