"""Opening bundles by name: of those that are installed, the one for the device, of the version that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aot_runtime.bundle.files import Place, Source, open_place
from aot_runtime.bundle.multi_archive import MultiArchive
from aot_runtime.contract.records import Index
from aot_runtime.contract.versions import Clause, meets, parse_clauses
from aot_runtime.device.device import Device
from aot_runtime.device.registry import find_device
from aot_runtime.errors import ArchMismatchError, ArgumentError, BundleError, LockError, VersionMismatchError
from aot_runtime.installed import Installed, installed_bundles

if TYPE_CHECKING:
    from aot_runtime.trust.lock import Lock


def choose_device(device: Device | str | None, archs: Collection[str], what: str) -> Device:
    """The device to open on. `what` is opened, for the error where no device fits."""
    try:
        return find_device(device, archs)
    except ArchMismatchError as error:
        raise ArchMismatchError(f"{what}, and {error}") from None


def version_clauses(version: str | None) -> tuple[Clause, ...]:
    """The conditions of the argument `version`. Raises `ArgumentError`."""
    try:
        return () if version is None else parse_clauses(version)
    except (ValueError, AttributeError) as error:
        raise ArgumentError(f"version is {version!r}: {error}") from None


def hold_to_version(index: Index, clauses: Sequence[Clause], place: object) -> None:
    """Raise `VersionMismatchError` where a bundle is of another version than was asked for."""
    if not meets(index.version, tuple(clauses)):
        has = f"has version {index.version}" if index.version else "has no version"
        raise VersionMismatchError(f"bundle '{index.name}' ({place}) {has}; asked for is {_text(clauses)}")


def not_there(name: str) -> BundleError:
    """The error of a name that is neither that of an installed bundle nor a path."""
    there = ", ".join(map(str, installed_bundles())) or "none"
    return BundleError(
        f"there is no bundle '{name}': no folder or file here is called so, and none is installed; installed: {there}. "
        f"Its wheels are called {_wheel(name)}, if its makers did not rename them"
    )


def _wheel(name: str, arch: str = "<architecture>") -> str:
    """What pip installs the wheel of a bundle by, where it was not given another name."""
    return f"aotbundle-{name}-{arch}".replace("_", "-")


def choose_installed(
    found: Sequence[Installed],
    device: Device | str | None,
    clauses: Sequence[Clause],
    lock: Lock | None,
    read: Callable[[Place], Index],
) -> tuple[Source, Index, Device]:
    """Of installed bundles of one name, the one for the device, and that the lock has; by default for the first device
    that some of them fit. `read` reads an index.

    Raises `ArchMismatchError`, `VersionMismatchError`, `LockError`; `ArgumentError` where several are left.
    """
    name = found[0].name
    there = f"bundle '{name}' is installed for {', '.join(f'{item.arch} ({item.distribution})' for item in found)}"
    archs = dict.fromkeys(item.arch for item in found)
    chosen = choose_device(device, archs, f"{there} (a wheel for another is called {_wheel(name)})")
    fitting = [item for item in found if item.arch == chosen.arch]
    if not fitting:
        device_is = f"{chosen} ({chosen.properties.name}) is {chosen.arch}"
        raise ArchMismatchError(f"{there}, and {device_is}: install a wheel for that, {_wheel(name, chosen.arch)} say")
    opened = [(item, *_read(item, read)) for item in fitting]
    left = [(item, source, index) for item, source, index in opened if meets(index.version, tuple(clauses))]
    if not left:
        versions = ", ".join(f"{index.version or 'none'} ({item.distribution})" for item, _, index in opened)
        raise VersionMismatchError(
            f"bundle '{name}' is installed for {chosen.arch} in version {versions}; asked for is {_text(clauses)}"
        )
    if lock is not None and len(left) > 1:
        left = [candidate for candidate in left if _is_locked(lock, candidate[2])] or left[:1]
    if len({index.id for _, _, index in left}) > 1:
        which = ", ".join(f"version {index.version or 'none'} by {item.distribution}" for item, _, index in left)
        raise ArgumentError(
            f"bundle '{name}' for {chosen.arch} is installed several times: {which}; uninstall all but one, or say "
            f"which by its version (version='=={left[-1][2].version or '1.0'}')"
        )
    return left[0][1], left[0][2], chosen


def _read(item: Installed, read: Callable[[Place], Index]) -> tuple[Source, Index]:
    try:
        found = open_place(Path(item.path))
        source = found.part(item.arch) if isinstance(found, MultiArchive) else found
        index = read(source)
        if (index.name, index.target.arch) != (item.name, item.arch):
            raise BundleError(f"{item.path} is bundle '{index.name}' for {index.target.arch}")
    except BundleError as error:
        error.args = (f"bundle {item}: {error}",)
        raise
    return source, index


def _is_locked(lock: Lock, index: Index) -> bool:
    try:
        lock.hold(index, "")
    except LockError:
        return False
    return True


def _text(clauses: Sequence[Clause]) -> str:
    return ",".join(f"{clause.operator}{clause.version}{'.*' if clause.prefix else ''}" for clause in clauses)
