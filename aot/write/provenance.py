"""The provenance of a bundle: hashes of its manifests, tuning files and kernels, and the versions of compilers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from aot.manifest.shipped import shipped_root
from aot.manifest.yamlfile import YamlFile
from aot.plan.bundles import PlannedBundle, PlannedVariant
from aot.plan.filters import Filters
from aot_runtime import __version__
from aot_runtime.contract.provenance import (
    BUILD_TYPE,
    BUILDER,
    SOURCE_CLOSURE,
    BuildDefinition,
    Builder,
    Provenance,
    Resource,
    RunDetails,
)


def make_provenance(bundle: PlannedBundle, compilers: Iterable[str]) -> Provenance:
    """Describe the inputs of a bundle. Equal inputs in different folders give equal results.

    Args:
        compilers: name and version of each, such as `triton 3.9.0`.
    """
    manifest = bundle.manifest
    roots = _roots(bundle)
    parameters: dict[str, str | bool] = {
        "manifest": _name(manifest.file.path, roots),
        "arch": bundle.target.arch,
        "filter": _filter_text(bundle.filters),
        "lineInfo": any(variant.job.line_info for variant in bundle.variants),
    }
    if bundle.wanted is not None:
        parameters["for"] = ",".join(_name(file.path, roots) for file in bundle.wanted.files)
        parameters["neighbours"] = bundle.wanted.neighbours
        parameters["add"] = bool(bundle.wanted.present)
    packages = (Resource(uri=f"pkg:pypi/{compiler.replace(' ', '@')}") for compiler in compilers)
    found = {(item.name, item.uri, *item.digest.items()): item for item in (*_files(bundle), *packages)}
    dependencies = tuple(found[key] for key in sorted(found))
    definition = BuildDefinition(BUILD_TYPE, parameters, dependencies)
    return Provenance(definition, RunDetails(Builder(BUILDER, {"aotbuild": __version__})))


def _files(bundle: PlannedBundle) -> Iterator[Resource]:
    roots = _roots(bundle)
    yield _yaml(bundle.manifest.file, roots)
    for source in bundle.manifest.sources:
        yield _yaml(source.manifest.file, roots)
        if tuning := source.manifest.tuning(source.name):
            yield _yaml(tuning.file, roots)
    for file in bundle.wanted.files if bundle.wanted else ():
        yield _yaml(file, roots)
    for variant in bundle.variants:
        yield from _kernel(variant)


def _roots(bundle: PlannedBundle) -> list[Path]:
    """Return the project roots of a bundle's manifests, the outermost first.

    The root of shipped files precedes them, since aotbuild may be installed within a project. A manifest that only
    includes others counts with its folder.
    """
    manifests = (bundle.manifest, *(source.manifest for source in bundle.manifest.sources))
    roots, shipped = {manifest.root for manifest in manifests}, shipped_root()
    return sorted(roots, key=lambda root: (root != shipped, len(root.parts), root))


def _yaml(file: YamlFile, roots: Iterable[Path]) -> Resource:
    return Resource(_name(file.path, roots), digest={"sha256": file.sha256})


def _kernel(variant: PlannedVariant) -> Iterator[Resource]:
    """Return the resources of a kernel: its closure, and the files that contain it and its functions."""
    job = variant.job
    read = dict(job.sources)
    for path in (job.source, *(function.rpartition(":")[0] for _, function in job.functions)):
        if path in read:  # else the closure has it all the same
            yield Resource(path, digest={"sha256": read[path]})
    yield Resource(f"{job.source}:{job.function}", digest={SOURCE_CLOSURE: job.digest})


def _name(path: Path, roots: Iterable[Path]) -> str:
    """Return a file's path from the first root that contains it; only its name if none does."""
    resolved = path.resolve()
    names = (resolved.relative_to(root).as_posix() for root in roots if resolved.is_relative_to(root))
    return next(names, path.name)


def _filter_text(filters: Filters) -> str:
    return ",".join(f"{axis}={'|'.join(sorted(values))}" for axis, values in sorted(filters.items()))
