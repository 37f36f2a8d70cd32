"""Select the bundle to open, out of all that a path or name refers to, and the device to open it on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from aot_runtime.bundle.files import SUFFIX, Folder, open_place
from aot_runtime.contract.records import INDEX, Index
from aot_runtime.device.device import Device
from aot_runtime.device.registry import find_device
from aot_runtime.errors import ArchMismatchError, ArgumentError, BundleError, VersionMismatchError

if TYPE_CHECKING:
    from aot_runtime.bundle.multi_archive import MultiArchive
    from aot_runtime.bundle.source import Place, Source

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")

Reader: TypeAlias = "Callable[[Place], Index]"
"""Function that reads a bundle's index, and verifies its signature if a trust policy is set."""


class Candidate(NamedTuple):
    """A bundle that could be opened.

    Attributes:
        label: its name in messages.
        arch: the architecture of its code.
        read: function that opens it and reads its index. Raises `BundleError`.
    """

    label: str
    arch: str
    read: Callable[[], tuple[Source, Index]]

    def __str__(self) -> str:
        return f"{self.label} ({self.arch})" if self.label else self.arch


class Choice(NamedTuple):
    """The bundles at a path or under an installed name.

    Attributes:
        what: start of error messages, subject and verb: `dist has bundles`.
        advice: hint to append if none fits the device; `{arch}` stands for its architecture.
    """

    what: str
    candidates: Sequence[Candidate]
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.what} {', '.join(map(str, self.candidates)) or 'none'}"


def select_bundle(
    path: str | Path,
    device: Device | str | None,
    read: Reader,
    *,
    name: str | None = None,
    version: str | None = None,
    id: str | None = None,
) -> tuple[Source, Index, Device]:
    """Select a bundle by path or by installed name, and a device for it.

    Args:
        name, version, id: further conditions; see `open_bundle`.

    Raises:
        ArchMismatchError: no bundle fits the device, or no device fits a bundle.
        VersionMismatchError: no bundle for the device meets `version`.
        ArgumentError: several different bundles fit, or `version` or `id` is malformed.
        BundleError: no bundle is found, it cannot be read, or its id is not `id`.
    """
    if id is not None and not (isinstance(id, str) and re.fullmatch("[0-9a-f]{64}", id)):
        raise ArgumentError(f"id is {id!r}; allowed are 64 hex digits, as `aotbundle show --json` prints them")
    choice = _choice(path, read)
    chosen = _device(choice, device)
    found = [candidate.read() for candidate in choice.candidates if candidate.arch == chosen.arch]
    found = [item for item in found if item[1].name == name] or found
    if id is not None:
        found = _with_id(found, id)
    found = _with_version(found, version)
    if len({index.id for _, index in found}) > 1:
        several = ", ".join(f"{source.path} (version {index.version or 'none'})" for source, index in found)
        raise ArgumentError(f"{choice}; several are for {chosen.arch}: {several}; open one by its path, version or id")
    return *found[0], chosen


def is_name(path: object) -> bool:
    """Return True if `path` may be a bundle's name: a string such as `rows`, with no bundle at that path.

    A folder of that name only counts as a path if it is a bundle or contains one.
    """
    if not isinstance(path, str) or not _NAME.fullmatch(path) or os.path.isfile(path):  # noqa: PTH113
        return False
    try:
        inside = os.listdir(path)  # noqa: PTH208
    except OSError:
        return True
    return not any(
        item == INDEX or item.endswith(SUFFIX) or os.path.lexists(f"{path}/{item}/{INDEX}") for item in inside
    )


def _choice(path: str | Path, read: Reader) -> Choice:
    folder = Path(path)
    if is_name(path):
        from aot_runtime.installed import candidates_named, missing, wheel_name

        if installed := candidates_named(str(path), read):
            advice = f"; a wheel for it is called {wheel_name(str(path), '{arch}')}"
            return Choice(f"bundle '{path}' is installed as", [Candidate(*item) for item in installed], advice)
        if not folder.exists():
            raise missing(str(path))
    if folder.is_dir() and not os.path.lexists(folder / INDEX):
        from aot_runtime.bundle.search import distinct_bundles

        bundles = distinct_bundles(folder, read)
        return Choice(f"{folder} has bundles", [_read_already(*item) for item in bundles])
    place = open_place(folder)
    if not isinstance(place, Folder):
        from aot_runtime.bundle.multi_archive import MultiArchive

        if isinstance(place, MultiArchive):
            candidates = [Candidate("", arch, partial(_read_part, place, arch, read)) for arch in place.archs]
            return Choice(f"{folder} has bundles for", candidates)
    return Choice(f"bundle {place.path} is for", [_read_already("", place, read(place))])


def _read_already(label: str, source: Source, index: Index) -> Candidate:
    return Candidate(label, index.target.arch, lambda: (source, index))


def _device(choice: Choice, device: Device | str | None) -> Device:
    archs = dict.fromkeys(candidate.arch for candidate in choice.candidates)
    advice = choice.advice.format(arch="<architecture>")
    try:
        chosen = find_device(device, archs)
    except ArchMismatchError as error:
        raise ArchMismatchError(f"{choice}, and {error}{advice}") from None
    if chosen.arch not in archs:
        advice = choice.advice.format(arch=chosen.arch)
        raise ArchMismatchError(f"{choice}, but {chosen} ({chosen.properties.name}) is {chosen.arch}{advice}")
    return chosen


def _read_part(merged: MultiArchive, arch: str, read: Reader) -> tuple[Source, Index]:
    source = merged.part(arch)
    return source, read(source)


def _with_id(found: Sequence[tuple[Source, Index]], id: str) -> list[tuple[Source, Index]]:
    left = [item for item in found if item[1].id == id]
    if not left:
        others = ", ".join(f"{source.path} has id {index.id}" for source, index in found)
        raise BundleError(f"no bundle has id {id}: {others}")
    return left


def _with_version(found: Sequence[tuple[Source, Index]], version: str | None) -> list[tuple[Source, Index]]:
    if version is None:
        return [*found]
    from aot_runtime.contract.versions import meets, parse_clauses

    try:
        clauses = parse_clauses(version)
    except (ValueError, AttributeError) as error:
        raise ArgumentError(f"version is {version!r}: {error}") from None
    left = [item for item in found if meets(item[1].version, clauses)]
    if not left:
        versions = ", ".join(f"{index.version or 'none'} ({source.path})" for source, index in found)
        wanted = ",".join(map(str, clauses))
        raise VersionMismatchError(f"bundle '{found[0][1].name}' has version {versions}; requested is {wanted}")
    return left
