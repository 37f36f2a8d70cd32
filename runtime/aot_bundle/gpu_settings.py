"""Read the clock and power settings of a GPU. Nothing is changed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aot_runtime.contract.arch import CUDA, HIP

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_STEP = re.compile(r"^\s*\w+:\s*(\d+)\s*MHz\s*(\*?)", re.IGNORECASE | re.MULTILINE)
"""A line of amdgpu's clock tables. A star marks the current clock."""
_QUERY = ("clocks.sm", "clocks.max.sm", "clocks.mem", "clocks.max.mem", "power.limit", "power.default_limit")
_TIMEOUT_S = 10
_FREE = "auto"
"""The performance level with clocks chosen by the driver."""


@dataclass(frozen=True)
class Clock:
    """The current and highest frequency of a clock in MHz."""

    now: int
    most: int

    def __str__(self) -> str:
        return f"{self.now} of {self.most} MHz"


@dataclass(frozen=True)
class GpuSettings:
    """The settings of a GPU. Unknown ones are None or empty. Power is in watts."""

    pci: str
    driver: str
    """`hip` or `cuda`."""
    clock: Clock | None = None
    memory_clock: Clock | None = None
    level: str = ""
    """amdgpu's performance level: `auto`, or one that fixes the clocks."""
    power_cap: float | None = None
    default_power_cap: float | None = None

    def lines(self) -> Iterator[str]:
        """Yield the settings, with the commands to set and reset them."""
        if self.clock:
            memory = f", memory {self.memory_clock}" if self.memory_clock else ""
            level = f", performance level {self.level}" if self.level else ""
            yield f"clocks: {self.clock}{memory}{level}"
            yield f"  fix with `{self.hold_clocks}`, release with `{self.free_clocks}`"
        if self.power_cap is not None:
            default = f", by default {self.default_power_cap:.0f} W" if self.default_power_cap is not None else ""
            yield f"power cap: {self.power_cap:.0f} W{default}"
            yield f"  set with `{self.set_power_cap}`"

    def summary(self) -> str:
        """Return the settings in one line, for the heading of a measurement; empty if unknown."""
        return "; ".join(line for line in self.lines() if not line.startswith(" "))

    def advice(self) -> Iterator[str]:
        """Yield settings that differ from the defaults and affect measurements."""
        if self.level not in ("", _FREE):
            yield f"the clocks of {self.pci} are held, performance level {self.level}: `{self.free_clocks}`"
        if self.power_cap is not None and self.power_cap < (self.default_power_cap or 0):
            cap = f"{self.power_cap:.0f} W, and {self.default_power_cap:.0f} W by default"
            yield f"the power cap of {self.pci} is {cap}: `{self.set_power_cap}`"

    @property
    def hold_clocks(self) -> str:
        """The command that fixes the clock at its highest frequency."""
        most = self.clock.most if self.clock else 0
        if self.driver == HIP.name:
            return f"amd-smi set --gpu {self.pci} --perf-determinism {most}"
        return f"nvidia-smi -i {self.pci} --lock-gpu-clocks={most}"

    @property
    def free_clocks(self) -> str:
        """The command that lets the driver choose the clocks."""
        if self.driver == HIP.name:
            return f"amd-smi set --gpu {self.pci} --perf-level AUTO"
        return f"nvidia-smi -i {self.pci} --reset-gpu-clocks"

    @property
    def set_power_cap(self) -> str:
        """The command that sets the power cap to its default, or to its current value if unknown."""
        watts = self.default_power_cap or self.power_cap or 0
        if self.driver == HIP.name:
            return f"amd-smi set --gpu {self.pci} --power-cap {watts:.0f}"
        return f"nvidia-smi -i {self.pci} --power-limit={watts:.0f}"


def gpu_settings(driver: str, pci: str) -> GpuSettings:
    """Return the settings of a GPU, by its driver's name and PCI address. Never raises."""
    if not pci:
        return GpuSettings(pci, driver)
    return _amd(pci) if driver == HIP.name else _nvidia(pci)


def partition_mode(pci: str) -> str:
    """Describe how a GPU is partitioned into devices; empty if unknown."""
    modes = {what: read(_PCI_DEVICES / pci / f"current_{what}_partition") for what in ("compute", "memory")}
    told = ", ".join(f"{what} {mode}" for what, mode in modes.items() if mode)
    return f"partition mode: {told} ({pci})" if pci and told else ""


def _amd(pci: str) -> GpuSettings:
    folder = _PCI_DEVICES / pci
    sensors = sorted(folder.glob("hwmon/hwmon*"))
    caps = [_microwatts(sensors[0] / name) if sensors else None for name in ("power1_cap", "power1_cap_default")]
    clock, memory = (_steps(read(folder / f"pp_dpm_{name}")) for name in ("sclk", "mclk"))
    return GpuSettings(pci, HIP.name, clock, memory, read(folder / "power_dpm_force_performance_level"), *caps)


def _steps(table: str) -> Clock | None:
    found = [(int(step), star) for step, star in _STEP.findall(table)]
    now = [step for step, star in found if star]
    return Clock(now[0], max(step for step, _ in found)) if now else None


def _microwatts(path: Path) -> float | None:
    text = read(path)
    return int(text) / 1e6 if text.isdecimal() else None


def _nvidia(pci: str) -> GpuSettings:
    command = ["nvidia-smi", "-i", pci, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return GpuSettings(pci, CUDA.name)
    numbers = [_number(cell) for cell in said.strip().split(",")]
    if len(numbers) != len(_QUERY):
        return GpuSettings(pci, CUDA.name)
    now, most, memory_now, memory_most, cap, default = numbers
    return GpuSettings(pci, CUDA.name, _clock(now, most), _clock(memory_now, memory_most), "", cap, default)


def _number(cell: str) -> float | None:
    """Parse a number; None for an unsupported value, `[N/A]`."""
    try:
        return float(cell)
    except ValueError:
        return None


def _clock(now: float | None, most: float | None) -> Clock | None:
    return None if now is None or most is None else Clock(round(now), round(most))


def read(path: Path) -> str:
    """Read a small text file; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
