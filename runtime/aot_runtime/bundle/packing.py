"""Puts a bundle from a folder into an archive, and back. What is written is there whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from aot_runtime.contract.records import INDEX
from aot_runtime.errors import BundleError

from .archive import MAX_BYTES, Archive, compressed, parts
from .files import Folder, Source, unreadable
from .reading import read_index
from .verification import generated_files, listed_files, verify_bundle


def pack_bundle(folder: Path, output: Path, compress: bool = False) -> int:
    """Write a bundle's files, and what is beside its index and begins with its name, to an archive; other files in the
    folder stay out. An older archive is replaced. Returns the size of the archive.

    Args:
        compress: compress the code objects that get shorter by a page at least. The index stays as it is.

    Raises:
        BundleError: the bundle has faults, or is an archive already; or a library is missing.
        OSError: the archive cannot be written.
    """
    source = Folder(folder)
    index = read_index(source)
    if faults := verify_bundle(source):
        raise BundleError(f"{folder} is not packed: {'; '.join(faults)}")
    detached = (name for name in source.names() if name.startswith(f"{INDEX}."))
    files = {name: _content(source, name) for name in (INDEX, *detached, *generated_files(index), *listed_files(index))}
    return write_aside(output, parts(compressed(files) if compress else files))


def put_file(source: Source, name: str, content: bytes) -> None:
    """Write a file of a bundle: it replaces an older one at once, and an archive is written anew.

    Raises `OSError` where it cannot be written, `BundleError` for an archive that was altered or gets too large.
    """
    if isinstance(source, Archive):
        write_aside(source.path, parts({**source.stored(), name: content}))
    else:
        write_aside(source.path / name, [content])


def _content(source: Folder, name: str) -> bytes:
    try:
        return source.read(name, MAX_BYTES)
    except OSError as error:
        raise unreadable("", source.path / name, error) from None


def write_aside(output: Path, content: Iterable[bytes]) -> int:
    """Write a file aside, and put it in its place. Returns its size."""
    descriptor, aside = tempfile.mkstemp(dir=output.parent, prefix=f".{output.name}-")
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 it is open already
            size = sum(file.write(part) for part in content)
        Path(aside).chmod(0o644)
        Path(aside).replace(output)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    return size


def unpack_bundle(path: Path, folder: Path) -> None:
    """Write the bundle of an archive to a folder, which is not there yet.

    Raises:
        BundleError: the archive is none, or has faults; or the folder is there.
        OSError: the folder cannot be written.
    """
    if os.path.lexists(folder):
        raise BundleError(f"{folder} is there already; a bundle is unpacked into a new folder")
    archive = Archive(path)
    if faults := verify_bundle(archive):
        raise BundleError(f"{path} is not unpacked: {'; '.join(faults)}")
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        for name, content in _files(archive):
            file = aside / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as opened:
                opened.write(content)
            file.chmod(0o644)
        aside.chmod(0o755)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _files(archive: Archive) -> Iterator[tuple[str, bytes]]:
    for name in archive.names():
        yield name, archive.read(name, MAX_BYTES)
