"""Plan a bundle: a manifest for one architecture, with each op's variants bound and given their compile jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import msgspec

from aot.compile.jobs import CompileJob
from aot.compile.keys import JobKeys
from aot.compile.settings import option_names
from aot.errors import CompileError
from aot.manifest.loading import Manifest, OpSource
from aot.manifest.schema import BindSpec, OpSpec
from aot.manifest.yamlfile import Key, ManifestError
from aot.source.kernel_source import KernelSource, inspect_kernel, split_function
from aot.source.source_hash import joined_hash
from aot.targets import TARGETS, Target
from aot_runtime.contract import records
from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.expressions import parse
from aot_runtime.contract.partial_evaluation import UNKNOWN, partial_value
from aot_runtime.errors import AotError, ExpressionError

from .bind_parameters import Binder, bound_functions
from .bound_parameter import BoundParameter, compile_job
from .calls import PlannedCall, WantedCalls, built_for, plan_calls
from .cases import Maps, PlannedCase, plan_cases
from .configs import config_error
from .contract import build_contract
from .existing_bundle import Key as PresentKey
from .existing_bundle import key_of
from .filters import Filters, passes
from .from_decorators import with_kernels
from .variants import TooManyPointsError, VariantSpec, enumerate_variants

Inspect = Callable[[str, str, str], KernelSource]
"""Reads a kernel or function, given the root, its `path.py:function` and the target architecture."""
_Read = Callable[[str, str], KernelSource]
"""The same for one architecture."""


@dataclass(frozen=True)
class PlannedVariant:
    """A variant that the bundle will have, with its bound parameters and its compile job."""

    spec: VariantSpec
    bound: tuple[BoundParameter, ...]
    job: CompileJob
    key: str


@dataclass(frozen=True)
class PlannedBundle:
    """A bundle of a build: a manifest for one architecture, with the selftest cases that its variants serve.

    Attributes:
        filters: restrictions of the variants by values of axes.
        wanted: the calls to build for; None: any.
        calls: the wanted calls that variants were chosen for.
        left_out: number of variants that neither a wanted call nor the present bundle has.
    """

    manifest: Manifest
    target: Target
    ops: tuple[records.Op, ...]
    variants: tuple[PlannedVariant, ...]
    cases: tuple[PlannedCase, ...] = ()
    filters: Filters = field(default_factory=dict)
    wanted: WantedCalls | None = None
    calls: tuple[PlannedCall, ...] = ()
    left_out: int = 0

    @property
    def jobs(self) -> dict[str, CompileJob]:
        """Return key → compile job."""
        return {variant.key: variant.job for variant in self.variants}

    @property
    def folder_name(self) -> str:
        return f"{self.manifest.spec.bundle}-{self.target.arch}"


def plan_bundle(
    manifest: Manifest,
    target: Target,
    filters: Filters,
    line_info: bool,
    inspect: Inspect = inspect_kernel,
    wanted: WantedCalls | None = None,
) -> PlannedBundle:
    """Enumerate and bind every variant of a manifest for a target. Raises `ManifestError`.

    Args:
        filters: as `resolve_filters` gives them.
        inspect: reads kernels in another process, since kernel files may do anything.
        wanted: the calls to build for; by default everything that passes the filters.
    """
    ops: list[records.Op] = []
    variants: list[PlannedVariant] = []
    cases: list[PlannedCase] = []
    calls: list[PlannedCall] = []
    left_out = 0
    name = f"{manifest.spec.bundle}-{target.arch}"
    present = wanted.present.get(name) if wanted is not None else None
    there: set[PresentKey] = set()
    read = cache(lambda root, path: inspect(root, path, target.arch))
    for declared in manifest.sources:
        served = served_launches(declared.spec, target.arch)
        source = _with_kernels(declared, served, read)
        op = _restricted(build_contract(source.manifest, source.name, target.arch, all_option_names()), source.only)
        every = _variants(source, op, target)
        own = {item for item in every if present is not None and key_of(op, item) in present.labels}
        there.update(key_of(op, item) for item in own)
        kept = [item for item in every if item in own or passes(op, item, filters)]
        maps = _maps(source, kept, read)
        if wanted is not None:
            recorded = plan_calls(wanted.of(manifest.spec.bundle, op.name), op, kept, target, maps)
            chosen = own.union(built_for(recorded, kept, wanted.neighbours))
            calls, left_out = [*calls, *recorded], left_out + len(kept) - len(chosen)
            kept = [item for item in kept if item in chosen]
        if kept:
            ops.append(op)
            variants += _bind_op(source.manifest, op, served, kept, target, line_info, read)
            cases += plan_cases(source.manifest, op, kept, target, maps)
    if present is not None and (fault := present.missing(there)):
        raise ManifestError([f"{manifest.file.path}: {fault}"])
    if not variants:
        restricted = "after --filter, --for and exclude"
        raise ManifestError([f"{manifest.file.path}: no variant is left for {target.arch} {restricted}"])
    planned = (tuple(ops), tuple(variants), tuple(cases))
    return PlannedBundle(manifest, target, *planned, filters, wanted, tuple(calls), left_out)


def served_launches(op: OpSpec, arch: str) -> tuple[int, ...]:
    """Return the launches that calls on an architecture may make. The kernels of the others are not read.

    A launch is left out if its condition is false whatever the call is: `when: HOPPER`, with an axis HOPPER that is
    picked by `has_wgmma and …`.
    """
    known: dict[str, Any] = dict(ARCHITECTURES[arch].device_constants)
    for name, axis in op.constexprs.items():
        value = _decided(str(axis.pick), known)
        if isinstance(value, bool):
            known[name] = value
    conditions = ((index, str(launch.when)) for index, launch in enumerate(op.launches))
    return tuple(index for index, when in conditions if not when or _decided(when, known) is not False)


def _decided(text: str, known: Mapping[str, Any]) -> Any:
    try:
        return partial_value(parse(text), known)
    except ExpressionError:
        return UNKNOWN  # whoever checks the contract reports it


def _with_kernels(source: OpSource, served: Collection[int], inspect: _Read) -> OpSource:
    kernels = {
        index: _inspected(source.manifest, source.name, index, inspect, launch.kernel, "kernel")
        for index, launch in enumerate(source.spec.launches)
        if index in served
    }
    return OpSource(with_kernels(source.manifest, source.name, kernels), source.name, source.only)


def _restricted(op: records.Op, only: Mapping[str, Collection[records.Value]]) -> records.Op:
    """Return an op that is restricted to the values that an including manifest wants."""
    others = (" and ".join(f"{axis} != {value!r}" for value in values) for axis, values in only.items())
    return msgspec.structs.replace(op, denied=op.denied + tuple(records.Denied(text, "") for text in others))


def _maps(source: OpSource, variants: Iterable[VariantSpec], inspect: _Read) -> Maps:
    """Return the tensors that a Gluon kernel's aligned variants take as tensor maps: those bound with a `block`."""
    found = {}
    for index in {variant.launch for variant in variants if variant.aligned}:
        launch = source.spec.launches[index]
        blocks = frozenset(str(bind.value) for bind in _binds(launch.bind.values()) if bind.block)
        if blocks and _inspected(source.manifest, source.name, index, inspect, launch.kernel, "kernel").is_gluon:
            found[index] = blocks
    return found


def _binds(values: Iterable[object]) -> Iterator[BindSpec]:
    for value in values:
        if isinstance(value, BindSpec):
            yield value
        elif isinstance(value, list):
            yield from _binds(value)


def _variants(source: OpSource, op: records.Op, target: Target) -> list[VariantSpec]:
    """Return the variants of an op for a target, restricted as an including manifest says."""
    manifest, name = source.manifest, source.name
    try:
        found = enumerate_variants(op, source.spec, target.arch)
    except ExpressionError as error:
        raise manifest.error(("ops", name), f"op '{name}': {error}") from None
    except TooManyPointsError as error:
        raise manifest.error(("ops", name, "constexprs"), f"op '{name}': {error}") from None
    for axis, value in found.unused:
        group = "dtypes" if axis in source.spec.dtypes else "constexprs"
        raise manifest.error(
            ("ops", name, group, axis),
            f"op '{name}': no variant needs {axis} = {value}: every combination with this value is excluded, or never "
            "picked",
        )
    return [
        item for item in found.variants if all(value in source.only.get(axis, (value,)) for axis, value in item.point)
    ]


def _bind_op(
    manifest: Manifest,
    op: records.Op,
    served: Collection[int],
    variants: Iterable[VariantSpec],
    target: Target,
    line_info: bool,
    inspect: _Read,
) -> list[PlannedVariant]:
    kernels = {index: _read_kernel(manifest, op, index, target, inspect) for index in served}
    launches = manifest.spec.ops[op.name].launches
    keys, allowed = JobKeys(target, line_info), option_names(target)
    planned = []
    for spec in variants:
        kernel = kernels[spec.launch]
        bound = kernel.binder.bind(spec)
        # A config may set AMD's and NVIDIA's options side by side; each backend takes its own.
        options = tuple(option for option in spec.options if option[0] in allowed)
        chosen = dataclasses.replace(spec, options=options)
        job = compile_job(manifest, launches[spec.launch], bound, chosen, target.arch, line_info)
        digest = joined_hash(kernel.digest, {name: kernel.functions[path] for name, path in job.functions})
        job = dataclasses.replace(job, digest=digest, sources=kernel.sources)
        try:
            planned.append(PlannedVariant(chosen, bound, job, keys.key(job, digest)))
        except CompileError as error:
            config = op.launches[spec.launch].configs[spec.config].name
            raise config_error(manifest, op.name, target.arch, spec.launch, config, "name", error.reason) from error
    return planned


@lru_cache(maxsize=1)
def all_option_names() -> frozenset[str]:
    """Return the names of the compiler options of all backends."""
    by_backend = {target.backend: target for target in TARGETS}
    return frozenset().union(*map(option_names, by_backend.values()))


@dataclass(frozen=True)
class _Kernel:
    """The kernel of a launch: the binder of its parameters, and the hashes of its sources for compile jobs.

    functions: path of each function bound to one of its parameters → `source_hash`.
    """

    binder: Binder
    digest: str
    functions: dict[str, str]
    sources: tuple[tuple[str, str], ...]


def _read_kernel(manifest: Manifest, op: records.Op, index: int, target: Target, inspect: _Read) -> _Kernel:
    launch = manifest.spec.ops[op.name].launches[index]
    kernel = _inspected(manifest, op.name, index, inspect, launch.kernel, "kernel")
    functions = {
        value: _inspected(manifest, op.name, index, inspect, value, "bind", name)
        for value, name in bound_functions(launch).items()
    }
    binder = Binder(manifest, op, index, kernel.parameters, target.arch, kernel.is_gluon)
    binder.check()
    digests = {path: function.digest for path, function in functions.items()}
    sources = dict(source for item in (kernel, *functions.values()) for source in item.sources)
    return _Kernel(binder, kernel.digest, digests, tuple(sorted(sources.items())))


def _inspected(manifest: Manifest, op: str, index: int, inspect: _Read, function: str, *place: str) -> KernelSource:
    where: tuple[Key, ...] = ("ops", op, "launches", index, *place)
    try:
        kernel = inspect(str(manifest.root), function)
    except AotError as error:
        reason = str(error) if isinstance(error, CompileError) else f"file {split_function(function)[0]}: {error}"
        raise manifest.error(where, f"op '{op}': {reason}") from error
    if kernel.fault:
        raise manifest.error(where, f"op '{op}': {kernel.fault}")
    return kernel
