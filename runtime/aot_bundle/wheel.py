"""Make wheels of bundles, so that `open_bundle` finds an installed bundle by its name.

A wheel contains archives and metadata, but no code. `aot_runtime.installed` reads its entry points. Wheels are
reproducible with a given version of zlib.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from aot_runtime.bundle.archive import Archive, Content
from aot_runtime.bundle.files import SUFFIX, Folder, open_place
from aot_runtime.bundle.multi_archive import MultiArchive
from aot_runtime.bundle.reading import read_index
from aot_runtime.bundle.source import Source
from aot_runtime.contract.arch import BACKENDS
from aot_runtime.contract.index_file import FIRST_READERS, OLDEST_FORMAT
from aot_runtime.contract.names import is_version
from aot_runtime.contract.records import Index
from aot_runtime.contract.versions import local_part
from aot_runtime.errors import BundleError
from aot_runtime.installed import GROUP

from .packing import opened_aside, packed_folder, spooled, whole_faults
from .verification import verify_together

TAG = "py3-none-any"
_MODE = 0o100644 << 16
_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_LICENSE = re.compile(r"[A-Za-z0-9.+()-]+(?: [A-Za-z0-9.+()-]+)*")


@dataclass(frozen=True)
class WheelOptions:
    """Metadata of a wheel. Values that are None or empty are derived from the bundles.

    Attributes:
        name: name of the distribution.
        version: version of the distribution. If the bundles have one, it may only differ in the local part (`+rocm7`).
        license: an SPDX expression.
    """

    name: str | None = None
    version: str | None = None
    license: str = ""


@dataclass(frozen=True)
class _Packed:
    """An archive in a wheel, with one bundle or with bundles for several architectures.

    Attributes:
        compressed: True if any code object is compressed.
    """

    content: Content
    indexes: tuple[Index, ...]
    compressed: bool = False

    @property
    def stem(self) -> str:
        return "_".join([self.indexes[0].name, *(index.target.arch for index in self.indexes)])


def make_wheel(bundles: Iterable[Path], folder: Path, options: WheelOptions = WheelOptions()) -> Path:
    """Write a wheel of bundles, given as folders or archives, to a folder. Replaces an older wheel.

    Raises:
        BundleError: a bundle has faults, two have the same name and architecture, or the wheel's name is invalid.
        OSError: the wheel cannot be written.
    """
    archives = [_packed(path) for path in bundles]
    indexes = [index for archive in archives for index in archive.indexes]
    pairs = [(index.name, index.target.arch) for index in indexes]
    if twice := next((pair for pair in pairs if pairs.count(pair) > 1), None):
        raise BundleError(f"cannot make a wheel: two of the bundles are '{twice[0]}' for {twice[1]}")
    name, version = _distribution_name(pairs, options.name), _distribution_version(indexes, options.version)
    if options.license and not _LICENSE.fullmatch(options.license):
        raise BundleError(f"{options.license!r} is not a license; pass an SPDX expression such as Apache-2.0")
    package = re.sub("[-_.]+", "_", name).lower()
    info = f"{package}-{version}.dist-info"
    files: dict[str, bytes | Content] = {f"{package}/{archive.stem}{SUFFIX}": archive.content for archive in archives}
    if len(files) < len(archives):
        raise BundleError("cannot make a wheel: two of its files would have the same name; make one wheel of each")
    needed = requirement(indexes, any(archive.compressed for archive in archives))
    files |= {
        f"{info}/METADATA": _metadata(name, version, indexes, needed, options.license).encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: aotbundle\nRoot-Is-Purelib: true\nTag: {TAG}\n".encode(),
        f"{info}/entry_points.txt": "\n".join([f"[{GROUP}]", *_entry_points(package, archives), ""]).encode(),
    }
    path = folder / f"{package}-{version}-{TAG}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with opened_aside(path) as file:
        zip_wheel(file, files, f"{info}/RECORD")
    return path


def _packed(path: Path) -> _Packed:
    """Pack one bundle or several. Raises `BundleError` if one has faults."""
    found = open_place(path)
    if isinstance(found, Folder):
        index, chunks = packed_folder(path)
        return _Packed(spooled(chunks), (index,))
    if not isinstance(found, Archive | MultiArchive):
        raise BundleError(f"{path} is a part of {path.parent}; make an archive of it with `aotbundle split`")
    parts = [*found.parts()] if isinstance(found, MultiArchive) else []
    faults = verify_together(found) if isinstance(found, MultiArchive) else []
    whole = found.archive if isinstance(found, MultiArchive) else found
    bundles: list[Source] = [*parts] or [whole]
    if faults := [*faults, *(fault for bundle in bundles for fault in whole_faults(bundle))]:
        raise BundleError(f"cannot make a wheel of {path}: {'; '.join(faults)}")
    compressed = any(archive.is_compressed for archive in (whole, *(part.own for part in parts)))
    return _Packed(spooled(whole.chunks()), tuple(map(read_index, bundles)), compressed)


def _distribution_name(pairs: Sequence[tuple[str, str]], given: str | None) -> str:
    if given is not None:
        if not _NAME.fullmatch(given):
            raise BundleError(f"{given!r} is not a valid distribution name, such as 'acme-attention-gfx942'")
        return given
    names = sorted({name for name, _ in pairs})
    if len(names) > 1:
        raise BundleError(f"the bundles are {' and '.join(names)}: name the distribution with --name")
    archs = [arch for _, arch in pairs] if len(pairs) == 1 else []
    return re.sub("[-_.]+", "-", "-".join(["aotbundle", *names, *archs])).lower()


def _distribution_version(indexes: Sequence[Index], given: str | None) -> str:
    versions = sorted({index.version for index in indexes})
    if given is None and (versions == [""] or len(versions) > 1):
        said = " and ".join(f"'{index.name}' {index.version or '(none)'}" for index in indexes)
        raise BundleError(
            f"the bundles have different versions or none: {said}; pass the distribution's with --version"
        )
    version = versions[0] if given is None else given
    if not is_version(version):
        raise BundleError(f"{version!r} is not a valid distribution version, such as '1.2' or '1.2+rocm7'")
    own, *others = versions
    longer = f"{own}{'.' if local_part(own) else '+'}"
    if own and not others and version != own and not version.startswith(longer):
        raise BundleError(
            f"the bundle has version {own}, so its wheel cannot have {version!r}; '{longer}1', for example, is allowed"
        )
    return version


def requirement(indexes: Sequence[Index], compressed: bool = False) -> str:
    """Return the wheel's dependency: a runtime that reads the bundles' format, with the extras that all need."""
    oldest = max(OLDEST_FORMAT, *(index.oldest_reader for index in indexes))
    backends = {index.target.backend for index in indexes}
    needed = BACKENDS[backends.pop()].extra if len(backends) == 1 else ""
    extras = ",".join(filter(None, (needed, "zstd" if compressed else "")))
    return f"aot-runtime{f'[{extras}]' if extras else ''}>={FIRST_READERS[oldest]}"


def _metadata(name: str, version: str, indexes: Sequence[Index], needed: str, licence: str) -> str:
    titles = [f"{index.name} {index.version}".strip() for index in indexes]
    archs = ", ".join(dict.fromkeys(index.target.arch for index in indexes))
    fields = {
        "Metadata-Version": "2.4" if licence else "2.1",
        "Name": name,
        "Version": version,
        "Summary": f"Compiled kernels for {archs}: {', '.join(dict.fromkeys(titles))}",
        **({"License-Expression": licence} if licence else {}),
        "Requires-Python": ">=3.11",
        "Requires-Dist": needed,
        "Description-Content-Type": "text/markdown",
    }
    ops = [", ".join(op.name for op in index.ops) for index in indexes]
    rows = [
        f"| {index.name} | {index.version} | {index.target.arch} | {names} | {index.id} |"
        for index, names in zip(indexes, ops, strict=True)
    ]
    return "\n".join(
        [
            *(f"{field}: {value}" for field, value in fields.items()),
            "",
            "Kernels that aotbuild compiled ahead of time: data, without code of the host.",
            "",
            "| Bundle | Version | Architecture | Ops | Id |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "```python",
            "from aot_runtime import open_bundle",
            "",
            f'{indexes[0].name} = open_bundle("{indexes[0].name}")',
            "```",
            "",
        ]
    )


def _entry_points(package: str, archives: Iterable[_Packed]) -> Iterator[str]:
    for archive in archives:
        for index in archive.indexes:
            yield f"{index.name}.{index.target.arch} = {package}.{archive.stem}"


def zip_wheel(file: IO[bytes], files: Mapping[str, bytes | Content], record: str) -> None:
    """Write the files of a wheel, and the list of them. The bytes depend on the files and the version of zlib alone."""
    rows = []
    with zipfile.ZipFile(file, "w") as wheel:
        for name, content in files.items():
            size, chunks = (
                (content.size, content.chunks()) if isinstance(content, Content) else (len(content), [content])
            )
            digest = base64.urlsafe_b64encode(_put(wheel, name, size, chunks)).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{size}")
        listed = "\n".join([*rows, f"{record},,", ""]).encode()
        _put(wheel, record, len(listed), [listed])


def _put(wheel: zipfile.ZipFile, name: str, size: int, chunks: Iterable[bytes]) -> bytes:
    """Add a file to a wheel. Returns its SHA-256."""
    info = zipfile.ZipInfo(name)  # dated 1980, the default
    info.create_system, info.external_attr, info.compress_type, info.file_size = 3, _MODE, zipfile.ZIP_DEFLATED, size
    digest = hashlib.sha256()
    with wheel.open(info, "w") as entry:
        for chunk in chunks:
            digest.update(chunk)
            entry.write(chunk)
    return digest.digest()
