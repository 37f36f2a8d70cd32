"""A build: manifests and architectures in, bundles out. Plan first (`plan_build`), then compile and write."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from aot.compile.cache import CompileCache
from aot.compile.compiler import CompiledKernel, CompileJob, job_key, option_names
from aot.compile.kernel_source import CompileError, kernel_parameters, load_kernel, sources_hash, split_function
from aot.compile.pool import CompileFailure, run_jobs
from aot.manifest.schema import Manifest, OpSource
from aot.manifest.yamlfile import ManifestError
from aot.targets import TARGETS, Target
from aot_runtime.contract import records
from aot_runtime.errors import ExpressionError

from .binding import Binder, Bound, bound_functions, compile_job
from .cases import PlannedCase, plan_cases
from .contract import build_contract, config_error
from .variants import VariantSpec, enumerate_variants

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction


@dataclass(frozen=True)
class PlannedVariant:
    """A variant that the bundle will have: what it is, what its parameters are, and the job that compiles it."""

    spec: VariantSpec
    bound: tuple[Bound, ...]
    job: CompileJob
    key: str


OnDone = Callable[[PlannedVariant, CompiledKernel | CompileFailure], None]
"""Called with each variant as its compilation ends."""


@dataclass(frozen=True)
class PlannedBundle:
    """One bundle of a build: a manifest for one architecture, with the selftest cases that its variants serve."""

    manifest: Manifest
    target: Target
    ops: tuple[records.Op, ...]
    variants: tuple[PlannedVariant, ...]
    cases: tuple[PlannedCase, ...] = ()

    @property
    def folder_name(self) -> str:
        return f"{self.manifest.spec.bundle}-{self.target.arch}"


@dataclass(frozen=True)
class Failure:
    """A variant that did not compile."""

    bundle: str
    label: str
    reason: str
    details: str = ""


@dataclass
class Outcome:
    """What compiling gave: the kernel of each key, the failures, and how many were compiled or found in the cache."""

    kernels: dict[str, CompiledKernel] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    compiled: int = 0
    cached: int = 0


def plan_bundle(
    manifest: Manifest, target: Target, filters: Mapping[str, frozenset[str]], line_info: bool, full: bool = False
) -> PlannedBundle:
    """Enumerate and bind every variant of a manifest for a target. Raises `ManifestError`.

    Args:
        filters: axis, dtype variable, `dtype` or `op` → the values to build; all in lower case.
        full: also what the manifest calls rare.
    """
    ops: list[records.Op] = []
    variants: list[PlannedVariant] = []
    cases: list[PlannedCase] = []
    for source in manifest.sources:
        op = build_contract(source.manifest, source.name, target.arch, _all_option_names())
        kept = [item for item in _variants(source, op, target, full) if _passes(op, item, filters)]
        if kept:
            ops.append(op)
            variants += _bind_op(source.manifest, op, kept, target, line_info)
            cases += plan_cases(source.manifest, op, kept, target)
    if not variants:
        raise ManifestError([f"{manifest.file.path}: no variant is left for {target.arch} after --filter and exclude"])
    return PlannedBundle(manifest, target, tuple(ops), tuple(variants), tuple(cases))


def _variants(source: OpSource, op: records.Op, target: Target, full: bool) -> list[VariantSpec]:
    """Every variant of an op for a target, of those that its manifest, or the one that includes it, wants."""
    manifest, name = source.manifest, source.name
    try:
        found = enumerate_variants(op, source.spec, target.arch, full)
    except ExpressionError as error:
        raise manifest.error(("ops", name), f"op '{name}': {error}") from None
    for axis, value in found.unused:
        group = "dtypes" if axis in source.spec.dtypes else "constexprs"
        raise manifest.error(
            ("ops", name, group, axis),
            f"op '{name}': no variant needs {axis} = {value}: every combination with it is excluded or never picked",
        )
    return [
        item for item in found.variants if all(value in source.only.get(axis, (value,)) for axis, value in item.point)
    ]


def filter_names(manifest: Manifest) -> frozenset[str]:
    """What `--filter` may name for a manifest, in lower case."""
    axes = [axis for source in manifest.sources for axis in (*source.spec.dtypes, *source.spec.constexprs)]
    return frozenset({"op", "dtype", *(axis.lower() for axis in axes)})


def _passes(op: records.Op, variant: VariantSpec, filters: Mapping[str, frozenset[str]]) -> bool:
    """Whether a variant has one of the wanted values on each axis of a filter; `dtype` is any dtype variable."""
    point = {name.lower(): {str(value).lower()} for name, value in (*variant.point, ("op", variant.op))}
    point["dtype"] = {str(value).lower() for name, value in variant.point if name in op.dtypes}
    return all(name not in point or point[name] & wanted for name, wanted in filters.items())


def _bind_op(
    manifest: Manifest, op: records.Op, variants: Iterable[VariantSpec], target: Target, line_info: bool
) -> list[PlannedVariant]:
    binders = [_binder(manifest, op, index, target) for index in range(len(op.launches))]
    launches = manifest.spec.ops[op.name].launches
    planned = []
    for spec in variants:
        binder, digest = binders[spec.launch]
        bound = binder.bind(spec)
        # A config may set AMD's and NVIDIA's options side by side; each backend takes its own.
        options = tuple(option for option in spec.options if option[0] in option_names(target))
        chosen = dataclasses.replace(spec, options=options)
        job = compile_job(manifest, launches[spec.launch], bound, chosen, target.arch, line_info)
        try:
            planned.append(PlannedVariant(chosen, bound, job, job_key(job, digest)))
        except CompileError as error:
            config = op.launches[spec.launch].configs[spec.config].name
            raise config_error(manifest, op.name, target.arch, spec.launch, config, "name", error.reason) from error
    return planned


@lru_cache(maxsize=1)
def _all_option_names() -> frozenset[str]:
    by_backend = {target.backend: target for target in TARGETS}
    return frozenset().union(*map(option_names, by_backend.values()))


def _binder(manifest: Manifest, op: records.Op, index: int, target: Target) -> tuple[Binder, str]:
    """(binder of a launch's kernel, hash of the sources of the kernel and of the functions bound to it)."""
    launch = manifest.spec.ops[op.name].launches[index]
    kernel = _load(manifest, op, index, launch.kernel, "kernel")
    functions = {
        name: _load(manifest, op, index, value, "bind", name) for name, value in bound_functions(launch).items()
    }
    binder = Binder(manifest, op, index, kernel_parameters(kernel), target.arch)
    binder.check(_all_option_names())
    return binder, sources_hash(kernel, functions)


def _load(manifest: Manifest, op: records.Op, index: int, function: str, *place: str) -> JITFunction:
    try:
        return load_kernel(manifest.root, *split_function(function))
    except CompileError as error:
        raise manifest.error(("ops", op.name, "launches", index, *place), f"op '{op.name}': {error.reason}") from error


def look_up(bundles: Iterable[PlannedBundle], cache: CompileCache) -> tuple[Outcome, dict[str, PlannedVariant]]:
    """What the cache has, and the variants that have to be compiled: one per distinct key."""
    outcome = Outcome()
    missing: dict[str, PlannedVariant] = {}
    for bundle in bundles:
        for variant in bundle.variants:
            if variant.key in outcome.kernels or variant.key in missing:
                continue
            kernel = cache.get(variant.key)
            if kernel is None:
                missing[variant.key] = variant
            else:
                outcome.kernels[variant.key] = kernel
                outcome.cached += 1
    return outcome, missing


def compile_missing(
    bundles: Iterable[PlannedBundle],
    missing: Mapping[str, PlannedVariant],
    cache: CompileCache,
    executor: Executor,
    outcome: Outcome,
    on_done: OnDone,
) -> None:
    """Compile what the cache did not have; results go to the cache and to `outcome` as they come."""
    # By identity: a constant True and a constant 1 make equal jobs, and different code.
    by_job = {id(variant.job): key for key, variant in missing.items()}
    failed: dict[str, CompileFailure] = {}
    for job, result in run_jobs([variant.job for variant in missing.values()], executor):
        key = by_job[id(job)]
        if isinstance(result, CompileFailure):
            failed[key] = result
        else:
            cache.put(key, result)
            outcome.kernels[key] = result
            outcome.compiled += 1
        on_done(missing[key], result)
    for bundle in bundles:
        for variant in bundle.variants:
            if variant.key in failed:
                failure = failed[variant.key]
                outcome.failures.append(
                    Failure(bundle.folder_name, variant.spec.label, failure.reason, failure.traceback_text)
                )
