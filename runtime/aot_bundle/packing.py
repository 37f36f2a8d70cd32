"""Pack bundles into archives, and unpack them. Writing is atomic.

Files are read one at a time, limited by the index, so memory is bounded by the largest file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from aot_runtime.bundle.archive import CHUNK_BYTES, Archive, Content, Files, parts
from aot_runtime.bundle.files import SUFFIX, Folder, open_place, source_of, unreadable
from aot_runtime.bundle.multi_archive import MultiArchive, Part, multi_files, part_name
from aot_runtime.bundle.reading import read_index
from aot_runtime.bundle.source import Source
from aot_runtime.contract.records import INDEX, Index
from aot_runtime.errors import BundleError
from aot_runtime.folders import FOR_ALL, opened_folder

from .coverage import MAX_DETACHED_BYTES, claimed_faults, detached_files, generated_files, listed_files, most_bytes
from .verification import mixture, verify_bundle, verify_together

_Kept = TypeVar("_Kept", bytes, bytes | Content)


def pack_bundle(folder: Path, output: Path, compress: bool = False) -> int:
    """Write a bundle to an archive, replacing an older one. Returns its size.

    Includes detached files, whose names begin with the index's. Other files in the folder are left out.

    Args:
        compress: compress the code objects that get shorter by a page at least. The index does not change.

    Raises:
        BundleError: the bundle has faults, it is already an archive, or a library is missing.
        OSError: the archive cannot be written.
    """
    return write_aside(output, packed_folder(folder, compress)[1])


def packed_folder(folder: Path, compress: bool = False) -> tuple[Index, Iterator[bytes]]:
    """Return (index, bytes of the archive in parts) of a bundle.

    Raises `BundleError` as `pack_bundle` does, also while the parts are consumed.
    """
    index, files = _whole(Folder(folder), "packed")
    return index, parts(files, compress)


def merge_bundles(places: Iterable[Path], output: Path, compress: bool = False) -> dict[str, Path]:
    """Write bundles of one name and version, for different architectures, to one archive, replacing an older one.

    For a single bundle, the archive is the one that `pack_bundle` writes.

    Args:
        compress: as for `pack_bundle`.

    Returns:
        the original path of each bundle, by architecture.

    Raises:
        BundleError: a bundle has faults, two are for the same architecture, names or versions differ, or a library is
            missing.
        OSError: the archive cannot be written.
    """
    taken: dict[str, Path] = {}
    indexes: dict[str, Index] = {}
    bundles: dict[str, Files[bytes]] = {}
    for place in places:
        index, files = _whole(source_of(place), "merged")
        arch = index.target.arch
        if bundles.get(arch, files) != files:
            raise BundleError(f"{taken[arch]} and {place} are both for {arch}, but differ: omit one of them")
        taken.setdefault(arch, place)
        bundles[arch], indexes[arch] = files, index
    if fault := mixture(indexes):
        raise BundleError(f"{output} was not written: {fault}")
    if len(bundles) > 1:
        content = parts(multi_files(bundles, compress, partial(spooled, folder=output.parent)))
    else:
        (files,) = bundles.values()
        content = parts(files, compress)
    write_aside(output, content)
    return taken


def _whole(source: Source, done: str) -> tuple[Index, Files[bytes]]:
    """Return (index, files) of a bundle, or raise `BundleError` if it has faults. `done` names the action in it."""
    index = read_index(source)
    if faults := whole_faults(source):
        raise BundleError(f"{source.path} is not {done}: {'; '.join(faults)}")
    limits = most_bytes(index)
    names = (INDEX, *detached_files(source), *generated_files(index), *listed_files(index))
    return index, Files(names, lambda name: _content(source, name, limits.get(name, MAX_DETACHED_BYTES)))


def whole_faults(source: Source) -> list[str]:
    """Return the faults that forbid passing a bundle on: its own, or files that its signatures do not cover."""
    return verify_bundle(source) or [*claimed_faults(source, read_index(source))]


def put_file(source: Source, name: str, content: bytes) -> None:
    """Write a file of a bundle, replacing an older one atomically. Archives are rewritten.

    Raises `OSError` if it cannot be written, `BundleError` for an archive that was altered or gets too large.
    """
    if isinstance(source, Folder):
        write_aside(source.path / name, [content])
    elif isinstance(source, Part):
        own = _with(source.own.stored(), name, content)
        whole: Files[bytes | Content] = Files(source.whole.stored(), source.whole.content)
        changed = spooled(parts(own), source.whole.path.parent)
        write_aside(source.whole.path, parts(_with(whole, part_name(source.arch), changed)))
    elif isinstance(source, Archive):
        write_aside(source.path, parts(_with(source.stored(), name, content)))


def _with(files: Files[_Kept], name: str, content: _Kept) -> Files[_Kept]:
    return Files((*files, name), lambda asked: content if asked == name else files[asked])


def _content(source: Source, name: str, limit: int) -> bytes:
    try:
        content = source.read(name, limit)
    except OSError as error:
        raise unreadable("", source.path / name, error) from None
    if len(content) > limit:
        raise BundleError(f"{source.path / name} is over {limit} bytes")
    return content


def spooled(chunks: Iterable[bytes], folder: Path | None = None) -> Content:
    """Write bytes to an unnamed temporary file that lives as long as the returned content.

    Args:
        folder: folder of the file. Defaults to the system's folder for temporary files.
    """
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 closed with the returned content
    size = crc = 0
    for chunk in chunks:
        size, crc = size + len(chunk), zlib.crc32(chunk, crc)
        file.write(chunk)
    return Content(size, crc, lambda: _from_start(file))


def _from_start(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    return iter(lambda: file.read(CHUNK_BYTES), b"")


def write_aside(output: Path, content: Iterable[bytes]) -> int:
    """Write or replace a file, or a link, atomically. Returns its size."""
    with opened_folder(output.parent) as folder:
        return folder.write(output.name, content, FOR_ALL)


@contextmanager
def opened_aside(output: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `output` when the context ends without error."""
    with opened_folder(output.parent) as folder, folder.aside(output.name, FOR_ALL) as file:
        yield file


def unpack_bundle(path: Path, folder: Path) -> None:
    """Write the bundle of an archive to a new folder. Bundles for several architectures become subfolders.

    Raises:
        BundleError: the archive is malformed or has faults, or the folder exists.
        OSError: the folder cannot be written.
    """
    found = _opened_whole(path, "unpacked")
    with _new_folder(folder) as aside, opened_folder(aside) as place:
        if isinstance(found, MultiArchive):
            for part in found.parts():
                index, files = _whole(part, "unpacked")
                with place.below(_folder_name(index), make=True) as own:
                    own.create_all(files, FOR_ALL)
        else:
            place.create_all(_whole(found, "unpacked")[1], FOR_ALL)


def split_bundles(path: Path, folder: Path) -> list[Path]:
    """Write each bundle of an archive for several architectures to its own archive in a new folder.

    The archives are those that `pack_bundle` writes. Returns their paths. Raises as `unpack_bundle` does.
    """
    found = _opened_whole(path, "split")
    if not isinstance(found, MultiArchive):
        raise BundleError(f"{path} is not split: it has one bundle")
    written = []
    with _new_folder(folder) as aside:
        for part in found.parts():
            index, files = _whole(part, "split")
            name = f"{_folder_name(index)}{SUFFIX}"
            write_aside(aside / name, parts(files))
            written.append(folder / name)
    return written


def _opened_whole(path: Path, done: str) -> Source | MultiArchive:
    """Open an archive. Checks that several bundles belong together. `done` names the action for errors."""
    found = open_place(path)
    if isinstance(found, Folder):
        read_index(found)
        raise BundleError(f"{path} is not {done}: it is a folder")
    if isinstance(found, MultiArchive) and (faults := verify_together(found)):
        raise BundleError(f"{path} is not {done}: {'; '.join(faults)}")
    return found


def _folder_name(index: Index) -> str:
    return f"{index.name}-{index.target.arch}"


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Create a temporary folder that becomes `folder` when the context ends. Raises `BundleError` if it exists."""
    if os.path.lexists(folder):
        raise BundleError(f"{folder} exists already; an archive is unpacked to a new folder")
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        yield aside
        aside.chmod(0o755)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
