"""Build capture files: rebuild their kernels for targets, and write what is shipped into Triton's cache."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from aot import __version__
from aot.cache.layered_cache import default_cache_dir
from aot.cache.shared_cache import CacheSettings, SharedCache
from aot.errors import BuildError, CompileError
from aot.progress import counted, steps
from aot.targets import Target
from aot.workers.pool import CompileFailure, default_workers, run_jobs
from aot_bundle.terminal import Console, write
from aot_bundle.trust.signing import Signer
from aot_capture.ingredients import root_digest
from aot_capture.records import Capture, CaptureError, Installation, Kernel, read_capture
from aot_runtime.contract.arch import CUDA, HIP
from aot_runtime.errors import AotError
from aot_runtime.formats import size_text
from aot_runtime.regular_files import read_regular
from aot_runtime.texts import escaped

from . import shipped_cache
from .environments import (
    Environment,
    made_environment,
    named_environment,
    own_environment,
    own_version,
    present_environment,
)
from .rebuilt import RebuildJob, RebuiltCache, RebuiltKernel, fault_of, key_differences, rebuild_job, stated_key
from .selection import kernels_for, neighbours, results_for, target_parts
from .shipped_cache import INDUCTOR, KERNELS, Ingredients, Manifest, ShippedKernel
from .sources import with_sources
from .wheel import write_wheel
from .worker_process import describe
from .workers import Workers

LOG = logging.getLogger("aotbuild.build")
MAX_CAPTURE_BYTES = 1 << 30
MAX_INDUCTOR_BYTES = 1 << 30
LAST_WITH_LAUNCHERS = (3, 6)
"""The last Triton that compiles a C module for each signature at the first launch."""
LAST_WITH_PATHS = (3, 8)
"""The last Triton whose HIP keys have the path of its folder."""


@dataclass(frozen=True)
class CaptureRequest:
    """Arguments of a build of capture files.

    Attributes:
        python: a Python with the captured Triton.
        triton: the version of an environment to make in our cache.
        headers: the folder of Python.h of the captured program's Python, for C launchers.
        sources: the folder of the program's files, for a capture without sources.
        ptxas: the ptxas of the captured program, if it was not Triton's own.
        keep_going: leave out kernels that cannot be rebuilt. The build fails all the same, once the others are written.
        all_stages: ship the stages of compilation before the code objects, too.
        inductor: a file with what `torch.compiler.save_cache_artifacts` returned.
    """

    captures: tuple[Path, ...]
    targets: tuple[Target, ...]
    output: Path
    jobs: int | None
    timeout: float
    cache: CacheSettings
    python: Path | None = None
    triton: str | None = None
    headers: Path | None = None
    sources: Path | None = None
    ptxas: Path | None = None
    neighbours: bool = False
    all_stages: bool = False
    inductor: Path | None = None
    pack: bool = False
    wheel: bool = False
    keep_going: bool = False
    signer: Signer | None = None
    dry_run: bool = False
    tracebacks: bool = False
    quiet: bool = False


@dataclass
class _Results:
    """Kernels and failures of a build, by the position of their job."""

    kernels: dict[int, RebuiltKernel] = field(default_factory=dict)
    failures: dict[int, CompileFailure] = field(default_factory=dict)
    compiled: int = 0


@dataclass(frozen=True)
class _Plan:
    """A capture file, the environment that rebuilds it, and whether it may state the captured keys.

    Attributes:
        here: the environment's Triton, as `aot_capture.rebuild` describes it.
        reason: why the captured installation's keys are not stated; empty if they are.
    """

    capture: Capture
    environment: Environment
    here: Mapping[str, Any]
    backends: Mapping[str, str]
    reason: str

    @property
    def name(self) -> str:
        return Path(self.capture.path).stem

    @property
    def installation(self) -> Installation:
        return self.capture.installations[0]

    @property
    def triton_files(self) -> dict[str, str]:
        """The files of Triton in the keys that are stated."""
        return dict(self.here["files"]) if self.reason else self.installation.files

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", self.here["triton"])[:2])

    @property
    def session(self) -> dict[str, Any]:
        """The part of a worker's session that decides code and keys."""
        key = stated_key(self.installation.triton, self.installation.files)
        return {"stated_key": None if self.reason else key, "root": self.installation.root}


def build_captures(request: CaptureRequest) -> int:
    """Rebuild the kernels of capture files and write them; returns the exit status.

    Raises `BuildError`, `CaptureError` and `CacheError`.
    """
    console = Console(quiet=request.quiet)
    captures = [with_sources(_read(path), request.sources) for path in request.captures]
    names = [Path(capture.path).stem for capture in captures]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BuildError(f"two of the capture files are called {twice!r}; their outputs would be one")
    failed = False
    for capture in captures:
        plan = _planned(capture, request, console)
        for target in request.targets:
            failed |= not _build_target(plan, target, request, console)
    return int(failed)


def _read(path: Path) -> Capture:
    """Read a capture file. Raises `CaptureError`, also for what could not be built in any environment."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise CaptureError(f"{path}: {error.strerror}") from None
    if size > MAX_CAPTURE_BYTES:
        raise CaptureError(f"{path} has {size} bytes; at most {MAX_CAPTURE_BYTES} are read")
    capture = read_capture(path)
    for note in capture.notes:
        LOG.warning("%s", note)
    if not capture.kernels:
        raise CaptureError(f"{path}: no kernel is recorded")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", path.stem):
        raise CaptureError(f"{path}: {path.stem!r} cannot be the name of what is shipped: use letters, digits, _ . -")
    first, *others = capture.installations
    for other in others:
        if (other.triton, other.files) != (first.triton, first.files):
            raise CaptureError(
                f"{path}: Triton {first.triton} and another ({other.triton}) were captured; use a file for each"
            )
    return capture


def _planned(capture: Capture, request: CaptureRequest, console: Console) -> _Plan:
    environment = _environment(capture.installations[0].triton, request, console)
    targets = [target_parts(target) for target in request.targets]
    with console.status(f"looking at {environment.name}"):
        try:
            here = describe(environment, targets)
        except CompileError as error:
            raise BuildError(f"{environment.name} cannot compile: {error.reason}") from None
        except AotError as error:
            raise BuildError(f"{environment.name} cannot compile: {error}") from None
    backends = {target.arch: key for target, key in zip(request.targets, here["backends"], strict=True)}
    return _Plan(capture, environment, here, backends, _unlike(capture.installations[0], here))


def _environment(version: str, request: CaptureRequest, console: Console) -> Environment:
    variables = {} if request.ptxas is None else {"TRITON_PTXAS_PATH": str(request.ptxas.absolute())}
    return _chosen(version, request, console).with_variables(variables)


def _chosen(version: str, request: CaptureRequest, console: Console) -> Environment:
    cache = request.cache.folder or default_cache_dir()
    if request.python is not None:
        return named_environment(request.python)
    if request.triton is not None:
        return (
            own_environment() if request.triton == own_version() else made_environment(request.triton, cache, console)
        )
    if version == own_version():
        return own_environment()
    if found := present_environment(version, cache):
        return found
    raise BuildError(
        f"Triton {version} was captured, and this environment has {own_version()}: --triton {version} makes an "
        "environment with it once (by pip), --python names one that is there"
    )


def _unlike(captured: Installation, here: Mapping[str, Any]) -> str:
    """Return why the captured keys must not be used; empty if they may be. They would name another Triton's code."""
    if captured.triton != here["triton"]:
        return f"Triton {captured.triton} was captured, {here['triton']} compiles"
    if not (captured.key_ok and here["key_ok"]):
        return "Triton hashes other files than those that were noted"
    files = {**captured.files, **here["files"]}
    python = [name for name in files if name.endswith(".py") and captured.files.get(name) != here["files"].get(name)]
    return f"files of Triton {captured.triton} differ: {', '.join(python[:4])}" if python else ""


def _build_target(plan: _Plan, target: Target, request: CaptureRequest, console: Console) -> bool:
    """Build a capture for a target. Returns False if a kernel failed, after it was reported."""
    started = time.monotonic()
    captured = kernels_for(plan.capture, target)
    more = neighbours(captured, plan.capture.functions) if request.neighbours else []
    name = shipped_cache.folder_name(plan.name, target.arch)
    if request.dry_run:
        console.print(f"{name}: {counted(len(captured), 'kernel')}" + (f", {len(more)} neighbours" if more else ""))
        return True
    common = {"here": [plan.here["triton"], plan.here["files"]], "all_stages": request.all_stages, **plan.session}
    backend = plan.backends[target.arch]
    jobs = [rebuild_job(kernel, target, plan.capture, common, backend) for kernel in (*captured, *more)]
    with _workers(plan, request, len(jobs)) as workers:
        results = _rebuilt(jobs, workers, request, console)
        _report_failures(name, jobs, results, len(captured), request)
        failed = any(number < len(captured) for number in results.failures)
        if (failed and not request.keep_going) or not results.kernels:
            return False
        files = _files(plan, captured, target, results, workers, request, console)
    _write(plan, target, jobs, results, files, request, console, name)
    took = time.monotonic() - started
    console.print(
        f"{results.compiled} compiled, {len(results.kernels) - results.compiled} from the cache, in {took:.1f} s"
    )
    return not failed


def _workers(plan: _Plan, request: CaptureRequest, jobs: int) -> Workers:
    session = {
        "kind": "session",
        "functions": {name: vars(record) for name, record in plan.capture.functions.items()},
        "aggregates": {name: vars(record) for name, record in plan.capture.aggregates.items()},
        "binary_only": not request.all_stages,
        **plan.session,
    }
    return Workers(plan.environment, session, min(request.jobs or default_workers(jobs), jobs), request.timeout)


def _rebuilt(jobs: Sequence[RebuildJob], workers: Workers, request: CaptureRequest, console: Console) -> _Results:
    """Get kernels from the cache, or compile them."""
    shared = None if request.cache.shared is None else SharedCache(request.cache.shared)
    cache, results = RebuiltCache(request.cache.folder, shared), _Results()
    with shared or nullcontext():
        keys = [job.key for job in jobs]
        by_key = dict(zip(keys, jobs, strict=True))
        found = cache.get_many(by_key, lambda key, kernel: fault_of(kernel, by_key[key].target))
        missing = {key: job for key, job in by_key.items() if key not in found}
        failures: dict[str, CompileFailure] = {}
        if missing:
            head = f"compiling {counted(len(missing), 'kernel')} with {workers.environment.name}"
            with steps(console, head, len(missing)) as advance:
                for job, result in run_jobs(missing.values(), workers.executor, workers.rebuild):
                    if isinstance(result, CompileFailure):
                        failures[job.key] = result
                    else:
                        found[job.key] = result
                        cache.put(job.key, result)
                        results.compiled += 1
                    advance(isinstance(result, CompileFailure))
    for number, key in enumerate(keys):
        if key in found:
            results.kernels[number] = found[key]
        else:
            results.failures[number] = failures[key]
    for text in dict.fromkeys(text for kernel in found.values() for text in kernel.warnings):
        LOG.warning("%s", text)
    return results


def _report_failures(
    name: str, jobs: Sequence[RebuildJob], results: _Results, captured: int, request: CaptureRequest
) -> None:  # fmt: skip
    """Print the kernels that did not compile. Neighbours are only counted, since nobody asked for a particular one."""
    wrong = {number: failure for number, failure in results.failures.items() if number < captured}
    if wrong:
        end = "left out" if request.keep_going else "nothing was written (--keep-going leaves them out)"
        write(f"aotbuild: {name}: {counted(len(wrong), 'kernel')} cannot be rebuilt; {end}", err=True)
    for number, failure in wrong.items():
        write(f"  {_described(jobs[number].kernel)}", err=True)
        details = failure.traceback_text if request.tracebacks else ""
        for text in filter(None, (failure.reason, details)):
            write(*(f"    {escaped(line)}" for line in text.splitlines()), err=True)
    if left := len(results.failures) - len(wrong):
        LOG.warning("%s: %s did not compile and are left out", name, counted(left, "neighbour"))


def _described(kernel: Kernel) -> str:
    return f"{kernel.function.rsplit(':', 2)[0].replace(':', '.')} {kernel.hash[:12]}"


def _files(
    plan: _Plan, captured: Sequence[Kernel], target: Target, results: _Results, workers: Workers,
    request: CaptureRequest, console: Console,
) -> dict[str, bytes]:  # fmt: skip
    """Return the files that are shipped, by name."""
    files = {
        f"{KERNELS}/{kernel.folder}/{name}": content
        for kernel in results.kernels.values()
        for name, content in kernel.files.items()
    }
    chosen = [] if plan.reason else results_for(plan.capture, list(captured), target)
    if not chosen and plan.capture.autotunes:
        console.print(
            f"{counted(len(plan.capture.autotunes), 'autotuned key')}: the first start on {target.arch} measures them"
        )
    for result, kernel in chosen:
        job = {"kind": "autotune", "autotune": vars(result), "target": kernel.target, "environment": kernel.environment}
        try:
            files |= _listed(workers.modules(job))
        except CompileError as error:
            console.print(
                f"note: a result of autotuner {result.name} is not shipped, each start measures: {error.reason}"
            )
    files |= _launchers(plan, captured, target, workers, request, console)
    if request.inductor is not None:
        try:
            files[INDUCTOR] = read_regular(request.inductor, MAX_INDUCTOR_BYTES)
        except OSError as error:
            raise BuildError(f"--inductor {request.inductor} cannot be read: {error.strerror}") from None
    return files


def _listed(folders: Mapping[str, Mapping[str, bytes]]) -> dict[str, bytes]:
    return {
        f"{KERNELS}/{folder}/{name}": content for folder, files in folders.items() for name, content in files.items()
    }


def _launchers(
    plan: _Plan, captured: Sequence[Kernel], target: Target, workers: Workers, request: CaptureRequest, console: Console
) -> dict[str, bytes]:
    """Return the C modules that Triton would compile with a C compiler and that can be built here."""
    kernels = [kernel for kernel in captured if kernel.target == target_parts(target)]
    if plan.reason or not kernels:
        return {}
    by_hand = {CUDA.name: "cuda_utils", HIP.name: "hip_utils"}[target.backend]
    if plan.version > LAST_WITH_LAUNCHERS:
        console.print(
            f"note: Triton {plan.here['triton']} compiles {by_hand} by a C compiler at its first start on a machine"
        )
        return {}
    suffix = plan.installation.extension_suffix
    headers = request.headers or _headers(plan)
    if headers is None or not (headers / "Python.h").is_file():
        console.print(
            f"note: Triton {plan.here['triton']} compiles launchers by a C compiler at the first launches: no "
            f"headers of the captured Python {plan.installation.python} are here (--python-headers DIR)"
        )
        return {}
    launches = {json.dumps([kernel.signature, kernel.constants, kernel.tensordesc]): kernel for kernel in kernels}
    job = {
        "kind": "launchers",
        "kernels": [vars(kernel) for kernel in launches.values()],
        "target": target_parts(target),
        "headers": str(headers),
        "suffix": suffix,
    }
    try:
        made = workers.modules(job)
    except CompileError as error:
        console.print(f"note: launchers are not shipped: {error.reason}")
        return {}
    if target.backend == HIP.name:
        console.print(f"note: {by_hand} is compiled by a C compiler at the first start: it names ROCm's library there")
    return _listed(made)


def _headers(plan: _Plan) -> Path | None:
    """Return the folder with the headers of the captured program's Python, if this machine has them."""
    if plan.here["extension_suffix"] == plan.installation.extension_suffix:
        return Path(plan.here["headers"])
    name = "python" + ".".join(plan.installation.python.split(".")[:2])
    places = (Path(prefix, "include", name) for prefix in ("/usr", "/usr/local"))
    return next((place for place in places if (place / "Python.h").is_file()), None)


def _write(
    plan: _Plan, target: Target, jobs: Sequence[RebuildJob], results: _Results, files: Mapping[str, bytes],
    request: CaptureRequest, console: Console, name: str,
) -> None:  # fmt: skip
    listed = [_listed_kernel(plan, jobs[number], kernel) for number, kernel in sorted(results.kernels.items())]
    try:
        manifest = Manifest(
            format=shipped_cache.FORMAT,
            name=plan.name,
            arch=target.arch,
            target=tuple(target_parts(target)),  # type: ignore[arg-type]
            ingredients=_ingredients(plan, target, jobs),
            kernels=tuple({kernel.folder: kernel for kernel in listed}.values()),
            files=shipped_cache.listed_files(files),
            aotbuild=__version__,
        )
        shipped = shipped_cache.shipped_files(manifest, files, request.signer)
        request.output.mkdir(parents=True, exist_ok=True)
        with FileLock(request.output / f".{name}.lock"):
            path = shipped_cache.write_shipped(request.output, name, shipped, request.pack)
            wheel = write_wheel(request.output, name, shipped) if request.wheel else None
    except OSError as error:
        raise BuildError(f"{request.output / name} cannot be written: {error.strerror}") from None
    except AotError as error:
        raise BuildError(f"{name} was not written: {error}") from None
    _report(plan, target, manifest, jobs, console)
    signed = ", signed" if request.signer else ""
    console.print(
        f"{path}: {counted(len(manifest.kernels), 'kernel')}, {len(shipped)} files, "
        f"{size_text(sum(map(len, shipped.values())))}{signed}"
    )
    if wheel is not None:
        console.print(f"{wheel}: installed by `aotbuild install-cache {name}`")


def _listed_kernel(plan: _Plan, job: RebuildJob, kernel: RebuiltKernel) -> ShippedKernel:
    differs = key_differences(job, kernel) if job.kernel.target == target_parts(job.target) else []
    reasons = [plan.reason] if plan.reason else differs
    qualname = plan.capture.functions[job.kernel.function].qualname
    return ShippedKernel(job.kernel.name, qualname, kernel.folder, kernel.hash, tuple(reasons))


def _ingredients(plan: _Plan, target: Target, jobs: Sequence[RebuildJob]) -> Ingredients:
    has_paths = target.backend == HIP.name and plan.version <= LAST_WITH_PATHS and not plan.reason
    return Ingredients(
        triton=plan.here["triton"],
        files=plan.triton_files,
        backend=plan.backends[target.arch],
        environment={name: value for job in jobs for name, value in job.kernel.environment.items()},
        root=root_digest(plan.installation.root) if has_paths else "",
        extension_suffix=plan.installation.extension_suffix,
    )


def _report(plan: _Plan, target: Target, manifest: Manifest, jobs: Sequence[RebuildJob], console: Console) -> None:
    """Print which kernels the captured program will find (=), and which have another target or another key (~)."""
    if plan.reason:
        console.print(f"~ all kernels have keys of this Triton: {plan.reason}")
        return
    if manifest.ingredients.root:
        console.print(
            f"note: keys of HIP before Triton 3.9 have the path of Triton's folder: the program finds them where "
            f"Triton is at {plan.installation.root}"
        )
    if other := sorted({str(job.kernel.target[1]) for job in jobs if job.kernel.target != target_parts(target)}):
        console.print(f"~ captured on {', '.join(other)}, built for {target.arch} with options chosen anew")
    for kernel in manifest.kernels:
        if kernel.differs:
            console.print(f"~ {kernel.function} {kernel.hash[:12]} would not be found: {'; '.join(kernel.differs)}")
