"""What `--pack` writes: one archive for each manifest, of the bundles for all architectures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aot.plan.bundles import PlannedBundle
from aot_bundle.packing import merge_bundles
from aot_runtime.folders import opened_folder
from aot_runtime.installed import SUFFIX


def archive_names(bundles: Sequence[PlannedBundle]) -> list[str]:
    """The names of the archives of bundles."""
    return list(dict.fromkeys(map(_name, bundles)))


def _name(bundle: PlannedBundle) -> str:
    return f"{bundle.manifest.spec.bundle}{SUFFIX}"


@contextmanager
def folder_aside(output: Path, bundles: Sequence[PlannedBundle]) -> Iterator[Path]:
    """A folder that bundles are written to, whose archives' locks the caller holds, before they are packed. It is there
    for as long as it is used; what a build that was killed left of it goes."""
    first, *_ = archive_names(bundles)
    name = f".{first}.new"
    with opened_folder(output) as folder:
        folder.remove_tree(name)
        try:
            with folder.below(name, make=True) as aside:
                yield aside.path
        finally:
            folder.remove_tree(name)


def pack_bundles(
    bundles: Sequence[PlannedBundle], folder: Path, output: Path, compress: bool
) -> Iterator[tuple[Path, list[str]]]:
    """Write the archives of the bundles in a folder. Yields each with its architectures. Raises as `merge_bundles`."""
    for name in archive_names(bundles):
        places = [folder / bundle.folder_name for bundle in bundles if _name(bundle) == name]
        yield output / name, [*merge_bundles(places, output / name, compress)]
