"""`aotbundle doctor`: what it says of a machine, and of bundles on it."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from click.testing import Result

from aot_bundle.command import diagnosis
from aot_runtime.device.drivers.base import DeviceProperties
from aot_runtime.errors import DeviceError
from tests.support.command import aotbundle

PROPERTIES = DeviceProperties("Instinct", "gfx942", 304, 64, 65536, 192 << 30, "7.0.1")


def one_device(error: Exception | None = None) -> mock.Mock:
    """A driver that shows one device, which may be lost."""
    properties = mock.Mock(return_value=PROPERTIES, side_effect=error)
    return mock.Mock(spec_set=["device_count", "properties"], device_count=lambda: 1, properties=properties)


def doctor(patch: pytest.MonkeyPatch, hip: object, *bundles: Path) -> Result:
    """Run the command where HIP's driver is `hip`, or cannot be opened, and there is no other."""

    def open_driver(name: str) -> object:
        if name != "hip" or isinstance(hip, Exception):
            raise hip if isinstance(hip, Exception) else DeviceError(f"no library for {name}")
        return hip

    patch.setattr(diagnosis, "open_driver", open_driver)
    return aotbundle("doctor", *bundles)


@pytest.mark.parametrize(
    ("hip", "reason"),
    [
        (DeviceError("no library for hip"), "  hip: no library for hip"),
        (ValueError("bad binding"), "  hip: ValueError: bad binding"),
        (one_device(OSError("device lost")), "hip: OSError: device lost"),
    ],
)
def test_without_a_usable_gpu(monkeypatch: pytest.MonkeyPatch, hip: object, reason: str):
    result = doctor(monkeypatch, hip)
    assert result.exit_code == 1
    assert reason in result.output and "warning: no usable GPU" in result.output
    for title in ("python:", "packages:", "drivers:", "system:"):
        assert title in result.output.splitlines()


def test_with_a_gpu(monkeypatch: pytest.MonkeyPatch, rows_bundles: Path, tmp_path: Path):
    monkeypatch.delenv("HIP_FORCE_DEV_KERNARG", raising=False)
    result = doctor(monkeypatch, one_device(), rows_bundles / "rows-gfx942")
    assert result.exit_code == 0
    assert "  hip:0: Instinct, gfx942\n    304 compute units, 65536 bytes of LDS\n" in result.output
    assert "fits hip:0" in result.output and "warning: HIP_FORCE_DEV_KERNARG=1" in result.output
    monkeypatch.setenv("HIP_FORCE_DEV_KERNARG", "1")
    assert "warning: HIP_FORCE_DEV_KERNARG" not in doctor(monkeypatch, one_device()).output
    assert doctor(monkeypatch, one_device(), rows_bundles).exit_code == 0, "one bundle of the folder fits"
    result = doctor(monkeypatch, one_device(), rows_bundles / "rows-sm_90")
    assert result.exit_code == 1 and "sm_90" in result.output and "fits no device here (gfx942)" in result.output
    result = doctor(monkeypatch, one_device(), tmp_path)
    assert result.exit_code == 1 and "is not a bundle" in " ".join(result.output.split())
