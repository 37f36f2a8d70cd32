"""One compile job to one verified code object.

Everything here works without a GPU, in any process: a worker of `aot.compile.pool`, of another executor, or the
caller's own. Triton is imported on first use.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aot.targets import Target, parse_arch
from aot_runtime.bundle.codeobject import KernelMetadata, read_code_object
from aot_runtime.bundle.signature import signature_faults
from aot_runtime.errors import BundleError

from .kernargs import KernargField, kernarg_bytes, kernarg_layout
from .kernel_source import (
    PROCESS_LOCK,
    CompileError,
    KernelFileError,
    KernelFunctionError,
    kernel_parameters,
    load_kernel,
    project,
    source_hash,
    split_function,
    tuple_classes,
)
from .tuples import TupleError, member_paths, nested_types

if TYPE_CHECKING:
    from triton.backends.compiler import BaseBackend
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

__all__ = [
    "CompileError",
    "CompileJob",
    "CompiledKernel",
    "KernelFileError",
    "KernelFunctionError",
    "ast_source",
    "compile_job",
    "job_key",
    "kernarg_layout",
    "kernel_parameters",
    "load_kernel",
    "option_names",
    "source_hash",
]

Constant = int | float | bool | str | None

KEY_VERSION = 1
"""Raised when `compile_job` comes to make something else of the same job, so that old cache entries are not used."""


@dataclass(frozen=True)
class CompileJob:
    """All that decides one code object. Hashable, and picklable to a worker process.

    Attributes:
        root: project root folder, importable by the kernel file.
        source: the kernel file, from `root`.
        function: the `@triton.jit` function in it.
        signature: (parameter, Triton type such as `*fp16`, `i32`, `fp32`, or `constexpr`), in parameter order. Here and
            below, a parameter that is a named tuple is its members, each by its path: `q.ptr`, `q.stride_heads`.
        constants: (parameter, value) of each constexpr parameter that is no function.
        divisible_by_16: parameters whose value is promised to be a multiple of 16.
        pointer_range_32: pointers whose offsets are promised to fit 32 bits; without effect on NVIDIA.
        options: (name, value) of Triton's compiler options: `num_warps`, `num_stages`, `waves_per_eu`, …
        arch: bare name, e.g. `gfx942`.
        line_info: keep the line table, with file names from `root`.
        functions: (parameter, `path.py:function` from `root`) of each constexpr parameter that is a function, to be
            inlined where the kernel calls it.
    """

    root: str
    source: str
    function: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Constant], ...]
    divisible_by_16: tuple[str, ...]
    pointer_range_32: tuple[str, ...]
    options: tuple[tuple[str, Constant], ...]
    arch: str
    line_info: bool = False
    functions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CompiledKernel:
    """A code object that agrees with its job, and what is needed to launch it."""

    image: bytes = field(repr=False)
    symbol: str
    lds_bytes: int
    """Dynamic LDS that a launch must ask for."""
    num_warps: int
    warp_size: int
    global_scratch_bytes: int
    """Scratch memory per workgroup that the launch must point the kernel to; 0: a null pointer will do."""
    global_scratch_align: int
    profile_scratch_bytes: int
    profile_scratch_align: int
    cooperative: bool
    """Whether the whole grid must be resident at once."""
    metadata: KernelMetadata
    compiler: str
    options: dict[str, Any]
    """Every compiler option as it was used, defaults included; JSON values, no paths."""


# Options that are not the user's to give: fixed by the target, or naming files, which no key could cover.
_RESERVED_OPTIONS = frozenset({"arch", "backend_name", "warp_size", "extern_libs", "ir_override"})


@functools.cache
def option_names(target: Target) -> frozenset[str]:
    """Names of the compiler options that a job for `target` may give."""
    return frozenset(field.name for field in dataclasses.fields(_option_class(target))) - _RESERVED_OPTIONS


def compile_job(job: CompileJob) -> CompiledKernel:
    """Compile, read back and verify one kernel. Raises `CompileError`."""
    target = _target(job)
    with project(job.root).active() as modules, _quiet_triton(job.line_info) as log:
        import triton

        kernel = modules.load(job.source, job.function)
        functions = {name: modules.load(*split_function(path)) for name, path in job.functions}
        source = ast_source(job, kernel, functions, target)
        options, _ = _parsed_options(job, target)
        _refuse_unlaunchable(options)
        try:
            compiled = triton.compile(source, target=target.gpu_target(), options=dict(vars(options)))
        except Exception as error:
            raise _compile_error(error, log.read_text(errors="replace")) from None
        image, built = compiled.kernel, compiled.metadata
    metadata = _read_back(image, built.name)
    result = CompiledKernel(
        image=image,
        symbol=built.name,
        lds_bytes=built.shared,
        num_warps=built.num_warps,
        warp_size=built.warp_size,
        global_scratch_bytes=built.global_scratch_size,
        global_scratch_align=built.global_scratch_align,
        profile_scratch_bytes=built.profile_scratch_size,
        profile_scratch_align=built.profile_scratch_align,
        cooperative=built.launch_cooperative_grid,
        metadata=metadata,
        compiler=f"triton {triton.__version__}",
        options=_plain_options(options),
    )
    _verify(result, kernarg_layout(job.signature), target)
    return result


def job_key(job: CompileJob, kernel_hash: str) -> str:
    """Content address of what `compile_job(job)` gives: 64 hex digits, the same in whatever folder the project lies.

    Args:
        kernel_hash: `sources_hash` of the job's kernel and functions.

    Raises:
        CompileError: the target or the options are not valid.
    """
    import triton

    target = _target(job)
    with PROCESS_LOCK, _pinned_knobs(job.line_info):
        options, backend = _parsed_options(job, target)
        parts = {
            "version": KEY_VERSION,
            "kernel": [kernel_hash, job.function, job.source if job.line_info else None],
            "signature": job.signature,
            "constants": sorted(job.constants),
            "functions": sorted(job.functions),
            "divisible_by_16": sorted(job.divisible_by_16),
            "pointer_range_32": sorted(job.pointer_range_32) if target.backend == "hip" else [],
            "options": options.hash(),
            "arch": job.arch,
            "line_info": job.line_info,
            "compiler": [triton.__version__, backend.hash()],
            "environment": _code_environment(),
        }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _target(job: CompileJob) -> Target:
    try:
        return parse_arch(job.arch)
    except ValueError as error:
        raise CompileError(str(error)) from None


# What goes into Triton


def ast_source(job: CompileJob, kernel: JITFunction, functions: dict[str, JITFunction], target: Target) -> ASTSource:
    """The kernel with its signature, constants and hints, each checked against the function's parameters."""
    from triton.compiler import ASTSource

    classes = tuple_classes(kernel)
    try:
        paths = member_paths([name for name, _ in job.signature], kernel.arg_names, classes)
    except TupleError as error:
        raise CompileError(f"signature of {job.function!r} {error}") from None
    types, constants = dict(job.signature), {**dict(job.constants), **functions}
    constexprs = {name for name, type_name in job.signature if type_name == "constexpr"}
    if constexprs != constants.keys():
        raise CompileError(
            f"constexprs of {job.function!r} are {sorted(constexprs)}, but values are given for {sorted(constants)}"
        )
    for hint, hinted in (("divisible_by_16", job.divisible_by_16), ("pointer_range_32", job.pointer_range_32)):
        if wrong := [name for name in hinted if types.get(name, "constexpr") == "constexpr"]:
            raise CompileError(f"{hint} of {job.function!r} names {wrong}, which are not run-time parameters")
    try:
        kernarg_layout(job.signature)
    except ValueError as error:
        raise CompileError(f"signature of {job.function!r}: {error}") from None
    return ASTSource(
        kernel,
        nested_types(types, kernel.arg_names, classes),
        constexprs={paths[name]: value for name, value in constants.items()},
        attrs=_hints(job, paths, target),
    )


def _hints(
    job: CompileJob, paths: dict[str, tuple[int, ...]], target: Target
) -> dict[tuple[int, ...], list[list[str | int]]]:
    hints: dict[tuple[int, ...], list[list[str | int]]] = {}
    for name in sorted(job.divisible_by_16, key=paths.__getitem__):
        hints.setdefault(paths[name], []).append(["tt.divisibility", 16])
    for name in sorted(job.pointer_range_32, key=paths.__getitem__) if target.backend == "hip" else ():
        hints.setdefault(paths[name], []).append(["tt.pointer_range", 32])
    return hints


def _option_class(target: Target) -> type:
    if target.backend == "hip":
        from triton.backends.amd.compiler import HIPOptions

        return HIPOptions
    from triton.backends.nvidia.compiler import CUDAOptions

    return CUDAOptions


def _parsed_options(job: CompileJob, target: Target) -> tuple[Any, BaseBackend]:
    """The backend's own options object, defaults filled in, and the backend."""
    from triton.compiler import make_backend

    allowed = option_names(target)
    for name, _ in job.options:
        if name not in allowed:
            nearest = difflib.get_close_matches(name, allowed, n=1)
            hint = f"; the nearest is {nearest[0]!r}" if nearest else f"; allowed: {', '.join(sorted(allowed))}"
            raise CompileError(f"unknown compiler option {name!r} for {target.arch}{hint}")
    backend = make_backend(target.gpu_target())
    try:
        # Whether multiply and add fuse is always said: Triton's default depends on the environment and is to change.
        return backend.parse_options({"enable_fp_fusion": True, **dict(job.options)}), backend
    except (AssertionError, TypeError, ValueError) as error:
        raise CompileError(f"compiler options {dict(job.options)} for {target.arch}: {error}") from None


def _refuse_unlaunchable(options: Any) -> None:
    if options.launch_cooperative_grid:
        raise CompileError("launch_cooperative_grid: cooperative grids are not supported by the runtime's launch path")
    if options.num_ctas != 1:
        raise CompileError(f"num_ctas={options.num_ctas}: clusters are not supported by the runtime's launch path")


def _plain_options(options: Any) -> dict[str, Any]:
    used = {name: value for name, value in vars(options).items() if name not in ("extern_libs", "ir_override")}
    return json.loads(json.dumps(used, sort_keys=True))


# Triton's process-wide settings

# Settings that `_pinned_knobs` decides, whatever the environment says of them.
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
def _pinned_knobs(line_info: bool) -> Iterator[None]:
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
def _quiet_triton(line_info: bool) -> Iterator[Path]:
    """Compile with a private, empty Triton cache, and with the compiler's own output going to the file yielded."""
    from triton import knobs

    # The pid lets the pool find the output of a worker that the compiler took down with it.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"aotbuild-{os.getpid()}-")))
        stack.enter_context(_pinned_knobs(line_info))
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


def _code_environment() -> dict[str, str]:
    """Every environment variable that Triton reads to decide what code it makes."""
    from triton import knobs
    from triton._C.libtriton import get_cache_invalidating_env_vars

    groups = (knobs.compilation, knobs.language, knobs.amd, knobs.nvidia)
    names = {descriptor.key for group in groups for descriptor in group.knob_descriptors.values()}
    values = {name: os.environ[name] for name in names if name in os.environ}
    values |= get_cache_invalidating_env_vars()
    return {name: value for name, value in values.items() if name not in _PINNED}


# What comes out of it


def _compile_error(error: Exception, log: str) -> CompileError:
    trace = "".join(traceback.format_exception(error)) + (f"\nCompiler output:\n{log}" if log else "")
    return CompileError(_front_end_reason(error) or _back_end_reason(error, log), trace)


def _front_end_reason(error: BaseException) -> str | None:
    """Message and source line of a Triton `CompilationError`, of the innermost function that it passed through."""
    from triton.compiler.errors import CompilationError

    if not isinstance(error, CompilationError):
        return None
    innermost: Any = error
    while isinstance(innermost.__cause__, CompilationError):
        innermost = innermost.__cause__
    return _located(innermost)


def _located(error: Any) -> str:
    from triton.runtime.jit import _triton_jit_function_registry

    message = error.error_message or (str(error.__cause__) if error.__cause__ else type(error).__name__)
    line = getattr(error.node, "lineno", None)
    if error.src is None or line is None:
        return message
    text = error.src.split("\n")[line - 1].strip()
    owner = next((kernel for kernel in _triton_jit_function_registry.values() if kernel.src == error.src), None)
    where = f"{owner.file_name}:{owner.def_file_line_number + line - 1}" if owner else f"line {line}"
    return f"{where}: {message}\n    {text}"


def _back_end_reason(error: Exception, log: str) -> str:
    """First line of an exception from a compiler pass, and the diagnostics that the pass printed."""
    text = f"{error}\n{log}"
    found = [line.strip() for line in text.splitlines() if re.search(r"\b(error|fatal)\b\s*:", line, re.IGNORECASE)]
    details = [line for line in dict.fromkeys(found) if "Failures have been detected" not in line]
    summary = str(error).strip().partition("\n")[0] or type(error).__name__
    return "\n    ".join([summary, *details[:4]])


def _read_back(image: bytes, symbol: str) -> KernelMetadata:
    try:
        return read_code_object(image).kernel(symbol)
    except BundleError as error:
        raise CompileError(f"the code object that Triton made cannot be read back: {error}") from error


def _verify(kernel: CompiledKernel, layout: tuple[KernargField, ...], target: Target) -> None:
    """Raise `CompileError` unless the code object is what the job's signature and target make the runtime expect."""
    metadata = kernel.metadata
    faults = [
        f"{what} is {found}, not {expected}"
        for what, found, expected in (
            ("its architecture", read_code_object(kernel.image).arch, target.arch),
            ("its wavefront size, says the compiler,", kernel.warp_size, target.warp_size),
        )
        if found != expected
    ]
    faults += signature_faults(
        metadata,
        layout,
        kernarg_bytes=kernarg_bytes(layout),
        num_warps=kernel.num_warps,
        warp_size=target.warp_size,
    )
    if faults:
        raise CompileError(f"kernel {kernel.symbol!r} is not what was asked for: {'; '.join(faults)}")
    # A cubin's static part is the system's own, beside what the limit is for.
    static = metadata.static_lds_bytes if target.backend == "hip" else 0
    if kernel.lds_bytes + static > target.lds_bytes:
        raise CompileError(
            f"kernel {kernel.symbol!r} needs {kernel.lds_bytes + static} bytes of LDS per workgroup; "
            f"{target.arch} allows {target.lds_bytes}: use smaller blocks or fewer num_stages"
        )
