"""Diagnose whether this machine can run bundles: Python, packages, drivers, devices, extras and slow settings."""

from __future__ import annotations

import os
import platform
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from aot_bundle.gpu_settings import GpuSettings, gpu_settings, partition_mode, read
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract.arch import HIP
from aot_runtime.device.drivers import EMULATOR, GPUS, DeviceProperties, open_driver
from aot_runtime.device.drivers.library import NAME, VARIABLE, loaded_libraries
from aot_runtime.device.drivers.unseen import why_unseen
from aot_runtime.device.registry import WITHOUT_A_GPU
from aot_runtime.errors import AotError, DeviceError
from aot_runtime.formats import size_text
from aot_runtime.texts import ID_LENGTH

from .extras import extra_lines
from .listing import find_bundles

PACKAGES = ("aotbuild", "numpy", "ml_dtypes", "msgspec", "click", "rich", "hip-python", "cuda-bindings")
_VARIABLES = (VARIABLE, "ROCM_PATH", "HIP_PATH", "CUDA_HOME", "LD_LIBRARY_PATH", "HIP_VISIBLE_DEVICES",
              "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "HSA_XNACK",
              "HIP_FORCE_DEV_KERNARG", "AOTBUNDLE_TRUST")  # fmt: skip
_EXTRAS = {
    EMULATOR: ("aotbuild", "emulator"), "builder": ("aotbuild", "build"), "reports": ("aotbuild", "report"),
    "signatures": ("aot-runtime", "trust"), "sigstore": ("aot-runtime", "sigstore"),
    "recording": ("aot-runtime", "record"),
}  # fmt: skip
"""(distribution, extra) that installs the requirements of each feature."""
_NODES = ("/dev/kfd", "/dev/dri", "/dev/nvidiactl")
_NUMA_BALANCING = Path("/proc/sys/kernel/numa_balancing")
_ROCM_VERSION = ".info/version"
_WIDTH = 80


@dataclass(frozen=True)
class Diagnosis:
    """Findings about this machine, as lines by subject.

    Attributes:
        devices: the GPUs, by name.
        healthy: True if there is a GPU, and the given bundle, if any, fits one.
    """

    subjects: dict[str, list[str]]
    devices: dict[str, DeviceProperties]
    warnings: list[str]
    healthy: bool

    @property
    def lines(self) -> list[str]:
        """The findings as text."""
        lines = [line for title, found in self.subjects.items() for line in _section(title, found)]
        return [*lines, *(line for item in self.warnings for line in _wrapped(f"warning: {item}"))]

    @property
    def data(self) -> dict[str, Any]:
        """The findings as JSON-ready data."""
        devices = {name: msgspec.to_builtins(device) for name, device in self.devices.items()}
        return {"healthy": self.healthy, "devices": devices, "warnings": self.warnings, **self.subjects}


@dataclass(frozen=True)
class FoundDriver:
    """A driver's devices, or the reason why it has none."""

    name: str
    devices: tuple[DeviceProperties, ...] = ()
    reason: str = ""


def diagnose(bundle: Path | None = None) -> Diagnosis:
    """Check this machine. Never raises: failures are findings.

    Args:
        bundle: a bundle, or a folder of bundles, that should run here.
    """
    drivers = [probe(name) for name in GPUS]
    devices = [(device.arch, f"{driver.name}:{i}") for driver in drivers for i, device in enumerate(driver.devices)]
    archs = dict(reversed(devices))  # the first device of each
    fit, bundles = _bundles(bundle, archs) if bundle else (True, [])
    subjects = {
        "python": [f"{platform.python_version()} at {sys.executable}, {platform.platform()}"],
        "packages": [*_packages()],
        "drivers": [line for driver in drivers for line in _driver(driver)],
        "extras": [line for part, needed in _EXTRAS.items() for line in extra_lines(part, *needed)],
        "system": [*_system()],
        "bundle": bundles,
    }
    named = {f"{driver.name}:{i}": device for driver in drivers for i, device in enumerate(driver.devices)}
    advice = [*_advice(drivers), *([] if archs else [f"no usable GPU; {WITHOUT_A_GPU}"])]
    return Diagnosis(subjects, named, advice, bool(archs) and fit)


def probe(name: str) -> FoundDriver:
    """Find a driver's devices. Never raises."""
    try:
        driver = open_driver(name)
        devices = tuple(driver.properties(index) for index in range(driver.device_count()))
    except DeviceError as error:
        return FoundDriver(name, reason=str(error))
    except Exception as error:  # a broken binding or library may raise anything
        return FoundDriver(name, reason=f"{type(error).__name__}: {error}")
    library = ", ".join(loaded_libraries()) if name == HIP.name else ""
    if devices:
        return FoundDriver(name, devices)
    return FoundDriver(name, reason=f"{library or 'the library'} is there, and shows no device{why_unseen(name)}")


def _section(title: str, found: list[str]) -> Iterator[str]:
    if found:
        yield f"{title}:"
        yield from (line for text in found for line in _wrapped(f"  {text}"))


def _wrapped(text: str) -> Iterator[str]:
    """Wrap a line for a terminal, with further lines indented. Paths and names are not split."""
    for line in text.split("\n"):
        margin = " " * (len(line) - len(line.lstrip()) + 4)
        yield from textwrap.wrap(
            line, _WIDTH, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
        ) or [""]


def _packages() -> Iterator[str]:
    for name in PACKAGES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield f"{name} is not installed"


def _driver(driver: FoundDriver) -> Iterator[str]:
    if driver.reason:
        yield f"{driver.name}: {driver.reason}"
    for library, version in dict.fromkeys((device.library, device.driver_version) for device in driver.devices):
        yield f"{driver.name}: version {version}{f', {library}' if library else ''}"
    for index, device in enumerate(driver.devices):
        yield f"{driver.name}:{index}: {device.name}, {device.arch}"
        xcds = f", {device.num_xcds} XCD{'s' * (device.num_xcds > 1)}" if device.num_xcds else ""
        yield f"  {device.num_cus} compute units{xcds}{_rate(device.clock)}, {device.lds_bytes} bytes of LDS"
        yield f"  {size_text(device.memory_bytes)} of memory{_rate(device.memory_clock)}"
        if mode := partition_mode(device.pci):
            yield f"  {mode}"
        yield from (f"  {line}" for line in gpu_settings(driver.name, device.pci).lines())


def _rate(clock: float) -> str:
    return f" at {clock / 1e6:.0f} MHz" if clock else ""


def _system() -> Iterator[str]:
    yield from (f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ)
    rocm = Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    yield f"{rocm}: {read(rocm / _ROCM_VERSION) or ('no version file' if rocm.exists() else 'not there')}"
    for node in _NODES:
        if Path(node).exists():
            yield f"{node}: {'accessible' if os.access(node, os.R_OK | os.W_OK) else 'no permission'}"
    yield f"numa_balancing: {read(_NUMA_BALANCING) or 'not known'}"


def _bundles(path: Path, archs: dict[str, str]) -> tuple[bool, list[str]]:
    try:
        found = {folder: read_index(folder) for folder in find_bundles([path])}
    except (AotError, OSError) as error:
        return False, [str(error)]
    lines = []
    for folder, index in found.items():
        place = archs.get(index.target.arch)
        verdict = f"fits {place}" if place else f"fits no device here ({', '.join(archs) or 'none found'})"
        lines += [f"{folder}: {index.target.arch}, id {index.id[:ID_LENGTH]}", f"  {verdict}"]
    return any(index.target.arch in archs for index in found.values()), lines


def _settings(drivers: list[FoundDriver]) -> list[GpuSettings]:
    gpus = dict.fromkeys((driver.name, device.pci) for driver in drivers for device in driver.devices)
    return [gpu_settings(*gpu) for gpu in gpus]


def _advice(drivers: list[FoundDriver]) -> Iterator[str]:
    yield from (item for settings in _settings(drivers) for item in settings.advice())
    for folder in dict.fromkeys(Path(library).parent for library in loaded_libraries()):
        if not (folder / NAME).exists():
            yield (
                f"{folder} has no {NAME}, which hipGetProcAddress (used by Triton's driver) and hip-python (imported "
                "directly) look for; ROCm's development package has the link"
            )
    if any(driver.name == HIP.name and driver.devices for driver in drivers):
        if os.environ.get("HIP_FORCE_DEV_KERNARG") != "1":
            yield "HIP_FORCE_DEV_KERNARG=1 keeps kernargs in device memory and saves 2 to 3 us per launch"
        if read(_NUMA_BALANCING) == "1":
            yield "automatic NUMA balancing slows GPU work down: sysctl kernel.numa_balancing=0"
    if Path("/dev/kfd").exists() and not os.access("/dev/kfd", os.R_OK | os.W_OK):
        yield "no permission for /dev/kfd: add the user to the groups render and video"
    if "HSA_OVERRIDE_GFX_VERSION" in os.environ:
        yield "HSA_OVERRIDE_GFX_VERSION is set: devices may report a wrong architecture"
    if _is_release(drivers, "7.2."):
        yield (
            "libamdhip64 7.2 may crash if a thread destroys a stream while another allocates memory: in programs with "
            "several threads, create streams once and keep them"
        )
    if _is_release(drivers, "6.4."):
        yield (
            "libamdhip64 6.4 crashes at exit if it was not loaded by the main thread: call get_device('hip') in "
            "the main thread before other threads open bundles"
        )


def _is_release(drivers: Iterable[FoundDriver], start: str) -> bool:
    """Tell if HIP's version has a certain start."""
    devices = (device for driver in drivers if driver.name == HIP.name for device in driver.devices)
    return any(device.driver_version.startswith(start) for device in devices)
