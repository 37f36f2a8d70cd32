"""`get_device`: devices by name, one object for each."""

from __future__ import annotations

import threading
from functools import cache

from aot_runtime.errors import DeviceError

from .device import Device
from .drivers import device_for_arch, driver_for_arch, first_driver, open_driver
from .drivers.base import Driver

_REGISTRY_LOCK = threading.Lock()
_BY_ARCH = "emulator"
"""The driver whose devices are named by arch: it has one of each that it knows."""


@cache
def _driver(name: str) -> Driver:
    return open_driver(name)


@cache
def _device(driver: str, index: int) -> Device:
    opened = _driver(driver)
    count = opened.device_count()
    if not 0 <= index < count:
        raise DeviceError(f"there is no device {driver}:{index}; {driver} shows {count} device(s)")
    return Device(opened, index)


def get_device(device: Device | str | None = None, arch: str | None = None) -> Device:
    """A device by name: `hip:0`, `cuda:1`, `hip`, `emulator:gfx942`. None is the first GPU: of the driver that `arch`
    needs, if given. `emulator` by itself is an emulated device of `arch`.

    One driver object serves a process, as the GPU APIs themselves are process-wide. Raises `DeviceError`.
    """
    if isinstance(device, Device):
        return device
    if device is None:
        name, which = driver_for_arch(arch) if arch else first_driver(), ""
    else:
        name, _, which = device.partition(":")
        if which and not (which.isdecimal() or name == _BY_ARCH):
            raise DeviceError(f"'{device}' is not a device; write hip, hip:0, cuda, cuda:1 or emulator:gfx942")
    with _REGISTRY_LOCK:
        if which.isdecimal():
            return _device(name, int(which))
        wanted = which or arch
        return _device(name, device_for_arch(_driver(name), wanted) if name == _BY_ARCH and wanted else 0)
