"""Bundles of the shipped manifests whose variants are compiled only when calls need them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock

from aot.cache.layered_cache import CompileCache
from aot.compile.compiler import compile_job
from aot.compile.jobs import CompiledKernel
from aot.plan.bundles import PlannedBundle, PlannedVariant
from aot.targets import Target
from aot.write.bundle_writer import make_kernargs, make_variant
from aot_runtime import Bundle, Device
from aot_runtime.call.choosing import Decision
from aot_runtime.call.planner import Planner
from aot_runtime.contract import records
from aot_runtime.contract.index_file import FORMAT_VERSION, OLDEST_FORMAT

Key = tuple[Any, ...]


class BundleOnDemand(Bundle):
    """A bundle of `aotbuild MANIFEST` for an open device, whose variants are compiled when a call needs them.

    Its index lists all variants, without the facts that come from their code. Processes may share `cache`.
    """

    def __init__(self, planned: PlannedBundle, device: Device, cache: Path, check_contents: bool = False):
        self.planned = planned
        super().__init__(cache, index_of(self.planned), device, check_contents)
        self._planned = {
            key_of(stub): variant for stub, variant in zip(self.index.variants, self.planned.variants, strict=True)
        }
        self._compiled: dict[Key, records.Variant] = {}

    @cached_property
    def _cache(self) -> CompileCache:
        return CompileCache(self.path)

    def _planner(self, name: str) -> Planner:
        return PlannerOnDemand(super()._planner(name), self.compiled)

    def compiled(self, stub: records.Variant) -> records.Variant:
        """Return a variant of the index, and what its code tells."""
        key = key_of(stub)
        if key not in self._compiled:
            planned = self._planned[key]
            kernel = self._kernel(planned)
            self._compiled[key] = make_variant(planned, kernel, self.device.arch, planned.key, {})
            self.index.blobs[planned.key] = records.Blob(f"code/{planned.key}", len(kernel.image), planned.key)
        return self._compiled[key]

    def _kernel(self, planned: PlannedVariant) -> CompiledKernel:
        with FileLock(self.path / f"{planned.key}.lock"):
            kernel = self._cache.get(planned.key)
            if kernel is None:
                kernel = compile_job(planned.job)
                self._cache.put(planned.key, kernel)
            return kernel

    def _image(self, code: str) -> bytes:
        kernel = self._cache.get(code)
        assert kernel is not None, "the variant was compiled before it is loaded"
        return kernel.image


class PlannerOnDemand(Planner):
    """A planner whose decisions are of compiled variants."""

    def __init__(self, planner: Planner, compiled: Callable[[records.Variant], records.Variant]):
        self.op, self.origin, self.static, self.choosing = planner.op, planner.origin, planner.static, planner.choosing
        self._planner, self._variant = planner, compiled
        self.checking, self.entry = planner.checking, planner.entry  # type: ignore[method-assign]

    def decide(self, *arguments: Any) -> Decision:
        decision = self._planner.decide(*arguments)
        ready = (msgspec.structs.replace(x, variant=self._variant(x.variant)) for x in decision.launches)
        return msgspec.structs.replace(decision, launches=tuple(ready))


def index_of(planned: PlannedBundle) -> records.Index:
    """Return the index of a bundle whose variants are not compiled."""
    target = planned.target
    return records.Index(
        FORMAT_VERSION, OLDEST_FORMAT, "0" * 64, planned.manifest.spec.bundle,
        records.Target(target.arch, target.backend, target.warp_size), {}, planned.ops,
        tuple(stub_of(variant, target) for variant in planned.variants), {}, (),
    )  # fmt: skip


def stub_of(variant: PlannedVariant, target: Target) -> records.Variant:
    """Return the index's record of a variant, without what only its code tells."""
    spec = variant.spec
    return records.Variant(spec.op, spec.launch, dict(spec.point), spec.aligned, spec.config, "", "",
                       make_kernargs(variant), 0, 0, 1, target.warp_size, records.Resources(), {}, "")  # fmt: skip


def key_of(variant: records.Variant) -> Key:
    """Return the key of a variant within its bundle."""
    return (variant.op, variant.launch, variant.config, variant.aligned, *variant.axis_values.items())
