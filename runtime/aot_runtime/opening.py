"""`open_bundle`: the driver starts up in a thread of its own while the index is read.

Starting a driver takes tenths of a second, spent in its library without the interpreter lock. Importing the rest of
this package, decoding the index and writing the first op's planner take about one tenth: they happen meanwhile. So
this module imports as little as it can.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, overload

from aot_runtime.installed import installed_bundles, is_name

if TYPE_CHECKING:
    from pathlib import Path

    from aot_runtime.device.device import Device
    from aot_runtime.opened import Bundle, OpenBundle
    from aot_runtime.trust.lock import Lock
    from aot_runtime.trust.policy import TrustPolicy

_B = TypeVar("_B", bound="OpenBundle")

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_PAGE = 4096
"""Where the index begins in an archive."""
_PART = re.compile(rb"PK\x01\x02.{42}(\w+)\.aotb", re.DOTALL)
"""How the directory of an archive names a bundle for one of several architectures."""
_COMPUTE_CAPABILITY = (75, 76)
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""


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
    installed = installed_bundles(str(path)) if is_name(path) else []
    places = [item.path for item in installed] or [os.fspath(path)]
    needed = [name for place in dict.fromkeys(places) for name in _look_at(place)] if device is None else [device]
    for name in needed:
        if isinstance(name, str):
            with suppress(RuntimeError):  # no thread can be had: it saves time, and nothing else
                threading.Thread(target=_start, args=(name,), name="aot_runtime: driver start").start()
    from aot_runtime.opened import open_folder

    return open_folder(path, device, type, check_contents, trust, version, lock, installed)


def _look_at(path: str) -> list[str]:
    """What a bundle is for, by a look at the start of its index: `hip gfx942`, say; of bundles for several
    architectures, by a look at the archive's directory: `hip`. Empty where that does not tell."""
    try:
        archive = os.path.isfile(path)  # noqa: PTH113
        descriptor = os.open(path, os.O_RDONLY) if archive else os.open(f"{path}/bundle.json", os.O_RDONLY | _NO_LINK)
        try:
            head = os.read(descriptor, 2 * _PAGE) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
            listed = _directory(descriptor) if archive and not head.startswith(b"bundle.json", 30) else b""
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return []
    if archs := _PART.findall(listed):
        return sorted({"cuda" if arch.startswith(b"sm_") else "hip" for arch in archs})
    found = re.search(rb'"arch": *"(\w+)",\s*"backend": *"(\w+)"', head)
    return [f"{found[2].decode()} {found[1].decode()}"] if found else []


def _directory(descriptor: int) -> bytes:
    """What an archive's directory has, as far as a look is worth while."""
    os.lseek(descriptor, -22, os.SEEK_END)
    os.lseek(descriptor, int.from_bytes(os.read(descriptor, 22)[16:20], "little"), os.SEEK_SET)
    return os.read(descriptor, 16 * _PAGE)


def _start(needed: str) -> None:
    """Do the slow part of opening a driver, for a device by name or the first of an arch. A failure is not reported:
    whoever opens the driver meets it again.
    """
    driver, arch = [*needed.split(), ""][:2]
    name, _, index = driver.partition(":")
    with suppress(Exception):
        if name == "cuda":
            _start_cuda(int(index) if index else None, arch)
        elif name == "hip":
            _start_hip(driver, arch)


def _start_cuda(index: int | None, arch: str) -> None:
    """Create the device's primary context, without cuda-bindings: its import would contend for the interpreter lock."""
    cuda = ctypes.CDLL("libcuda.so.1")
    count, context = ctypes.c_int(), ctypes.c_void_p()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return
    for ordinal in range(count.value) if index is None else (index,):
        device, version = ctypes.c_int(), (ctypes.c_int(), ctypes.c_int())
        if cuda.cuDeviceGet(ctypes.byref(device), ordinal):
            return
        for part, attribute in zip(version, _COMPUTE_CAPABILITY, strict=True):
            cuda.cuDeviceGetAttribute(ctypes.byref(part), attribute, device)
        if arch in ("", f"sm_{version[0].value}{version[1].value}"):
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            return


def _start_hip(name: str, arch: str) -> None:
    """Open the driver itself, which decides what libamdhip64 the process uses: there must not be two."""
    from aot_runtime.device.registry import get_device

    device = get_device(name, arch or None)
    device.driver.activate(device.index)
