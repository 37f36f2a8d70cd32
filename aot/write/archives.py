"""Write the archives of `--pack`: one for each manifest, with its bundles for all architectures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aot.plan.bundles import PlannedBundle
from aot_bundle.packing import merge_bundles
from aot_runtime.bundle.files import SUFFIX
from aot_runtime.folders import opened_folder


def archive_names(bundles: Sequence[PlannedBundle]) -> list[str]:
    """Names of the archives of bundles."""
    return list(dict.fromkeys(map(_name, bundles)))


def _name(bundle: PlannedBundle) -> str:
    return f"{bundle.manifest.spec.bundle}{SUFFIX}"


@contextmanager
def folder_aside(output: Path, bundles: Sequence[PlannedBundle]) -> Iterator[Path]:
    """Yield a temporary folder for bundles before they are packed, and remove leftovers of killed builds.

    The caller holds the locks of the archives.
    """
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
    """Pack the bundles in a folder. Yield each archive with its architectures. Raises as `merge_bundles` does."""
    for name in archive_names(bundles):
        places = [folder / bundle.folder_name for bundle in bundles if _name(bundle) == name]
        yield output / name, [*merge_bundles(places, output / name, compress)]
