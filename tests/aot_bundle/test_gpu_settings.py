"""Clocks and power of GPUs from an artificial sysfs tree and nvidia-smi's output, and in `doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot_bundle import gpu_settings
from aot_bundle.command import diagnosis
from aot_bundle.gpu_settings import Clock, GpuSettings
from aot_runtime.device.drivers import DeviceProperties
from aot_runtime.errors import DeviceError
from tests.support.command import aotbundle

PCI = "0000:c1:00.0"
TREE = {
    "pp_dpm_sclk": "S: 132Mhz *\n0: 500Mhz\n1: 2100Mhz\n", "pp_dpm_mclk": "0: 900Mhz *\n1: 1300Mhz\n",
    "power_dpm_force_performance_level": "auto\n", "hwmon/hwmon7/power1_cap": "550000000\n",
    "hwmon/hwmon7/power1_cap_default": "750000000\n",
}  # fmt: skip
HOLD = f"amd-smi set --gpu {PCI} --perf-determinism 2100"
FREE = f"amd-smi set --gpu {PCI} --perf-level AUTO"
SMI = """#!/bin/sh
[ "$1 $2" = "-i 0000:1b:00.0" ] && [ "$4" = "--format=csv,noheader,nounits" ] || exit 1
echo "{}"
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The GPU's folder of a made /sys/bus/pci/devices, as amdgpu fills it."""
    monkeypatch.setattr(gpu_settings, "_PCI_DEVICES", tmp_path)
    for name, text in TREE.items():
        path = tmp_path / PCI / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / PCI


def test_what_amdgpu_tells(folder: Path):
    found = gpu_settings.gpu_settings("hip", PCI)
    assert found == GpuSettings(PCI, "hip", Clock(132, 2100), Clock(900, 1300), "auto", 550, 750)
    cap = f"the power cap of {PCI} is 550 W, and 750 W by default: `amd-smi set --gpu {PCI} --power-cap 750`"
    assert list(found.advice()) == [cap]
    (folder / "power_dpm_force_performance_level").write_text("perf_determinism\n")
    (folder / "hwmon/hwmon7/power1_cap").write_text("750000000\n")
    held = f"the clocks of {PCI} are held, performance level perf_determinism: `{FREE}`"
    assert list(gpu_settings.gpu_settings("hip", PCI).advice()) == [held]


def test_what_is_not_told_is_left_out(folder: Path):
    (folder / "pp_dpm_sclk").write_bytes(b"\xff no table")
    (folder / "hwmon/hwmon7/power1_cap_default").unlink()
    assert list(gpu_settings.gpu_settings("hip", PCI).lines()) == [
        "power cap: 550 W", f"  set with `amd-smi set --gpu {PCI} --power-cap 550`"
    ]  # fmt: skip
    for pci in ("", "0000:ff:00.0"):
        nothing = gpu_settings.gpu_settings("hip", pci)
        assert (list(nothing.lines()), list(nothing.advice()), nothing.summary()) == ([], [], "")


@pytest.mark.parametrize(
    ("said", "clock", "caps"),
    [("1980, 1980, 2619, 2619, 500.00, 700.00", Clock(1980, 1980), (500, 700)),
     ("345, 1980, 2619, 2619, [N/A], [N/A]", Clock(345, 1980), (None, None)),
     ("No devices were found", None, (None, None))],
)  # fmt: skip
def test_what_nvidia_smi_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str, clock: Clock | None, caps: tuple[float | None, ...]
):
    script = tmp_path / "nvidia-smi"
    script.write_text(SMI.format(said))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = gpu_settings.gpu_settings("cuda", "0000:1b:00.0")
    assert (found.clock, (found.power_cap, found.default_power_cap)) == (clock, caps)
    cap = "the power cap of 0000:1b:00.0 is 500 W, and 700 W by default: `nvidia-smi -i 0000:1b:00.0 --power-limit=700`"
    assert list(found.advice()) == ([cap] if caps == (500, 700) else [])
    assert gpu_settings.gpu_settings("cuda", "0000:99:00.0") == GpuSettings("0000:99:00.0", "cuda")
    monkeypatch.setenv("PATH", "")
    assert gpu_settings.gpu_settings("cuda", "0000:1b:00.0").summary() == ""


def test_the_doctor_tells_of_each_gpu_once_what_is_amiss(folder: Path, monkeypatch: pytest.MonkeyPatch):
    properties = DeviceProperties("Instinct", "gfx942", 38, 64, 65536, 24 << 30, "7.0.1", pci=PCI)

    class TwoPartitions:
        def device_count(self) -> int:
            return 2

        def properties(self, device: int) -> DeviceProperties:
            return properties

    def open_driver(name: str) -> TwoPartitions:
        if name != "hip":
            raise DeviceError("no library")
        return TwoPartitions()

    monkeypatch.setattr(diagnosis, "open_driver", open_driver)
    words = " ".join(aotbundle("doctor").output.split())
    assert words.count("clocks: 132 of 2100 MHz, memory 900 of 1300 MHz, performance level auto") == 2
    assert words.count(f"fix with `{HOLD}`, release with `{FREE}`") == 2
    assert words.count(f"warning: the power cap of {PCI} is 550 W") == 1
