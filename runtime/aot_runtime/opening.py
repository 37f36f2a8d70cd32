"""`open_bundle`: the driver starts up in a thread of its own while the index is read.

Starting a driver takes tenths of a second, spent in its library without the interpreter lock. Importing the rest of
this package, decoding the index and writing the first op's planner take about one tenth: they happen meanwhile. So
this module imports as little as it can.
"""

from __future__ import annotations

import ctypes
import os
import stat
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from aot_runtime.device.device import Device
    from aot_runtime.opened import Bundle


def open_bundle(path: str | Path, device: Device | str | None = None, *, check_contents: bool | None = None) -> Bundle:
    """Open a bundle on a device.

    Args:
        path: a bundle's folder; or a folder of bundles, of which the one for the device's arch is opened.
        device: a `Device`, or its name (`hip:0`, `cuda:1`); by default the first GPU of the bundle's kind.
        check_contents: bring integer tensors that are on the device back before each call, and check what they contain
            (offsets, block tables, lengths), as is always done with numpy arrays. By default what the environment
            variable AOTBUILD_CHECK_CONTENTS says, which is not to.

    Raises:
        BundleError: there is no bundle, or it is damaged.
        ArchMismatchError: the bundle is for another architecture than the device's.
        DeviceError: there is no such device.
    """
    name = _driver_of(os.fspath(path)) if device is None else device
    if isinstance(name, str):
        with suppress(RuntimeError):  # no thread can be had: it saves time, and nothing else
            threading.Thread(target=_start, args=name.partition(":")[::2], name="aot_runtime: driver start").start()
    from aot_runtime.opened import open_folder

    return open_folder(path, device, check_contents)


def _driver_of(path: str) -> str | None:
    """The driver that a bundle needs, by a look at the start of its index; None where that does not tell."""
    try:
        descriptor = os.open(os.path.join(path, "bundle.json"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # noqa: PTH118 (pathlib is slow to import)
        try:
            head = os.read(descriptor, 2048) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
    return next((name for name in ("hip", "cuda") if b'"%s"' % name.encode() in head), None)


def _start(driver: str, index: str) -> None:
    """Do the slow part of opening a driver. A failure is not reported: whoever opens the driver meets it again."""
    with suppress(Exception):
        if driver == "cuda":
            _start_cuda(int(index or 0))
        elif driver == "hip":
            _start_hip(int(index or 0))


def _start_cuda(index: int) -> None:
    """Create the device's primary context, without cuda-bindings: its import would contend for the interpreter lock."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), index) == 0:
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _start_hip(index: int) -> None:
    """Open the driver itself: hip-python decides which libamdhip64 a process uses, and there must not be two."""
    from aot_runtime.device.registry import get_device

    get_device(f"hip:{index}").driver.activate(index)
