"""The files of a bundle, and the coverage of its signatures.

The index has the hashes of code objects and self-test vectors. Files generated from the index, such as headers and
CMake files, are hashed in a signature's statement instead. Any other file is a stray: it is not covered, yet a compiler
that searches the bundle might use it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from aot_runtime.bundle.files import Folder, named, unreadable
from aot_runtime.bundle.reading import MAX_INDEX_BYTES
from aot_runtime.bundle.source import Source
from aot_runtime.bundle.statement import MAX_SIGNATURE_BYTES, read_claim
from aot_runtime.contract.records import CODE_FOLDER, INDEX, SELFTEST_FOLDER, SIGNATURES, TEXT_FILES, Index
from aot_runtime.errors import TrustError

MAX_TEXT_BYTES = 64 << 20
"""Maximum size of a generated file, in bytes."""
MAX_DETACHED_BYTES = 16 << 20
"""Maximum size of a detached file, in bytes, whose name begins with the index's."""
OWN_FOLDERS = frozenset({CODE_FOLDER, SELFTEST_FOLDER, *(file.partition("/")[0] for file in TEXT_FILES)})
"""Subfolders that belong to a bundle. Others are its owner's."""


def generated_files(index: Index) -> Iterator[str]:
    """Return the names of files generated from the index, see `TEXT_FILES`."""
    return (file.format(name=index.name) for file in TEXT_FILES)


def listed_files(index: Index) -> dict[str, int]:
    """Return the sizes in bytes of files that the index lists with hashes."""
    blobs = (*index.blobs.values(), *(case.vectors for case in index.selftest))
    return {blob.file: blob.size for blob in blobs}


def detached_files(source: Source) -> list[str]:
    """Return files whose names begin with the index's, such as signatures and others' metadata."""
    return [name for name in source.names() if name.startswith(f"{INDEX}.") and "/" not in name]


def most_bytes(index: Index) -> dict[str, int]:
    """Return the largest allowed size of each file, except detached files that are not signatures."""
    return {
        INDEX: MAX_INDEX_BYTES,
        **dict.fromkeys(SIGNATURES, MAX_SIGNATURE_BYTES),
        **dict.fromkeys(generated_files(index), MAX_TEXT_BYTES),
        **listed_files(index),
    }


def stray_files(source: Source, index: Index, everywhere: bool = True) -> Iterator[str]:
    """Yield the names of files that do not belong to the bundle.

    Args:
        everywhere: also list files outside the bundle's own subfolders. They may be the owner's.
    """
    known = {*most_bytes(index), *detached_files(source)}
    for name in source.names():
        is_own = not isinstance(source, Folder) or name.partition("/")[0] in OWN_FOLDERS
        if name not in known and (everywhere or is_own):
            yield name


def uncovered(source: Source, index: Index, digests: Mapping[str, str], signature: str) -> Iterator[str]:
    """Yield the files that a signature's statement does not cover, or that were altered since.

    Args:
        digests: SHA-256 by file, from the statement.
        signature: the signature file, for messages.
    """
    limits = most_bytes(index)
    for name in dict.fromkeys((INDEX, *generated_files(index), *stray_files(source, index), *digests)):
        if name not in digests:
            yield f"{named(name)} is covered neither by the index nor by {signature}"
            continue
        try:
            content = source.read(name, max(limits.get(name, 0), MAX_TEXT_BYTES))
        except OSError as error:
            yield str(unreadable("signed file", Path(named(name)), error))
            continue
        if hashlib.sha256(content).hexdigest() != digests[name]:
            yield f"{named(name)} was altered: its sha256 is not what {signature} says"


def claimed_faults(source: Source, index: Index) -> Iterator[str]:
    """Yield the coverage faults of each signature, verified or not. Malformed signature files are skipped here."""
    for file in SIGNATURES:
        try:
            claim = read_claim(source, file)
        except TrustError:
            continue
        if claim is not None:
            yield from uncovered(source, index, claim.statement.digests, file)
