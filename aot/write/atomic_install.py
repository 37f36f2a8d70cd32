"""Install a bundle in its folder: write it aside, verify it as a reader does, and move it in, the index last.

Until the index is moved, the folder has the old bundle. Of other files in the folder, only those that an older build
wrote are removed, as its index lists them. Links in the folder are never followed (`aot_runtime.folders`); they are
replaced if a file or folder of the bundle goes there.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from aot_bundle.verification import verify_bundle
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.records import INDEX, SIGNATURES
from aot_runtime.errors import BundleError
from aot_runtime.folders import FOR_ALL, InTheWayError, OpenFolder, opened_folder

_ASIDE = ".aotbuild-"
_ASIDE_NAME = re.compile(re.escape(_ASIDE) + r"[a-z0-9_]{8}")
"""Names of the folders that bundles are written to before they are moved in."""


def install_bundle(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make `files` the bundle in a folder, whose lock the caller holds.

    Signatures of an older bundle are removed if the index changes.

    Args:
        folder: may be reached through links, but may not be one.
        files: path in the folder → content. Files of an older bundle that are not among them are removed.

    Raises:
        BundleError: a reader would refuse the bundle. An older one is left in place.
        OSError: the folder cannot be written. An older bundle is left in place.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with opened_folder(folder.parent) as output:
        try:
            with output.below(folder.name, make=True) as place:
                _place(place, files)
        finally:
            output.remove_empty(folder.name)


def _place(folder: OpenFolder, files: Mapping[str, bytes]) -> None:
    known = _written_before(folder)
    changed = [file for file, content in files.items() if not _is_there(folder, file, content)]
    if changed:
        with _aside(folder) as aside:
            aside.create_all(dict(sorted(files.items(), key=lambda item: item[0] == INDEX)), FOR_ALL)
            if faults := verify_bundle(aside.path):
                raise BundleError("; ".join(faults).replace(f"{aside.path}/", ""))
            for file in sorted(changed, key=lambda file: file == INDEX):
                if file == INDEX:
                    for signature in SIGNATURES:
                        folder.remove(signature)
                parents, _, name = file.rpartition("/")
                with aside.below(parents) as source, folder.below(parents, make=True, over_links=True) as target:
                    source.move(name, target)
    for file in known - files.keys():
        parents, _, name = file.rpartition("/")
        with suppress(FileNotFoundError, InTheWayError), folder.below(parents) as holder:
            holder.remove(name)
    for leftover in _leftovers(folder):
        folder.remove_tree(leftover)


def _is_there(folder: OpenFolder, file: str, content: bytes) -> bool:
    parents, _, name = file.rpartition("/")
    with suppress(FileNotFoundError, InTheWayError), folder.below(parents) as holder:
        status = holder.status(name)
        if status is not None and status.st_size == len(content):
            with os.fdopen(holder.open(name), "rb") as opened:
                return opened.read() == content
    return False


@contextmanager
def _aside(folder: OpenFolder) -> Iterator[OpenFolder]:
    name = f"{_ASIDE}{secrets.token_hex(4)}"
    with folder.below(name, make=True) as aside:
        try:
            yield aside
        finally:
            folder.remove_tree(name)


def _leftovers(folder: OpenFolder) -> list[str]:
    """Return leftovers of builds that were killed: this user's folders of that very name."""
    return [name for name in folder.names() if _ASIDE_NAME.fullmatch(name) and _is_own_folder(folder.status(name))]


def _is_own_folder(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _written_before(folder: OpenFolder) -> set[str]:
    """Files of the bundle in a folder, or of one that was about to be installed when its build was killed."""
    known: set[str] = set()
    for place in (folder.path, *(folder.path / name for name in _leftovers(folder))):
        with suppress(BundleError):
            index = read_index(place)
            known |= {blob.file for blob in index.blobs.values()} | {case.vectors.file for case in index.selftest}
    return known
