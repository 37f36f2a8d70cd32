"""Files of a bundle, and which of them its signatures cover.

The index has the hashes of code objects and selftest vectors. What was generated from it, headers and CMake files say,
has no hash there: a signature's statement has it. Whatever else is there is nobody's, and a compiler that is told where
the bundle is would take it all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from aot_runtime.bundle.files import Folder, Source, named, unreadable
from aot_runtime.bundle.reading import MAX_INDEX_BYTES
from aot_runtime.bundle.statement import MAX_SIGNATURE_BYTES, read_claim
from aot_runtime.contract.records import CODE_FOLDER, INDEX, SELFTEST_FOLDER, SIGNATURES, TEXT_FILES, Index
from aot_runtime.errors import TrustError

MAX_TEXT_BYTES = 64 << 20
"""Size of a generated file."""
MAX_DETACHED_BYTES = 16 << 20
"""Size of a file beside the index whose name begins with the index's."""
OWN_FOLDERS = frozenset({CODE_FOLDER, SELFTEST_FOLDER, *(file.partition("/")[0] for file in TEXT_FILES)})
"""The folders of a bundle. Others in a bundle's folder are its owner's."""


def generated_files(index: Index) -> Iterator[str]:
    """The files that were generated from the index, see `TEXT_FILES`."""
    return (file.format(name=index.name) for file in TEXT_FILES)


def listed_files(index: Index) -> dict[str, int]:
    """The files that the index lists with hashes → their sizes in bytes."""
    blobs = (*index.blobs.values(), *(case.vectors for case in index.selftest))
    return {blob.file: blob.size for blob in blobs}


def detached_files(source: Source) -> list[str]:
    """The files beside the index whose names begin with its name: signatures, and what others know about the bundle."""
    return [name for name in source.names() if name.startswith(f"{INDEX}.") and "/" not in name]


def most_bytes(index: Index) -> dict[str, int]:
    """The files of a bundle, but for detached ones that are no signatures → the bytes that a file may have."""
    return {
        INDEX: MAX_INDEX_BYTES,
        **dict.fromkeys(SIGNATURES, MAX_SIGNATURE_BYTES),
        **dict.fromkeys(generated_files(index), MAX_TEXT_BYTES),
        **listed_files(index),
    }


def stray_files(source: Source, index: Index, everywhere: bool = True) -> Iterator[str]:
    """The names of files that are none of the bundle's. Of a folder, those outside of the bundle's own folders are
    counted where that is asked for: they may be its owner's, and no signature would cover them."""
    known = {*most_bytes(index), *detached_files(source)}
    for name in source.names():
        is_own = not isinstance(source, Folder) or name.partition("/")[0] in OWN_FOLDERS
        if name not in known and (everywhere or is_own):
            yield name


def uncovered(source: Source, index: Index, digests: Mapping[str, str], signature: str) -> Iterator[str]:
    """Each fault of a bundle whose signature file has a statement about `digests`, file → SHA-256: what the statement
    does not cover, and what was altered since."""
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
    """The faults of a bundle by each signature that it has, whoever made it. A signature file that is malformed covers
    nothing: whoever asks who signed is told of it."""
    for file in SIGNATURES:
        try:
            claim = read_claim(source, file)
        except TrustError:
            continue
        if claim is not None:
            yield from uncovered(source, index, claim.statement.digests, file)
