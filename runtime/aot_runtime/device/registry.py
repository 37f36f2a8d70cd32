"""Look up devices by name. Each device has a single object."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from aot_runtime.errors import ArchMismatchError, DeviceError

from .device import Device
from .drivers import EMULATOR, GPUS, device_for_arch, driver_for_arch, open_driver

if TYPE_CHECKING:
    from .drivers.protocol import Driver

_REGISTRY_LOCK = threading.Lock()
WITHOUT_A_GPU = "without a GPU, the device 'emulator' runs bundles for AMD GPUs (pip install 'aotbuild[emulator]')"


@cache
def _driver(name: str) -> Driver:
    return open_driver(name)


def _why_unseen(driver: str) -> str:
    from .drivers.unseen import why_unseen

    return why_unseen(driver)


@cache
def _device(driver: str, index: int) -> Device:
    opened = _driver(driver)
    count = opened.device_count()
    if not 0 <= index < count:
        unseen = "" if count else _why_unseen(driver)
        raise DeviceError(f"device {driver}:{index} does not exist; {driver} has {count} device(s){unseen}")
    return Device(opened, index)


def get_device(device: Device | str | None = None, arch: str | None = None) -> Device:
    """Return a device by name.

    Args:
        device: a name such as `hip:0`, `cuda:1`, `emulator:gfx942` or `emulator:mi300x`. A driver's name alone (`hip`)
            selects its first device. Defaults to the first GPU of any driver.
        arch: only consider devices of this architecture, if `device` leaves the choice open.

    Raises:
        DeviceError: the device does not exist.
        ArchMismatchError: no device has the architecture `arch`.
    """
    return find_device(device, (arch,) if arch else ())


def find_device(device: Device | str | None, archs: Collection[str]) -> Device:
    """Like `get_device`, for several architectures. Empty `archs` allow any."""
    if isinstance(device, Device):
        return device
    if device is None:
        with _REGISTRY_LOCK:
            return _first_gpu(archs)
    name, _, which = device.partition(":")
    if which and not (which.isdecimal() or name == EMULATOR):
        raise DeviceError(f"'{device}' is not a device; write hip, hip:0, cuda, cuda:1 or emulator:gfx942")
    with _REGISTRY_LOCK:
        if which.isdecimal():
            return _device(name, int(which))
        if which:
            from aot_runtime.contract.gpu_names import arch_of  # for the emulator

            return _device(name, device_for_arch(_driver(name), arch_of(which)))
        return _first_of(name, archs)


def list_gpus() -> list[Device]:
    """Return the GPUs of this machine, driver by driver. Raises `DeviceError` if none is found."""
    with _REGISTRY_LOCK:
        return list(_gpus(GPUS))


def _first_gpu(archs: Collection[str]) -> Device:
    """Return the first GPU that fits. Drivers for other architectures are only opened if none is found."""
    likely = {driver_for_arch(arch) for arch in archs}
    found = []
    for device in _gpus(sorted(GPUS, key=lambda name: name not in likely)):
        if not archs or device.arch in archs:
            return device
        found.append(device)
    raise _misfit(archs, found)


def _gpus(drivers: Iterable[str]) -> Iterator[Device]:
    """Yield all devices of some drivers. If there are none, raise `DeviceError` with the reason for each driver."""
    obstacles: dict[str, str] = {}
    some = False
    for name in drivers:
        try:
            devices = _devices(name)
            obstacles[name] = f"the driver is installed and sees no GPU{'' if devices else _why_unseen(name)}"
        except DeviceError as error:
            devices, obstacles[name] = [], str(error)
        some = some or bool(devices)
        yield from devices
    if not some:
        raise DeviceError("no usable GPU", *(f"{name}: {obstacles[name]}" for name in GPUS), WITHOUT_A_GPU)


def _first_of(name: str, archs: Collection[str]) -> Device:
    if not archs:
        return _device(name, 0)
    devices = _devices(name)
    for device in devices:
        if device.arch in archs:
            return device
    if devices:
        raise _misfit(archs, devices)
    return _device(name, 0)  # raises


def _devices(name: str) -> list[Device]:
    return [_device(name, index) for index in range(_driver(name).device_count())]


def _misfit(archs: Collection[str], devices: Iterable[Device]) -> ArchMismatchError:
    there = ", ".join(f"{device} is {device.arch} ({device.properties.name})" for device in devices)
    return ArchMismatchError(f"no device of this machine runs code for {' or '.join(sorted(archs))}: {there}")
