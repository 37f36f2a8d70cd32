"""`aotbundle doctor`: its report of the library, devices and extras, within 80 columns."""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from aot_bundle import gpu_settings
from aot_bundle.command import diagnosis, extras
from aot_bundle.command.main import main
from aot_runtime.device.drivers import DeviceProperties
from aot_runtime.errors import DeviceError
from tests.support.hip_double.double import DoubleLibrary

LIBRARY = "/opt/rocm-7.2.0/lib/libamdhip64.so.7 (in ROCM_PATH)"
MI300X = DeviceProperties(
    "AMD Instinct MI300X VF", "gfx942", 38, 64, 65536, 24 << 30, "7.2.26015", 1, LIBRARY, 2.1e9, 1.3e9, "0000:c1:00.0"
)
LONG = "a reason that is so long that it takes more than one line of a terminal, " * 3


class Devices:
    """A driver that shows certain devices, which may get lost."""

    def __init__(self, *devices: DeviceProperties | Exception):
        self.devices = devices

    def device_count(self) -> int:
        return len(self.devices)

    def properties(self, device: int) -> DeviceProperties:
        found = self.devices[device]
        if isinstance(found, Exception):
            raise found
        return found


def doctor(*arguments: object) -> list[str]:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)]).output.splitlines()


def section(lines: list[str], title: str) -> list[str]:
    start = lines.index(f"{title}:") + 1
    return [line for line in lines[start:] if line.startswith(" ")][: next(
        (i for i, line in enumerate(lines[start:]) if not line.startswith(" ")), len(lines)
    )]  # fmt: skip


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make a machine with partitions of an MI300X; the folder is its /sys/bus/pci/devices."""

    def opened(name: str) -> Devices:
        if name == "cuda":
            raise DeviceError(LONG)
        return Devices(MI300X, MI300X)

    monkeypatch.setattr(diagnosis, "open_driver", opened)
    monkeypatch.setattr(gpu_settings, "_PCI_DEVICES", tmp_path)
    return tmp_path


def test_the_library_and_each_device(machine: Path):
    (machine / MI300X.pci).mkdir()
    (machine / MI300X.pci / "current_compute_partition").write_text("CPX\n")
    (machine / MI300X.pci / "current_memory_partition").write_text("NPS4\n")
    one = [
        "    38 compute units, 1 XCD at 2100 MHz, 65536 bytes of LDS",
        "    24.0 GiB of memory at 1300 MHz",
        "    partition mode: compute CPX, memory NPS4 (0000:c1:00.0)",
    ]
    assert section(doctor(), "drivers")[:9] == [
        f"  hip: version 7.2.26015, {LIBRARY}",
        "  hip:0: AMD Instinct MI300X VF, gfx942", *one,
        "  hip:1: AMD Instinct MI300X VF, gfx942", *one,
    ]  # fmt: skip


def test_a_system_that_does_not_tell_the_partition_mode(machine: Path):
    assert not any("partition" in line for line in doctor())
    (machine / MI300X.pci).mkdir()
    (machine / MI300X.pci / "current_compute_partition").write_text("SPX\n")
    assert "    partition mode: compute SPX (0000:c1:00.0)" in doctor()


def test_faults_of_releases_of_hip(machine: Path, monkeypatch: pytest.MonkeyPatch):
    told = {"6.4.43484": "call get_device('hip') in the main thread", "7.2.26015": "create streams once and keep them"}
    for version in (*told, "7.1.0"):
        found = msgspec.structs.replace(MI300X, driver_version=version)
        monkeypatch.setattr(diagnosis, "open_driver", lambda name, found=found: Devices(found))
        text = " ".join(" ".join(doctor()).split())
        assert [words in text for words in told.values()] == [version == other for other in told]


def test_it_fits_a_terminal(machine: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/rocm/lib:" * 20)
    lines = doctor("nowhere")
    long = [line for line in lines if len(line) > 80]
    assert all(len(line.split()) == 1 for line in long), long  # a path stays whole
    assert " ".join(" ".join(lines).split()).count(LONG.strip()) == 1
    wrapped = next(i for i, line in enumerate(lines) if line.startswith("  cuda: a reason"))
    assert lines[wrapped + 1].startswith("      ") and len(lines[wrapped]) > 60


def test_a_library_without_the_name_that_others_look_for(
    machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(diagnosis, "loaded_libraries", lambda: [str(tmp_path / "libamdhip64.so.6")])
    assert f"{tmp_path} has no libamdhip64.so, which hipGetProcAddress" in " ".join(" ".join(doctor()).split())
    (tmp_path / "libamdhip64.so").touch()
    assert "hipGetProcAddress" not in " ".join(doctor())


def finds_library(path: str) -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert f" hip: version 7.2.26015, {path} (in ROCM_PATH)" in f" {' '.join(result.output.split())}"
    assert result.exit_code == 0 and "8 XCDs at 2100 MHz" in result.output, result.output


def test_over_the_double(hip_double: DoubleLibrary):
    hip_double.run_fresh(finds_library, str(hip_double.path), HIP_DOUBLE_XCCS=8)


def shows_no_device(path: str) -> None:
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1 and f"{path} is there, and shows no device" in " ".join(result.output.split())


def test_a_library_without_a_device(hip_double: DoubleLibrary):
    hip_double.run(shows_no_device, str(hip_double.path), HIP_DOUBLE_DEVICES=0)


# The exit status, and bundles

PLAIN = DeviceProperties("Instinct", "gfx942", 304, 64, 65536, 192 << 30, "7.0.1")


def doctor_with(patch: pytest.MonkeyPatch, hip: Devices | Exception, *bundles: Path) -> Result:
    """Run the command with `hip` as HIP's driver, or as the error of opening it; there is no other driver."""

    def opened(name: str) -> Devices:
        if name != "hip" or isinstance(hip, Exception):
            raise hip if isinstance(hip, Exception) else DeviceError(f"no library for {name}")
        return hip

    patch.setattr(diagnosis, "open_driver", opened)
    return CliRunner().invoke(main, ["doctor", *map(str, bundles)])


@pytest.mark.parametrize(
    ("hip", "reason"),
    [
        (DeviceError("no library for hip"), "  hip: no library for hip"),
        (ValueError("bad binding"), "  hip: ValueError: bad binding"),
        (Devices(OSError("device lost")), "hip: OSError: device lost"),
    ],
)
def test_without_a_usable_gpu(monkeypatch: pytest.MonkeyPatch, hip: Devices | Exception, reason: str):
    result = doctor_with(monkeypatch, hip)
    assert result.exit_code == 1
    assert reason in result.output and "warning: no usable GPU" in result.output
    for title in ("python:", "packages:", "drivers:", "system:"):
        assert title in result.output.splitlines()


def test_with_a_gpu(monkeypatch: pytest.MonkeyPatch, rows_bundles: Path, tmp_path: Path):
    monkeypatch.delenv("HIP_FORCE_DEV_KERNARG", raising=False)
    result = doctor_with(monkeypatch, Devices(PLAIN), rows_bundles / "rows-gfx942")
    assert result.exit_code == 0
    assert "  hip:0: Instinct, gfx942\n    304 compute units, 65536 bytes of LDS\n" in result.output
    assert "fits hip:0" in result.output and "warning: HIP_FORCE_DEV_KERNARG=1" in result.output
    monkeypatch.setenv("HIP_FORCE_DEV_KERNARG", "1")
    assert "warning: HIP_FORCE_DEV_KERNARG" not in doctor_with(monkeypatch, Devices(PLAIN)).output
    assert doctor_with(monkeypatch, Devices(PLAIN), rows_bundles).exit_code == 0, "one bundle of the folder fits"
    result = doctor_with(monkeypatch, Devices(PLAIN), rows_bundles / "rows-sm_90")
    assert result.exit_code == 1 and "sm_90" in result.output and "fits no device here (gfx942)" in result.output
    result = doctor_with(monkeypatch, Devices(PLAIN), tmp_path)
    assert result.exit_code == 1 and "is not a bundle" in " ".join(result.output.split())


# Extras.

REQUIRES = [
    "numpy>=1.26", "hip-python>=6.3; sys_platform == 'linux'", 'tinygrad==0.14.0; extra == "emulator"',
    "triton==3.9.0; extra == 'build'", "rich>=13; extra == 'build'", "coverage[toml]>=7; extra == 'build'",
    "matplotlib>=3.10; extra == 'report'",
]  # fmt: skip


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return versions of installed packages by name, which a test may change."""
    versions = {"tinygrad": "0.14.0", "triton": "3.9.0", "rich": "15.0.0", "coverage": "7.1", "matplotlib": "3.11"}

    def version(package: str) -> str:
        if package not in versions:
            raise metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(extras.metadata, "version", version)
    monkeypatch.setattr(extras.metadata, "requires", lambda package: REQUIRES)
    return versions


def test_extras_that_are_installed(installed: dict[str, str]):
    assert list(extras.extra_lines("emulator", "aotbuild", "emulator")) == ["emulator: ready, with tinygrad 0.14.0"]
    assert list(extras.extra_lines("builder", "aotbuild", "build")) == [
        "builder: ready, with triton 3.9.0, rich 15.0.0, coverage 7.1"
    ]


def test_what_an_extra_lacks(installed: dict[str, str]):
    installed |= {"tinygrad": "0.13.0", "rich": "12.6"}
    del installed["triton"]
    assert list(extras.extra_lines("emulator", "aotbuild", "emulator")) == [
        "emulator: needs tinygrad==0.14.0 (0.13.0 is installed): pip install 'aotbuild[emulator]'"
    ]
    assert list(extras.extra_lines("builder", "aotbuild", "build")) == [
        "builder: needs triton==3.9.0 (not installed), rich>=13 (12.6 is installed): pip install 'aotbuild[build]'"
    ]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch):
    def missing(package: str) -> list[str]:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(extras.metadata, "requires", missing)
    assert list(extras.extra_lines("builder", "aotbuild", "build")) == [
        "builder: unknown, because aotbuild is not installed as a package"
    ]


def test_doctor_tells_of_extras(machine: Path, installed: dict[str, str]):
    del installed["tinygrad"]
    told = section(doctor(), "extras")
    assert told[0].startswith("  emulator: needs tinygrad==0.14.0 (not installed): pip install")
    assert any(line.startswith("  builder: ready, with triton 3.9.0") for line in told)
    assert "  reports: ready, with matplotlib 3.11" in told
    assert f"  {sys.version.split()[0]} at" in "\n".join(doctor())


def test_json_has_the_devices_and_says_whether_all_is_well(machine: Path):
    found = json.loads("\n".join(doctor("--json")))
    assert found["healthy"] and list(found["devices"]) == ["hip:0", "hip:1"]
    assert found["devices"]["hip:0"]["arch"] == "gfx942" and found["devices"]["hip:0"]["num_cus"] == 38
    assert f"cuda: {LONG}" in found["drivers"] and any("HIP_FORCE_DEV_KERNARG" in line for line in found["warnings"])
