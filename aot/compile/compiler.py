"""Compile one job to a verified code object.

This needs no GPU and runs in any process. Triton is imported on first use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from warnings import catch_warnings as recorded_warnings
from warnings import simplefilter

from aot.errors import CompileError, KernelFileError, described, is_interrupt
from aot.source.assumed_driver import assumed_driver
from aot.source.constants import triton_constant
from aot.source.kernel_source import split_function, tuple_classes
from aot.source.project import project
from aot.source.source_hash import sources_hash
from aot.targets import Target
from aot_bundle.signature import signature_faults
from aot_runtime.bundle.codeobject import KernelMetadata, read_code_object
from aot_runtime.bundle.elf_header import read_arch
from aot_runtime.contract.arch import ARCHITECTURES, BACKENDS, HIP
from aot_runtime.contract.records import TENSOR_MAP
from aot_runtime.contract.tensor_maps import SWIZZLES
from aot_runtime.errors import BundleError

from .accesses import KINDS, pointer_accesses, watched_stages
from .descriptors import descriptor_fields, is_descriptor, is_map, map_box, run_time_arguments
from .diagnostics import Diagnostic, diagnostics, errors, located, warnings
from .foreign import ForeignCode, foreign_code
from .jobs import CompiledKernel, CompileJob, job_target
from .kernargs import KernargField, kernarg_bytes, kernarg_layout
from .keys import JobKeys
from .reasons import Evidence, compile_error
from .settings import CompilerOutput, parsed_options, pinned_knobs, plain_options, quiet_triton
from .tuples import TupleError, member_paths, nested_types

if TYPE_CHECKING:
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

T = TypeVar("T")


def compile_job(job: CompileJob) -> CompiledKernel:
    """Compile, read back and verify one kernel. Raises `CompileError`."""
    return _compiled(job)


def compile_job_again(job: CompileJob) -> CompiledKernel:
    """Compile a job whose process died. The kernel's foreign code is recorded first, so that a second death can be
    explained."""
    return _compiled(job, died=True)


def _compiled(job: CompileJob, died: bool = False) -> CompiledKernel:
    target = job_target(job)
    with project(job.root).active(dict(job.sources) or None, target) as modules, quiet_triton(job.line_info) as output:
        import triton
        from triton.compiler.errors import CompilationError

        watch = _Watch(job, target, output)
        triton.knobs.runtime.add_stages_inspection_hook = watched_stages(watch.see_module, watch.see_assembly)
        kernel = modules.load(job.source, job.function)
        functions = {name: modules.load(*split_function(path)) for name, path in job.functions}
        for loaded in (kernel, *functions.values()):
            modules.check(loaded)
        recipe = _recipe(job, kernel, functions, target)
        source = ast_source(job, kernel, functions, target)
        options = parsed_options(job.options, target)
        _refuse_unlaunchable(options)
        compile_source = functools.partial(
            triton.compile, source, target=target.gpu_target(), options=dict(vars(options))
        )
        try:
            with assumed_driver(target, lambda: None):  # kernels may ask for their target
                if died:
                    watch.compile_with_lines(compile_source)
                compiled, warned = watch.compile(compile_source)
            metadata = read_back(compiled.kernel, compiled.metadata.name)
        except BaseException as error:  # a function that is run at compile time may as well exit
            if is_interrupt(error) or isinstance(error, CompileError):
                raise
            watch.see_failure(error)
            if not isinstance(error, CompilationError) and isinstance(error, Exception):
                with assumed_driver(target, lambda: None):
                    watch.compile_with_lines(compile_source)
            found = compile_error(error, watch.evidence(), modules.place(error.__traceback__))
            raise _circle(found, modules.circle(kernel)) from None
        image, built = compiled.kernel, compiled.metadata
    types = dict(run_time_arguments(job.signature))
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
        early=watch.early,
        metadata=metadata,
        compiler=f"triton {triton.__version__}",
        options=plain_options(options),
        accesses={name: kinds for name, kinds in watch.accesses.items() if types[name].startswith(("*", TENSOR_MAP))},
        recipe=recipe,
        warnings=warned,
    )
    layout = kernarg_layout(job.signature, ARCHITECTURES[target.arch].kernarg_start)
    verify_code(result, layout, target, map_faults(job.signature, getattr(built, "tensordesc_meta", None) or ()))
    verify_lds(result, target)
    return result


class WrongCodeError(Exception):
    """The compiled code does not do what the kernel's source says."""


class _Watch:
    """Observer of the compilations of one job: their stages and their output.

    Attributes:
        accesses: kinds of access, by pointer.
        early: the kernel may begin before preceding kernels have ended.
    """

    def __init__(self, job: CompileJob, target: Target, output: CompilerOutput):
        self.accesses: dict[str, str] = {}
        self.early = False
        self._job, self._target, self._output = job, target, output
        self._kernel = f"{job.source}: kernel {job.function!r}"
        self._foreign: list[ForeignCode] = []
        self._errors: list[Diagnostic] = []
        self._listing = self._printed = ""

    def see_module(self, module: Any) -> None:
        """Read the module in Triton's dialects. Raises `CompileError`, or `WrongCodeError` for bad foreign code."""
        self.early = _waits(module, self._job)
        self.accesses.update(pointer_accesses(module, argument_names(self._job)))
        self._foreign = foreign_code(module, self._target.backend)
        self._output.about.write_text("\n".join([self._kernel, *map(str, self._foreign)]))
        if wrong := [code.fault for code in self._foreign if code.fault]:
            raise WrongCodeError(wrong[0])

    def see_assembly(self, assembly: str) -> None:
        self._listing = assembly

    def compile(self, compile_source: Callable[[], T]) -> tuple[T, tuple[str, ...]]:
        """Compile; return Triton's result and the warnings. An error that was printed counts even if code was made.
        Raises `WrongCodeError`, and whatever Triton raises."""
        with recorded_warnings(record=True) as told:
            simplefilter("always")
            compiled = compile_source()
        found = diagnostics(self._output.of_compilers(), self._listing)
        if errors(found):
            raise WrongCodeError
        said = dict.fromkeys([*(str(item.message) for item in told), *warnings(found)])
        return compiled, tuple(f"{self._kernel}: {text}" for text in said)

    def see_failure(self, error: BaseException) -> None:
        self._printed = self._output.text()
        self._errors = errors(diagnostics(f"{error}\n{self._output.of_compilers()}", self._listing))

    def compile_with_lines(self, compile_source: Callable[[], object]) -> None:
        """Compile again with line information, to learn which lines of the kernel are at fault."""
        before, raised = self._output.sizes(), ""
        with pinned_knobs(line_info=True):
            try:
                compile_source()
            except Exception as error:
                raised = str(error)
        again = f"{raised}\n{self._output.of_compilers(before)}"
        self._errors = located(self._errors, errors(diagnostics(again, self._listing)))

    def evidence(self) -> Evidence:
        """Return the evidence of a failed compilation."""
        return Evidence(self._kernel, self._printed, self._errors, self._foreign)


# The input of Triton


def argument_names(job: CompileJob) -> list[str]:
    """Names of a kernel's run-time arguments, in order."""
    return [name for name, _ in run_time_arguments(job.signature)]


def _recipe(job: CompileJob, kernel: JITFunction, functions: dict[str, JITFunction], target: Target) -> str:
    """Return the job's recipe. Raises `KernelFileError` if the sources are not those that the job was planned with."""
    digest = sources_hash(kernel, functions)
    if job.digest not in ("", digest):
        raise KernelFileError(
            f"file {job.source}, or code that {job.function!r} uses, changed during the build; build again"
        )
    return JobKeys(target, job.line_info).recipe(job, digest)


def ast_source(job: CompileJob, kernel: JITFunction, functions: dict[str, JITFunction], target: Target) -> ASTSource:
    """Make Triton's (or Gluon's) source of a kernel with its signature, constants and hints, each checked against the
    function's parameters."""
    classes = tuple_classes(kernel)
    try:
        paths = member_paths([name for name, _ in job.signature], kernel.arg_names, classes)
    except TupleError as error:
        raise CompileError(f"signature of {job.function!r} {error}") from None
    types, constants = dict(job.signature), {**dict(job.constants), **functions}
    constexprs = {name for name, type_name in job.signature if type_name == "constexpr"}
    if constexprs != constants.keys():
        raise CompileError(
            f"constexprs of {job.function!r} are {sorted(constexprs)}, but the job has values for {sorted(constants)}"
        )
    taken = dict(run_time_arguments(job.signature))
    promised = [name for name, _ in job.divisible]
    for hint, hinted in (("divisible", promised), ("pointer_range_32", job.pointer_range_32)):
        if wrong := [name for name in hinted if name not in taken]:
            raise CompileError(f"{hint} of {job.function!r} names {wrong}, which are not run-time parameters")
    try:
        kernarg_layout(job.signature)
    except ValueError as error:
        raise CompileError(f"signature of {job.function!r}: {error}") from None
    hints = _hints(job, target)
    source = _source_class(job, kernel)(
        kernel,
        nested_types(types, kernel.arg_names, classes),
        constexprs={paths[name]: _constant(value, name, job) for name, value in constants.items()},
        attrs={paths[name]: [list(hint) for hint in found] for name, found in hints.items() if name in paths},
    )
    _describe(source, job, hints)
    return source


def _describe(source: Any, job: CompileJob, hints: Mapping[str, Sequence[tuple[str, int]]]) -> None:
    fields = {
        field.name: field
        for name, type_name in job.signature
        if is_descriptor(type_name) and not is_map(type_name)
        for field in descriptor_fields(name, type_name)
    }
    if fields:
        positions = {name: position for position, name in enumerate(argument_names(job))}
        source.ones = [positions[name] for name, field in fields.items() if field.is_one]
        source.hints = {positions[name]: found for name, found in hints.items() if name in fields}


def _constant(value: Any, name: str, job: CompileJob) -> Any:
    try:
        return triton_constant(value)
    except Exception as error:  # of a layout's class
        raise CompileError(f"parameter {name!r} of {job.function!r}: {value!r}: {described(error)}") from None


def _source_class(job: CompileJob, kernel: JITFunction) -> type[ASTSource]:
    from triton.compiler import ASTSource

    described = [name for name, type_name in job.signature if is_descriptor(type_name)]
    wrong = [name for name in described if is_map(dict(job.signature)[name]) != kernel.is_gluon()]
    if wrong:
        raise CompileError(
            f"{', '.join(wrong)}: a Gluon kernel takes a host tensor descriptor as a tensor map, which has a "
            "layout, and a kernel of Triton takes pointers in its place, which have none"
        )
    if described and not kernel.is_gluon():
        from aot.source.pointer_source import PointerSource

        return PointerSource
    if not kernel.is_gluon():
        return ASTSource
    from aot.source.gluon import GluonSource

    return GluonSource


def _hints(job: CompileJob, target: Target) -> dict[str, list[tuple[str, int]]]:
    hints: dict[str, list[tuple[str, int]]] = {}
    order = argument_names(job).index
    for name, number in sorted(job.divisible, key=lambda item: order(item[0])):
        hints.setdefault(name, []).append(("tt.divisibility", number))
    for name in sorted(job.pointer_range_32, key=order) if BACKENDS[target.backend].has_pointer_ranges else ():
        hints.setdefault(name, []).append(("tt.pointer_range", 32))
    return hints


def _refuse_unlaunchable(options: Any) -> None:
    if options.launch_cooperative_grid:
        raise CompileError("launch_cooperative_grid: cooperative grids are not supported by the runtime's launch path")
    if options.num_ctas != 1:
        raise CompileError(f"num_ctas={options.num_ctas}: clusters are not supported by the runtime's launch path")


def _waits(module: Any, job: CompileJob) -> bool:
    """Return True if a kernel waits for preceding kernels, so that it may begin before they end. Raises `CompileError`
    if it should begin early but does not wait.
    """
    names: list[str] = []
    module.walk(lambda operation: names.append(operation.get_name()))
    waits = any(name.endswith("grid_dependency_wait") for name in names)
    if dict(job.options).get("launch_pdl") and not waits:
        raise CompileError("launch_pdl: the kernel never waits for preceding kernels: it has no gdc_wait")
    return waits


def _circle(error: CompileError, circle: str) -> CompileError:
    """Explain functions that call each other endlessly, which Triton does not."""
    endless = any(f": {name}" in error.reason for name in ("KeyError(", "RecursionError("))
    return CompileError(circle, error.traceback_text) if circle and endless else error


# Its output


def read_back(image: bytes, symbol: str) -> KernelMetadata:
    """Read a code object's kernel. Raises `CompileError`, and `WrongCodeError` if a called function is missing."""
    try:
        read = read_code_object(image)
        if read.undefined:
            raise WrongCodeError(f"{read.undefined[0]!r} is called, and nothing in the code object defines it")
        return read.kernel(symbol)
    except BundleError as error:
        raise CompileError(f"the code object that Triton made cannot be read back: {error}") from error


class Code(Protocol):
    """A code object that was read back, with the launch parameters that the compiler reports."""

    @property
    def image(self) -> bytes: ...
    @property
    def symbol(self) -> str: ...
    @property
    def lds_bytes(self) -> int: ...
    @property
    def num_warps(self) -> int: ...
    @property
    def warp_size(self) -> int: ...
    @property
    def metadata(self) -> KernelMetadata: ...


def verify_code(
    kernel: Code, layout: tuple[KernargField, ...] | None, target: Target, more_faults: Iterable[str] = ()
) -> None:  # fmt: skip
    """Raise `CompileError` if a code object differs from its target, its launch parameters or its signature.

    Args:
        layout: the kernargs by the signature; None: they are not compared.
    """
    metadata = kernel.metadata
    faults = [
        f"{what} is {found}, not {expected}"
        for what, found, expected in (
            ("its architecture", read_arch(kernel.image), target.arch),
            ("its wavefront size, says the compiler,", kernel.warp_size, target.warp_size),
        )
        if found != expected
    ]
    if layout is not None:
        faults += signature_faults(
            metadata,
            layout,
            kernarg_bytes=kernarg_bytes(layout),
            num_warps=kernel.num_warps,
            warp_size=target.warp_size,
        )
    faults += more_faults
    if faults:
        raise CompileError(f"kernel {kernel.symbol!r} does not match its job: {'; '.join(faults)}")


def verify_lds(kernel: Code, target: Target) -> None:
    """Raise `CompileError` if a kernel needs more LDS than its target allows a workgroup."""
    # A cubin's static part is the system's own, beside what the limit is for.
    static = kernel.metadata.static_lds_bytes if target.backend == HIP.name else 0
    if kernel.lds_bytes + static > target.lds_bytes:
        raise CompileError(
            f"kernel {kernel.symbol!r} needs {kernel.lds_bytes + static} bytes of LDS per workgroup; "
            f"{target.arch} allows {target.lds_bytes}: use smaller blocks or fewer num_stages"
        )


def map_faults(signature: Sequence[tuple[str, str]], described: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the differences between the tensor maps of a signature and those that the compiled kernel takes.

    Args:
        described: the compiler's `tensordesc_meta` of each descriptor, in order.
    """
    maps = [(name, *map_box(type_name)) for name, type_name in signature if is_map(type_name)]
    if len(maps) != len(described):
        yield f"it takes {len(described)} tensor maps, not {len(maps)}"
        return
    for (name, layout, box), found in zip(maps, described, strict=True):
        asked = {
            "boxes": (tuple(found["block_size"]), box),
            "swizzle": (SWIZZLES[found["swizzle"]], layout.swizzle),
            "bytes an element": (found["elem_size"], layout.bits // 8),
            "padding of fp4": (found["fp4_padded"], False),
            "images to columns": (found["is_im2col"], False),
        }
        for what, (actual, expected) in asked.items():
            if actual != expected:
                yield f"the tensor map '{name}' has {what} {actual}, not {expected}"


# Kernels from a cache


@dataclass(frozen=True)
class _Expected:
    """Kernargs that a code object must take, and the names of the pointers among them."""

    layout: tuple[KernargField, ...]
    pointers: frozenset[str]


class KernelReader:
    """Checks kernels from a cache as freshly compiled ones are checked."""

    def __init__(self) -> None:
        # Many jobs have the same signature, and few different options.
        self._expected: dict[tuple[tuple[str, str], ...], _Expected] = {}
        self._options: dict[tuple[str, str], dict[str, Any]] = {}

    def fault(self, kernel: CompiledKernel, job: CompileJob) -> str:
        """Return why a kernel cannot be the result of its job; empty if nothing contradicts it."""
        import triton

        try:
            target = job_target(job)
            expected = self._expectation(job, target)
            for what, is_right in (
                ("metadata", read_code_object(kernel.image).kernel(kernel.symbol) == kernel.metadata),
                ("a compiler", kernel.compiler == f"triton {triton.__version__}"),
                ("options", kernel.options == self._used_options(job, target)),
                ("accesses", kernel.accesses.keys() <= expected.pointers),
                ("kinds of access", KINDS.issuperset("".join(kernel.accesses.values()))),
                ("a launch", not kernel.cooperative),
            ):
                if not is_right:
                    return f"has {what} that its code or its job does not have"
            verify_code(kernel, expected.layout, target)
            verify_lds(kernel, target)
        except (BundleError, CompileError) as error:
            return f"is not what was asked for: {error}"
        return ""

    def _expectation(self, job: CompileJob, target: Target) -> _Expected:
        if job.signature not in self._expected:
            layout = kernarg_layout(job.signature, ARCHITECTURES[target.arch].kernarg_start)
            taken = run_time_arguments(job.signature)
            pointers = frozenset(name for name, kind in taken if kind.startswith(("*", TENSOR_MAP)))
            self._expected[job.signature] = _Expected(layout, pointers)
        return self._expected[job.signature]

    def _used_options(self, job: CompileJob, target: Target) -> dict[str, Any]:
        spelling = repr(job.options), target.arch  # where True is not 1
        if spelling not in self._options:
            self._options[spelling] = plain_options(parsed_options(job.options, target))
        return self._options[spelling]
