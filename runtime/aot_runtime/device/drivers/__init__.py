"""GPU drivers: implementations of the `Driver` protocol, in a module for each API.

The module of a driver and its binding are imported when the driver is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from aot_runtime.contract.arch import ARCHITECTURES, BACKENDS, CUDA, HIP
from aot_runtime.errors import DeviceError

if TYPE_CHECKING:
    from .protocol import Driver

EMULATOR = "emulator"
"""The driver whose devices are emulated: one for each emulated architecture, named like it."""
Outcome: TypeAlias = "list[Any] | None"
"""A list to which a call appends its result, or None; see `Driver`."""
DRIVERS: Mapping[str, tuple[str, str]] = {
    HIP.name: ("aot_runtime.device.drivers.hip", "HipDriver"),
    CUDA.name: ("aot_runtime.device.drivers.cuda", "CudaDriver"),
    EMULATOR: ("aot_emulator", "EmulatorDriver"),
}
"""Name of a driver → (module to import when it is opened, name of its class)."""
GPUS = tuple(BACKENDS)
"""The drivers of real GPUs, in the order of preference."""


def open_driver(name: str) -> Driver:
    """Return the driver `name`. Raises `DeviceError` if it is unknown, or its library is missing."""
    if name not in DRIVERS:
        raise DeviceError(f"there is no driver named {name!r}; there are: {', '.join(DRIVERS)}")
    module, kind = DRIVERS[name]
    driver: Driver = getattr(import_module(module), kind)()
    return driver


def device_for_arch(driver: Driver, arch: str) -> int:
    """Return the index of a driver's first device of an arch. Raises `DeviceError`, with the archs of its devices."""
    archs = [driver.properties(device).arch for device in range(driver.device_count())]
    if arch not in archs:
        raise DeviceError(f"{driver.name} has no {arch} device; it has: {', '.join(archs) or 'none'}")
    return archs.index(arch)


def driver_for_arch(arch: str) -> str:
    """Return the name of the driver whose devices run code for `arch`: `hip` for `gfx942`, `cuda` for `sm_90`."""
    if arch not in ARCHITECTURES:
        raise DeviceError(f"no driver runs code for {arch!r}; architectures are: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[arch].backend


def handle_of(outcome: list[Any]) -> int:
    """Return the handle or address in an outcome, which may be a `c_void_p`; 0 if the call failed or was not made."""
    made = outcome[0] if outcome else 0
    return made if isinstance(made, int) else made.value or 0


class DeviceProperties(msgspec.Struct, frozen=True):
    """Properties of a device, for dispatch and diagnostics."""

    name: str
    arch: str
    """Bare name of the architecture as in `--arch`: `gfx942`, `sm_90`."""
    num_cus: int
    """Compute units (AMD) or streaming multiprocessors (NVIDIA) of this device or partition."""
    warp_size: int
    lds_bytes: int
    """Maximum LDS (shared memory) of a workgroup, with opt-in."""
    memory_bytes: int
    driver_version: str
    num_xcds: int | None = None
    """XCDs of this device or partition, to which workgroups are dealt in turn; None: as many as a whole GPU has."""
    library: str = ""
    """Path of the API's library and the rule that chose it; empty if there is no choice."""
    clock: float = 0
    """Highest clock of the compute units, Hz; 0 if unknown."""
    memory_clock: float = 0
    pci: str = ""
    """PCI address as in Linux, `0000:c1:00.0`; empty if unknown. Partitions of a GPU share it."""
