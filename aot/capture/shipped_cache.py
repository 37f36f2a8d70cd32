"""Shipped caches: a folder or an archive with kernels as Triton's cache has them, and a manifest, `captured.json`.

The manifest lists every other file with its size and SHA-256, so a signature over it covers all. There is no path of a
machine in a shipped cache, and its bytes depend on its contents alone. What is read is untrusted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from aot_bundle.packing import write_aside
from aot_bundle.trust.signing import Signer, signature_file
from aot_bundle.trust.statement import make_statement
from aot_capture.ingredients import MANIFEST
from aot_runtime.bundle.archive import Archive, parts
from aot_runtime.bundle.files import Folder
from aot_runtime.bundle.source import Source
from aot_runtime.contract.records import signature_names
from aot_runtime.errors import AotError, BundleError
from aot_runtime.folders import FOR_ALL, opened_folder
from aot_runtime.trust.checking import check_signature
from aot_runtime.trust.policy import find_policy
from aot_runtime.trust.reader import named_policy

INDUCTOR = "inductor.bin"
"""File with what `torch.compiler.save_cache_artifacts` returned."""
KERNELS = "cache"
"""Folder of the folders that Triton's cache has."""
ARCHIVE_SUFFIX = ".aotc"
FORMAT = 1
MAX_MANIFEST_BYTES = 64 << 20
MAX_FILE_BYTES = 1 << 30
_FILE = re.compile(rf"{KERNELS}/[A-Z2-7]{{52}}/[A-Za-z0-9_][A-Za-z0-9_.-]{{0,250}}|{INDUCTOR}")
"""Names of files. A folder of Triton's cache is a SHA-256 in base 32."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


class ShippedCacheError(AotError):
    """A shipped cache is malformed, or differs from its manifest."""


class ShippedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file's size and SHA-256."""

    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE_BYTES)]
    sha256: str


class ShippedKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A kernel.

    Attributes:
        function: the qualified name of its function.
        folder: its folder in Triton's cache.
        hash: its key in Triton's cache, hashed.
        differs: why the captured program looks for another key; empty if it finds this kernel.
    """

    name: str
    function: str
    folder: str
    hash: str
    differs: tuple[str, ...] = ()


class Ingredients(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All that Triton's keys of these kernels depend on, beside their sources and arguments.

    Attributes:
        files: SHA-256 of Triton's files, in the order in which its key has them.
        backend: the key of Triton's compiler for the target: with the version of ptxas, for NVIDIA.
        root: SHA-256 of the path of Triton's folder, where that is in the keys (HIP before 3.9).
        environment: variables that are set.
        extension_suffix: of C modules, where there are some.
    """

    triton: str
    files: dict[str, str]
    backend: str
    environment: dict[str, str]
    root: str = ""
    extension_suffix: str = ""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The manifest of a shipped cache.

    Attributes:
        name: of the capture file, without its suffix.
        target: Triton's name of the target: backend, architecture, lanes of a warp.
    """

    format: int
    name: str
    arch: str
    target: tuple[str, str | int, int]
    ingredients: Ingredients
    kernels: tuple[ShippedKernel, ...]
    files: dict[str, ShippedFile]
    aotbuild: str


@dataclass(frozen=True)
class ShippedCache:
    """An open shipped cache, whose manifest was checked. Files are checked as they are read."""

    source: Source
    manifest: Manifest
    signer: str
    """The signer by a policy; empty if there was none."""

    def read(self, name: str) -> bytes:
        """Read a file that the manifest lists. Raises `ShippedCacheError` if its contents differ."""
        listed = self.manifest.files[name]
        try:
            content = self.source.read(name, listed.size)
        except OSError as error:
            raise ShippedCacheError(f"{self.source.path / name} cannot be read: {error.strerror}") from None
        except BundleError as error:
            raise ShippedCacheError(str(error)) from None
        if len(content) != listed.size or hashlib.sha256(content).hexdigest() != listed.sha256:
            raise ShippedCacheError(f"{self.source.path / name} is not the file that {MANIFEST} lists; nothing is used")
        return content

    def check(self) -> None:
        """Read all files. Raises `ShippedCacheError`."""
        for name in self.manifest.files:
            self.read(name)


def folder_name(name: str, arch: str) -> str:
    """Return the name of a shipped cache's folder, or of its archive without the suffix."""
    return f"{name}-{arch}-cache"


def open_shipped(path: Path, trust: Path | None = None) -> ShippedCache:
    """Open a shipped cache: a folder or an archive. Its signature is checked first, if there is a policy.

    Args:
        trust: a policy file. Defaults to that of the environment, see `aot_runtime.trust.reader`.

    Raises `ShippedCacheError` if it is malformed, `TrustError` if the policy does not accept it.
    """
    try:
        source: Source = Folder(path) if path.is_dir() else Archive(path)
        data = source.read(MANIFEST, MAX_MANIFEST_BYTES)
    except OSError as error:
        raise ShippedCacheError(f"{path} is not a shipped cache: {MANIFEST}: {error.strerror}") from None
    except BundleError as error:
        raise ShippedCacheError(str(error)) from None
    if len(data) > MAX_MANIFEST_BYTES:
        raise ShippedCacheError(f"{path / MANIFEST} is over {MAX_MANIFEST_BYTES} bytes")
    policy = named_policy(trust)
    signed = None if policy is None else check_signature(source, data, find_policy(policy), MANIFEST)
    manifest = _decoded(data, path / MANIFEST)
    if signed is not None and signed.statement.predicate.name != manifest.name:
        raise ShippedCacheError(f"{path} is called {manifest.name!r}, but its signature is for another name")
    return ShippedCache(source, manifest, str(signed.by) if signed is not None else "")


def _decoded(data: bytes, path: Path) -> Manifest:
    try:
        found = msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ShippedCacheError(f"{path}: {error}") from None
    if found.format != FORMAT:
        raise ShippedCacheError(f"{path} has format {found.format}; this version reads format {FORMAT}")
    if not (_NAME.fullmatch(found.name) and _NAME.fullmatch(found.arch)):
        raise ShippedCacheError(f"{path}: {found.name[:80]!r} or {found.arch[:80]!r} is not a name")
    for name in found.files:
        if not _FILE.fullmatch(name):
            raise ShippedCacheError(f"{path} lists {name[:120]!r}, which no shipped cache has")
    return found


def shipped_files(manifest: Manifest, files: Mapping[str, bytes], signer: Signer | None) -> dict[str, bytes]:
    """Return all files of a shipped cache: those that the manifest lists, itself, and its signature."""
    data = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    found = {MANIFEST: data, **files}
    if signer is not None:
        digests = {MANIFEST: hashlib.sha256(data).hexdigest()}
        statement = make_statement(manifest.name, "", digests, signer.signed_on)
        found[signature_names(MANIFEST)[0]] = signature_file(statement, signer.key)
    return found


def listed_files(files: Mapping[str, bytes]) -> dict[str, ShippedFile]:
    """Return the manifest's entries of files, sorted by name. Raises `ShippedCacheError` for an invalid name."""
    for name in files:
        if not _FILE.fullmatch(name):
            raise ShippedCacheError(f"{name!r} is not a name of a file in a shipped cache")
    return {name: ShippedFile(len(files[name]), hashlib.sha256(files[name]).hexdigest()) for name in sorted(files)}


def unpack_shipped(shipped: ShippedCache, folder: Path) -> None:
    """Write the files of a shipped cache to an empty folder. Raises `ShippedCacheError` and `OSError`."""
    with opened_folder(folder) as top:
        top.create_all({MANIFEST: shipped.source.read(MANIFEST, MAX_MANIFEST_BYTES)}, FOR_ALL)
        for name in shipped.manifest.files:
            top.create_all({name: shipped.read(name)}, FOR_ALL)


def write_shipped(output: Path, name: str, files: Mapping[str, bytes], pack: bool) -> Path:
    """Write a shipped cache as a folder, or as an archive; an older one is replaced. Raises `OSError`."""
    output.mkdir(parents=True, exist_ok=True)
    if pack:
        path = output / f"{name}{ARCHIVE_SUFFIX}"
        write_aside(path, parts(dict(files)))
        return path
    aside = f".{name}.new"
    with opened_folder(output) as top:
        top.remove_tree(aside)  # of a build that was killed
        with top.below(aside, make=True) as folder:
            folder.create_all(files, FOR_ALL)
        top.remove_tree(name)
        (output / aside).rename(output / name)
    return output / name
