"""`open_bundle`, for which nothing is imported before it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from pathlib import Path

    from aot_runtime.device.device import Device
    from aot_runtime.opened import Bundle, OpenBundle
    from aot_runtime.trust.lock import Lock
    from aot_runtime.trust.policy import TrustPolicy

_B = TypeVar("_B", bound="OpenBundle")


@overload
def open_bundle(
    path: str | Path,
    device: Device | str | None = None,
    *,
    check_contents: bool | None = None,
    trust: TrustPolicy | str | Path | None = None,
    version: str | None = None,
    lock: Lock | str | Path | None = None,
) -> Bundle: ...
@overload
def open_bundle(
    path: str | Path,
    device: Device | str | None = None,
    *,
    type: type[_B],
    check_contents: bool | None = None,
    trust: TrustPolicy | str | Path | None = None,
    version: str | None = None,
    lock: Lock | str | Path | None = None,
) -> _B: ...
def open_bundle(
    path: str | Path,
    device: Device | str | None = None,
    *,
    type: Any = None,
    check_contents: bool | None = None,
    trust: TrustPolicy | str | Path | None = None,
    version: str | None = None,
    lock: Lock | str | Path | None = None,
) -> Any:
    """Open a bundle on a device.

    Args:
        path: a bundle's folder, or the archive that `aotbundle pack` made of it. Of a folder of bundles, and of the
            archive for several architectures that `aotbundle merge` made, the one for the device's arch is opened.
            Or the name of a bundle that is installed (see `aotbundle wheel`), where no bundle has that path: a `Path`,
            and `./rows`, are no names.
        device: a `Device`, or its name (`hip:0`, `cuda:1`); by default the first GPU that the bundle fits, and for the
            name of a driver alone (`hip`) its first device that it fits.
        type: the bundle's class, of a module that `aotbundle stubs` wrote. What is opened is an instance, so that
            editors and type checkers know its ops. Of a folder of bundles, the one with its name is opened.
        check_contents: bring integer tensors that are on the device back before each call, and check what they contain
            (offsets, block tables, lengths), as is always done with numpy arrays. By default what the environment
            variable AOTBUILD_CHECK_CONTENTS says, which is not to.
        trust: whose signature the bundle must have: a policy, or the path of a policy file. By default the file that
            the environment variable AOTBUNDLE_TRUST names; where it names none, signatures are not looked at.
        version: conditions on the bundle's version, as those of Python packages: `>=1.2,<2`. Of several that are
            installed, one that meets them.
        lock: which bundles may be opened: a lock, or the path of a file that `aotbundle lock` wrote. By default the
            file that the environment variable AOTBUNDLE_LOCK names, or else any.

    Raises:
        BundleError: there is no bundle, or it is damaged.
        TrustError: the bundle is not signed as `trust` says; nothing of its index was decoded.
        VersionMismatchError: the bundle is of another version than `version` says, or has none.
        LockError: the bundle is not the one that `lock` has.
        ArchMismatchError: the bundle is for another architecture than the device's.
        ArgumentError: it is another bundle than the type's, or lacks one of its ops; or several fit.
        DeviceError: there is no such device.
    """
    from aot_runtime.opened import open_folder

    return open_folder(path, device, type, check_contents, trust, version, lock)
