"""The default device is the first that a bundle fits, over all drivers in order."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from aot_runtime import ArchMismatchError, DeviceError, get_device, open_bundle
from aot_runtime.device import registry
from aot_runtime.device.drivers import DeviceProperties
from tests.support.hip_double.double import in_double

X = np.ones((3, 5), np.float32)
INTEGRATED_FIRST = "gfx1103,gfx1103,gfx942:sramecc+:xnack-,gfx942:sramecc+:xnack-"


@in_double(HIP_DOUBLE_DEVICES=4, HIP_DOUBLE_ARCH=INTEGRATED_FIRST)
def test_a_bundle_opens_on_the_first_device_that_it_fits(small_bundle: Path, tmp_path: Path):
    path = small_bundle
    for device in (None, "hip"):
        assert repr(open_bundle(path, device).device) == "hip:2"
        assert repr(open_bundle(folder_of_one(path, tmp_path), device).device) == "hip:2"
    small = open_bundle(path)
    assert small.affine(X).shape == X.shape
    assert repr(open_bundle(path, "hip:3").device) == "hip:3"
    with pytest.raises(ArchMismatchError, match=r"is for gfx942, but hip:0 \(Double of an AMD GPU\) is gfx1103"):
        open_bundle(path, "hip:0")
    assert repr(get_device()) == "hip:0" and repr(get_device(arch="gfx942")) == "hip:2"


def folder_of_one(path: Path, folder: Path) -> Path:
    if not (folder / path.name).exists():
        shutil.copytree(path, folder / path.name)
    return folder


@in_double(HIP_DOUBLE_DEVICES=2, HIP_DOUBLE_ARCH="gfx1103,gfx90a")
def test_where_none_fits_all_are_listed(small_bundle: Path, tmp_path: Path):
    path = small_bundle
    found = r"hip:0 is gfx1103 \(Double of .*\), hip:1 is gfx90a \(Double of .*\)"
    listed = f"no device of this machine runs code for gfx942: {found}"
    for device in (None, "hip"):
        with pytest.raises(ArchMismatchError, match=f"bundle .*small-gfx942 is for gfx942, and {listed}$"):
            open_bundle(path, device)
        with pytest.raises(ArchMismatchError, match=rf"has bundles small-gfx942 \(gfx942\), and {listed}$"):
            open_bundle(folder_of_one(path, tmp_path), device)


# Several drivers.


class Fake:
    """A driver whose devices are of certain architectures."""

    def __init__(self, name: str, *archs: str):
        self.name, self.archs, self.exact_allocations = name, archs, False

    def device_count(self) -> int:
        return len(self.archs)

    def properties(self, device: int) -> DeviceProperties:
        return DeviceProperties(f"Product {device}", self.archs[device], 1, 32, 65536, 1 << 30, "1")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Fake | DeviceError]:
    """Return the drivers of a made-up machine by name; `opened` lists those that were opened."""
    drivers: dict[str, Fake | DeviceError] = {"hip": DeviceError("no ROCm"), "cuda": DeviceError("no CUDA")}
    opened: list[str] = []

    def driver(name: str) -> Fake:
        opened.append(name)
        found = drivers[name]
        if isinstance(found, DeviceError):
            raise found
        return found

    monkeypatch.setattr(registry, "_driver", driver)
    monkeypatch.setattr(registry, "_device", registry._device.__wrapped__)
    drivers["opened"] = opened  # type: ignore[assignment]
    return drivers


def test_drivers_in_order(machine: dict[str, Fake | DeviceError]):
    machine |= {"hip": Fake("hip", "gfx1103", "gfx942"), "cuda": Fake("cuda", "sm_90")}
    assert repr(get_device(arch="gfx942")) == "hip:1"
    assert set(machine["opened"]) == {"hip"}, "no other driver has such devices"
    assert repr(get_device(arch="sm_90")) == "cuda:0" and repr(get_device()) == "hip:0"
    assert repr(registry.find_device(None, ("sm_90", "gfx942"))) == "hip:1"
    machine["hip"] = Fake("hip")
    assert repr(get_device()) == "cuda:0"


def test_devices_of_all_drivers_are_listed(machine: dict[str, Fake | DeviceError]):
    machine |= {"hip": Fake("hip", "gfx1103"), "cuda": Fake("cuda", "sm_90")}
    with pytest.raises(ArchMismatchError) as raised:
        get_device(arch="sm_80")
    assert str(raised.value) == (
        "no device of this machine runs code for sm_80: cuda:0 is sm_90 (Product 0), hip:0 is gfx1103 (Product 0)"
    )
    with pytest.raises(ArchMismatchError, match=r"runs code for gfx942: hip:0 is gfx1103 \(Product 0\)$"):
        get_device("hip", arch="gfx942")


@pytest.mark.on("emulator")  # with AMD's libraries, the system shows GPUs, which the error speaks of
def test_where_there_is_none_at_all(machine: dict[str, Fake | DeviceError]):
    machine["hip"] = Fake("hip")
    for arch in (None, "gfx942", "sm_90"):
        with pytest.raises(DeviceError) as raised:
            get_device(arch=arch)
        obstacles = "hip: the driver is installed and sees no GPU\n  cuda: no CUDA"
        assert str(raised.value) == f"no usable GPU\n  {obstacles}\n  {registry.WITHOUT_A_GPU}"
