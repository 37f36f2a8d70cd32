"""Run a build: plan, look in the cache, compile with a progress bar, write the bundles, report."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from aot.cache.layered_cache import CompileCache
from aot.cache.shared_cache import CacheSettings, SharedCache
from aot.compile.jobs import CompileJob
from aot.errors import BuildError
from aot.forked_process import ForkedProcess
from aot.manifest.calls import CallsFile, check_entries, entries, load_calls
from aot.manifest.loading import Manifest, load_manifest
from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import PlannedBundle, plan_bundle
from aot.plan.calls import WantedCalls
from aot.plan.cases import Recipe
from aot.plan.existing_bundle import read_present
from aot.plan.filters import Filters, resolve_filters
from aot.source.kernel_source import KernelSource, inspect_kernel
from aot.workers.batch import Outcome, compile_missing, look_up
from aot.workers.pool import WarmPool, default_workers, remove_leftovers
from aot.write.archives import archive_names, folder_aside, pack_bundles
from aot.write.bundle_writer import write_bundle
from aot.write.requirements import requirement_faults
from aot.write.roles import check_roles, keys_at_fault, with_pointer_roles
from aot.write.vectors import CaseVectors, Computed, VectorCache, case_vectors, compute
from aot_bundle.requirements import parse_requirements
from aot_bundle.terminal import Console, text_block, write
from aot_bundle.trust.signing import Signer
from aot_runtime.contract.expressions import Expression
from aot_runtime.errors import BundleError, DeviceError, ExpressionError
from aot_runtime.formats import size_text

from .progress import counted, progress
from .shards import WHOLE, Shard, jobs_json
from .targets import Target

LOG = logging.getLogger("aotbuild.build")


@dataclass(frozen=True)
class Request:
    """The options of a build on the command line."""

    manifests: tuple[Path, ...]
    targets: tuple[Target, ...]
    output: Path
    jobs: int | None
    filters: Filters
    requirements: tuple[str, ...]
    dry_run: bool
    timeout: float
    cache: CacheSettings
    line_info: bool
    tracebacks: bool = False
    quiet: bool = False
    signer: Signer | None = None
    calls: tuple[Path, ...] = ()
    neighbours: bool = False
    pack: bool = False
    compress: bool = False
    scheduler: str | None = None
    add: bool = False
    shard: Shard | None = None
    list_jobs: bool = False


def build(request: Request) -> int:
    """Run a build; returns the exit status. Raises `ManifestError`, `BuildError` and `CacheError`."""
    console = Console(quiet=request.quiet)
    started = time.monotonic()
    bundles = plan(request)
    if request.list_jobs:
        write(*jobs_json(bundles, request.shard or WHOLE).splitlines())
        return 0
    _print_calls(console, request, bundles)
    requirements = _requirements(request, bundles)
    if request.dry_run:
        _print_counts(console, bundles)
        return 0
    if request.shard is None:
        outcome = make(request, bundles, console, requirements)
    else:
        outcome = _compile_shard(request, bundles, console, request.shard)
    if outcome is None:
        return 1
    took = time.monotonic() - started
    console.print(f"{outcome.compiled} compiled, {outcome.cached} from the cache, in {took:.1f} s")
    return 0


def make(
    request: Request, bundles: list[PlannedBundle], console: Console, requirements: tuple[Expression, ...] = ()
) -> Outcome | None:
    """Compile the planned variants, and write the bundles. Returns None if that failed, after the failure was reported.

    Raises `ManifestError`, `BuildError` and `CacheError`.
    """
    cache = _cache(request)
    with _locked(request.output, _outputs(request, bundles)), cache.shared or nullcontext():
        _hold_present(bundles)
        outcome = _compiled(request, bundles, console, cache)
        if outcome.failures:
            _print_failures(request, bundles, outcome)
            return None
        bundles = [with_pointer_roles(bundle, outcome.kernels) for bundle in bundles]
        for bundle in bundles:
            check_roles(bundle, outcome.kernels)
        if faults := _requirement_faults(bundles, outcome, requirements):
            write("aotbuild: --require is not met; no bundle was written", *faults, err=True)
            return None
        # All of them first: where a reference is at fault, no bundle is written.
        vectors = _vectors(request, bundles, VectorCache(request.cache.folder, cache.shared))
        with folder_aside(request.output, bundles) if request.pack else nullcontext(request.output) as folder:
            for bundle, selftest in zip(bundles, vectors, strict=True):
                _write(console, bundle, outcome, selftest, request, folder)
            if request.pack:
                _pack(console, bundles, folder, request)
    _print_use(console, cache)
    return outcome


def compile_all(request: Request, bundles: list[PlannedBundle], console: Console) -> Outcome:
    """Compile planned variants that are not in the cache, without writing bundles. Raises as `make` does."""
    cache = _cache(request)
    with cache.shared or nullcontext():
        return _compiled(request, bundles, console, cache)


def _compile_shard(
    request: Request, bundles: list[PlannedBundle], console: Console, shard: Shard
) -> Outcome | None:  # fmt: skip
    """Compile the jobs of a shard into the cache. Returns None if one failed, after the failure was reported."""
    cache, jobs = _cache(request), _jobs(bundles)
    part = shard.of(jobs)
    console.print(f"shard {shard}: {len(part)} of {counted(len(jobs), 'job')}")
    with cache.shared or nullcontext():
        outcome, missing = look_up(part, cache)
        _compile(request, bundles, console, cache, outcome, missing)
        _log_warnings(outcome)
    _print_use(console, cache)
    if outcome.failures:
        _print_failures(request, bundles, outcome)
        return None
    return outcome


def _cache(request: Request) -> CompileCache:
    remove_leftovers(Path(tempfile.gettempdir()))  # a pool does this too, but a build may not need one
    shared = None if request.cache.shared is None else SharedCache(request.cache.shared)
    return CompileCache(request.cache.folder, shared)


def _print_use(console: Console, cache: CompileCache) -> None:
    if cache.shared is not None and (use := cache.shared.use):
        console.print(f"{cache.shared}: {use}")


def _compiled(request: Request, bundles: list[PlannedBundle], console: Console, cache: CompileCache) -> Outcome:
    outcome, missing = look_up(_jobs(bundles), cache)
    LOG.info("cache %s has %d of %d kernels", cache.path, outcome.cached, outcome.cached + len(missing))
    doubtful = set(outcome.kernels) if cache.shared is not None and cache.shared.taken else set()
    _compile(request, bundles, console, cache, outcome, missing)
    if doubtful and not outcome.failures:
        _compile_again(request, bundles, console, cache, outcome, doubtful)
    _log_warnings(outcome)
    return outcome


def _log_warnings(outcome: Outcome) -> None:
    for warning in dict.fromkeys(text for kernel in outcome.kernels.values() for text in kernel.warnings):
        LOG.warning("%s", warning)


def _jobs(bundles: list[PlannedBundle]) -> dict[str, CompileJob]:
    return {key: job for bundle in bundles for key, job in bundle.jobs.items()}


def _compile_again(
    request: Request, bundles: list[PlannedBundle], console: Console, cache: CompileCache, outcome: Outcome,
    doubtful: set[str],
) -> None:  # fmt: skip
    """Recompile kernels from a shared cache whose recorded accesses contradict the manifest: either may be wrong."""
    keys = doubtful & {key for bundle in bundles for key in keys_at_fault(bundle, outcome.kernels)}
    if keys:
        LOG.warning(
            "%s: accesses of %s contradict the manifest; compiled again", cache.shared, counted(len(keys), "kernel")
        )
        outcome.cached -= len(keys)
        jobs = {key: job for key, job in _jobs(bundles).items() if key in keys}
        _compile(request, bundles, console, cache, outcome, jobs)


def _compile(
    request: Request, bundles: list[PlannedBundle], console: Console, cache: CompileCache, outcome: Outcome,
    missing: Mapping[str, CompileJob],
) -> None:  # fmt: skip
    if missing:
        labels = {variant.key: variant.spec.label for bundle in bundles for variant in bundle.variants}
        executor, workers = _executor(request, [*missing.values()])
        at_once = request.jobs if request.scheduler else None
        with executor, progress(console, labels, workers, len(missing)) as advance:
            compile_missing(missing, cache, executor, outcome, advance, at_once)


def _outputs(request: Request, bundles: list[PlannedBundle]) -> list[str]:
    return archive_names(bundles) if request.pack else [bundle.folder_name for bundle in bundles]


def _pack(console: Console, bundles: list[PlannedBundle], folder: Path, request: Request) -> None:
    try:
        for path, archs in pack_bundles(bundles, folder, request.output, request.compress):
            console.print(f"{path}: {', '.join(archs)}, {size_text(path.stat().st_size)}")
    except OSError as error:
        raise BuildError(f"output folder {request.output} cannot be written: {error.strerror}") from None
    except BundleError as error:
        raise BuildError(f"no archive was written: {error}") from None


def _executor(request: Request, jobs: Sequence[CompileJob]) -> tuple[Executor, str]:
    if request.scheduler is None:
        workers = min(request.jobs or default_workers(len(jobs)), len(jobs))
        return WarmPool(workers, request.timeout), counted(workers, "worker")
    try:
        from aot.workers.cluster import ClusterPool
    except ModuleNotFoundError as error:
        raise BuildError(f"--scheduler needs {error.name}: pip install 'aotbuild[cluster]'") from None
    pool = ClusterPool(request.scheduler, request.timeout)
    return pool, f"{counted(pool.workers, 'worker')} of {pool.address}"


def plan(request: Request) -> list[PlannedBundle]:
    """Plan every bundle of a request. Raises `ManifestError` with the faults of all manifests."""
    manifests: list[Manifest] = []
    faults: list[str] = []
    for path in request.manifests:
        try:
            manifests.append(load_manifest(path))
        except ManifestError as error:
            faults += error.messages
    owners = Counter(manifest.spec.bundle for manifest in manifests)
    faults += [
        f"{manifest.file.path}: bundle '{manifest.spec.bundle}' is in another of these manifests too"
        for manifest in manifests
        if owners[manifest.spec.bundle] > 1
    ]
    filters, wrong = resolve_filters(manifests, request.filters)
    faults += wrong if len(manifests) == len(request.manifests) else []
    files: list[CallsFile] = []
    for path in request.calls:
        try:
            files.append(load_calls(path))
        except ManifestError as error:
            faults += error.messages
    if faults:
        raise ManifestError(faults)
    return plan_manifests(request, manifests, filters, _wanted(request, files, manifests))


def plan_manifests(
    request: Request, manifests: Sequence[Manifest], filters: Filters, wanted: WantedCalls | None
) -> list[PlannedBundle]:
    """Plan every bundle of loaded manifests, for the targets of a request. Raises `ManifestError`."""
    import triton  # noqa: F401  here, so that the processes forked off this one need not import it each

    with ExitStack() as stack:
        # One for each, since a file may ask once what it is built for.
        processes = {target.arch: stack.enter_context(ForkedProcess(request.timeout)) for target in request.targets}
        told: set[str] = set()

        def inspect(root: str, path: str, arch: str) -> KernelSource:
            kernel: KernelSource = processes[arch].run(inspect_kernel, root, path, arch)
            for line in kernel.left_out:
                if line not in told:
                    LOG.info("%s", line)
            told.update(kernel.left_out)
            return kernel

        return [
            plan_bundle(manifest, target, filters, request.line_info, inspect, wanted)
            for manifest in manifests
            for target in request.targets
        ]


def _wanted(request: Request, files: list[CallsFile], manifests: list[Manifest]) -> WantedCalls | None:
    """The calls that `--for` asks for; None without `--for`. Raises `ManifestError`."""
    if not files:
        return None
    found = entries(files)
    check_entries(found, manifests)
    names = [f"{one.spec.bundle}-{target.arch}" for one in manifests for target in request.targets if request.add]
    return WantedCalls(found, request.neighbours, {name: read_present(request.output / name) for name in names})


def _hold_present(bundles: list[PlannedBundle]) -> None:
    """Raise `BuildError` if a bundle that `--add` extends was rebuilt since it was read."""
    for bundle in bundles:
        present = bundle.wanted and bundle.wanted.present.get(bundle.folder_name)
        if present and read_present(present.folder).id != present.id:
            raise BuildError(f"--add: bundle {present.folder} changed during the build; build again")


def _requirements(request: Request, bundles: list[PlannedBundle]) -> tuple[Expression, ...]:
    try:
        return parse_requirements(request.requirements, [op for bundle in bundles for op in bundle.ops])
    except ExpressionError as error:
        raise ManifestError([f"--require: {error}"]) from None


def _requirement_faults(
    bundles: list[PlannedBundle], outcome: Outcome, requirements: tuple[Expression, ...]
) -> list[str]:
    try:
        return [fault for bundle in bundles for fault in requirement_faults(bundle, outcome.kernels, requirements)]
    except (BundleError, DeviceError, ExpressionError) as error:
        raise BuildError(f"--require: {error}") from None


def _vectors(request: Request, bundles: list[PlannedBundle], cache: VectorCache) -> list[tuple[CaseVectors, ...]]:
    with ForkedProcess(request.timeout) as process:

        def computed(root: str, recipe: Recipe) -> Computed:
            return process.run(compute, root, recipe)

        return [tuple(case_vectors(bundle.cases, cache, computed)) for bundle in bundles]


@contextmanager
def _locked(output: Path, names: list[str]) -> Iterator[None]:
    """Hold the lock of each bundle that is written: two builds of one bundle take turns."""
    locks = []
    try:
        output.mkdir(parents=True, exist_ok=True)
        if not os.access(output, os.W_OK):
            raise PermissionError(13, "Permission denied", str(output))
        for name in sorted(names):
            lock = FileLock(output / f".{name}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                write(f"aotbuild: waiting for another build of {name}", err=True)
                lock.acquire()
            locks.append(lock)
    except OSError as error:
        raise BuildError(f"output folder {output} cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        for lock in locks:
            lock.release()


def _print_counts(console: Console, bundles: list[PlannedBundle]) -> None:
    for bundle in bundles:
        counts = Counter(variant.spec.op for variant in bundle.variants)
        distinct = len({variant.key for variant in bundle.variants})
        console.print(f"{bundle.folder_name}: {len(bundle.variants)} variants, {distinct} to compile at most")
        for op, count in counts.items():
            console.print(f"  {op:<32}{count:>6}")


def _print_calls(console: Console, request: Request, bundles: list[PlannedBundle]) -> None:
    """Print the number of variants that `--for` selects in each bundle; in a dry run, also those of each call."""
    if not request.calls:
        return
    for bundle in bundles:
        built, calls = len(bundle.variants), counted(len(bundle.calls), "call")
        variants = counted(built + bundle.left_out, "variant")
        there = ", with what is there," if request.add else ""
        console.print(f"{bundle.folder_name}: {calls}, for which{there} {built} of {variants} are built")
        for call in bundle.calls:
            if request.dry_run:
                console.print(f"  {call.text}")
            LOG.info("%s", call.text)
    names = {bundle.manifest.spec.bundle for bundle in bundles}
    files = {id(call.entry.file): call.entry.file for bundle in bundles for call in bundle.calls}
    others = Counter(entry.spec.bundle for entry in entries(files.values()) if entry.spec.bundle not in (None, *names))
    for name, count in others.items():
        console.print(f"not built now: {counted(count, 'call')} of bundle '{name}'")


def _print_failures(request: Request, bundles: list[PlannedBundle], outcome: Outcome) -> None:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for bundle in bundles:
        for variant in bundle.variants:
            if failure := outcome.failures.get(variant.key):
                details = failure.traceback_text if request.tracebacks else ""
                label = f"{bundle.folder_name}: {variant.spec.label}"
                by_reason.setdefault((failure.reason, details), []).append(label)
    count = counted(sum(map(len, by_reason.values())), "variant")
    write(f"aotbuild: {count} did not compile{'' if request.shard else '; no bundle was written'}", err=True)
    for (reason, details), labels in by_reason.items():
        write(*(f"  {label}" for label in labels), err=True)
        for text in filter(None, (reason, details)):
            write(*text_block(text, "    "), err=True)


def _write(
    console: Console, bundle: PlannedBundle, outcome: Outcome, vectors: tuple[CaseVectors, ...], request: Request,
    folder: Path,
) -> None:  # fmt: skip
    try:
        written = write_bundle(bundle, outcome.kernels, vectors, folder)
        if request.signer:
            request.signer.sign(written.folder)
    except OSError as error:
        # A write that fails, as on a full disk, knows of no name.
        place = f": {error.filename}" if error.filename else ""
        raise BuildError(f"bundle {bundle.folder_name} cannot be written: {error.strerror}{place}") from None
    except BundleError as error:
        raise BuildError(
            f"bundle {bundle.folder_name} was not written, because readers would reject it: {error}"
        ) from None
    console.print(
        f"{bundle.folder_name if request.pack else written.folder}: "
        f"{len(bundle.variants)} variants, {written.code_objects} code objects, "
        f"{size_text(written.size)}{_cases(bundle)}{', signed' if request.signer else ''}"
    )


def _cases(bundle: PlannedBundle) -> str:
    """Count the selftest cases of a bundle, and those left out because they need variants that are not built."""
    stated = sum(len(source.spec.selftest) for source in bundle.manifest.sources)
    left_out = stated - len(bundle.cases)
    text = f", {counted(len(bundle.cases), 'selftest case')}" if stated else ""
    return f"{text} ({left_out} more need variants that are not built)" if left_out else text
