"""A bundle for several architectures in one file: an archive of archives such as `gfx942.aotb`.

The inner archives are those that `aotbundle pack` writes, except that self-test vectors of several bundles are stored
once, in the outer archive. Opening one bundle reads nothing of the others, and each is signed and verified by itself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aot_runtime.contract.records import INDEX, SELFTEST_FOLDER
from aot_runtime.errors import ArchMismatchError, BundleError

from .archive import Archive, Content, Files, parts
from .files import SUFFIX, is_archive, unreadable
from .source import Source

_PART = re.compile(rf"(\w+)\{SUFFIX}")
_SHARED = f"{SELFTEST_FOLDER}/"
MAX_BUNDLES = 64
"""Maximum number of bundles in an archive."""


def part_name(arch: str) -> str:
    """Return the name of the archive for an architecture."""
    return f"{arch}{SUFFIX}"


def is_multi(archive: Archive) -> bool:
    """Return True if an archive contains bundles rather than being one."""
    return INDEX not in archive and any(map(_PART.fullmatch, archive.names()))


def open_archive(path: Path) -> Archive | MultiArchive | Part:
    """Open an archive, or the bundle for an architecture in one: `rows.aotb/gfx942`. Raises `BundleError`."""
    whole = is_archive(path)
    file = path if whole else path.parent
    try:
        archive = Archive(file)
    except OSError as error:
        raise unreadable("", path, error) from None
    if not is_multi(archive):
        if not whole:
            raise BundleError(f"{file} has one bundle; open it as {file}, not as {path}")
        return archive
    return MultiArchive(archive) if whole else MultiArchive(archive).part(path.name)


def one_bundle(found: Source | MultiArchive, place: Path, arch: str | None) -> Source:
    """Return the bundle for an architecture. Raises `BundleError` if `arch` is None and there are several."""
    if not isinstance(found, MultiArchive):
        return found
    if arch is None:
        example = f"{place / found.archs[0]}"
        raise BundleError(f"{place} has bundles for {', '.join(found.archs)}: name one of them, such as {example}")
    return found.part(arch)


class MultiArchive:
    """A bundle for several architectures. Raises `BundleError` if the archive contains anything else."""

    def __init__(self, archive: Archive):
        self.archive, self.path = archive, archive.path
        found = {name: _PART.fullmatch(name) for name in archive.names()}
        strange = [name for name, part in found.items() if not part and not name.startswith(_SHARED)]
        if strange:
            raise BundleError(f"{self.path} has bundles for several architectures, and {strange[0]!r}, which is none")
        self.archs = tuple(part[1] for part in found.values() if part)
        if len(self.archs) > MAX_BUNDLES:
            raise BundleError(f"{self.path} has {len(self.archs)} bundles; at most {MAX_BUNDLES} are allowed")

    def part(self, arch: str) -> Part:
        """Return the bundle for an architecture. Raises `ArchMismatchError` if there is none, and `BundleError`."""
        if arch not in self.archs:
            raise ArchMismatchError(f"{self.path} has no bundle for {arch!r}; available: {', '.join(self.archs)}")
        try:
            return Part(self.archive, self.archive.opened(part_name(arch), self.path / arch), arch)
        except OSError as error:
            raise BundleError(f"{self.path / arch} cannot be read: {error.strerror}") from None

    def parts(self) -> Iterator[Part]:
        """Return all bundles. Raises `BundleError`."""
        return map(self.part, self.archs)

    def shared(self) -> list[str]:
        """Return the files shared by several bundles."""
        return self.archive.names(SELFTEST_FOLDER)


@dataclass(frozen=True)
class Part:
    """A bundle for one of several architectures, a `Source`. `own` is the archive without shared files."""

    whole: Archive
    own: Archive
    arch: str

    @property
    def path(self) -> Path:
        """The file's path followed by the architecture: `rows.aotb/gfx942`."""
        return self.own.path

    def read(self, name: str, limit: int) -> bytes:
        """See `Source`."""
        shared = name not in self.own and name.startswith(_SHARED)
        return (self.whole if shared else self.own).read(name, limit)

    def names(self, folder: str = "") -> list[str]:
        """See `Source`. Shared files are not listed."""
        return self.own.names(folder)

    def writable_by_all(self, names: Iterable[str]) -> Iterator[str]:
        """See `Source`."""
        return self.whole.writable_by_all(names)


def multi_files(
    bundles: Mapping[str, Mapping[str, bytes]],
    compress_code: bool = False,
    keep: Callable[[Iterable[bytes]], bytes | Content] = b"".join,
) -> Files[bytes | Content]:
    """Return the entries of an archive of bundles.

    Args:
        bundles: the files of each bundle, by architecture.
        compress_code: see `parts`.
        keep: function from the bytes of an architecture's archive to the entry's content.
    """
    shared = _shared(bundles)
    kept: dict[str, bytes | Content] = {}
    for arch, own in bundles.items():
        alone = Files((name for name in own if arch not in shared.get(name, ())), own.__getitem__)
        kept[part_name(arch)] = keep(parts(alone, compress_code))
    return Files((*kept, *shared), lambda name: kept[name] if name in kept else bundles[shared[name][0]][name])


def _shared(bundles: Mapping[str, Mapping[str, bytes]]) -> dict[str, list[str]]:
    """Return the architectures by self-test file, for files that several bundles have with the same content."""
    digests: dict[str, set[bytes]] = {}
    archs: dict[str, list[str]] = {}
    for arch, own in bundles.items():
        for name in own:
            if name.startswith(_SHARED):
                digests.setdefault(name, set()).add(hashlib.sha256(own[name]).digest())
                archs.setdefault(name, []).append(arch)
    return {name: users for name, users in archs.items() if len(users) > 1 and len(digests[name]) == 1}
