"""Puts a bundle into its folder: written aside, verified as a reader does it, and then moved in, the index last.

Until the index is there the old bundle is what the folder has. Of a folder's files only those are removed that an
older build wrote: its index says which.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from aot_runtime.bundle.reading import read_index
from aot_runtime.bundle.verification import verify_bundle
from aot_runtime.contract.records import INDEX, SIGNATURES
from aot_runtime.errors import BundleError

_ASIDE = ".aotbuild-"
_ASIDE_NAME = re.compile(re.escape(_ASIDE) + r"[a-z0-9_]{8}")
"""The folders that `tempfile.mkdtemp` makes with that prefix."""


def place_bundle(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make `files` the bundle in a folder, whose lock the caller holds.

    The signatures of an older bundle go where the index is another.

    Args:
        files: file below the folder → content; those of an older bundle that are not among them go.

    Raises:
        BundleError: a reader would refuse the bundle. An older one is still there.
        OSError: likewise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = _written_before(folder)
    changed = [file for file, content in files.items() if not _is_there(folder / file, content)]
    if changed:
        with _aside(folder) as aside:
            _write(aside, files)
            if faults := verify_bundle(aside):
                raise BundleError("; ".join(faults).replace(f"{aside}/", ""))
            for file in sorted(changed, key=lambda file: file == INDEX):
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                if file == INDEX:
                    for signature in SIGNATURES:
                        (folder / signature).unlink(missing_ok=True)
                (aside / file).replace(folder / file)
    for file in known - files.keys():
        (folder / file).unlink(missing_ok=True)
    for leftover in _leftovers(folder):
        shutil.rmtree(leftover, ignore_errors=True)


def _is_there(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write all files. The index comes last: a folder that has one lists what may have been moved out of it."""
    for file in sorted(files, key=lambda file: file == INDEX):
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[file])
        path.chmod(0o644)


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A folder within, on the same file system; nothing is left of it, or of a folder that has nothing else."""
    aside = Path(tempfile.mkdtemp(dir=folder, prefix=_ASIDE))
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        with suppress(OSError):
            folder.rmdir()


def _leftovers(folder: Path) -> list[Path]:
    """What builds that were killed left behind: folders of that very name, and this user's."""
    return [path for path in folder.glob(f"{_ASIDE}*") if _ASIDE_NAME.fullmatch(path.name) and _is_own_folder(path)]


def _is_own_folder(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _written_before(folder: Path) -> set[str]:
    """Files below a folder that a bundle there has, or one that was about to be there when its build was killed."""
    known: set[str] = set()
    for place in (folder, *_leftovers(folder)):
        with suppress(BundleError):
            index = read_index(place)
            known |= {blob.file for blob in index.blobs.values()} | {case.vectors.file for case in index.selftest}
    return known
