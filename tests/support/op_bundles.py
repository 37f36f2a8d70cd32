"""Bundles of the shipped manifests on the device that `pytest --on` names: the tests of ops are the same on each.

emulator: the gfx942 code objects in strict mode, each compiled when a call needs it. rocm: the same ones, launched
through hip-python and AMD's own libamdhip64 and ROCr, which run on an emulated MI300X (`tests.rocm`). gpu: bundles that
were built for the GPU of this machine, here or elsewhere; `AOTBUILD_TEST_BUNDLES` names their folder (default: `dist`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aot_runtime import Bundle, Device, get_device, open_bundle
from aot_runtime.errors import DeviceError

DEVICES = ("emulator", "gpu", "rocm")


@dataclass
class OpBundles:
    """Opens bundles on one kind of device, one of `DEVICES`. Bundles are shared by tests: they hold no state."""

    on: str
    factory: pytest.TempPathFactory
    _opened: dict[tuple[str, bool], Bundle] = field(default_factory=dict)

    def open(self, manifest: str, filters: str = "", check_contents: bool = False) -> Bundle:
        """Open a bundle of a shipped manifest; on a GPU the whole of it.

        filters: as for `--filter`; those that the tests need, since planning a large manifest's matrix takes long.
        check_contents: as for `open_bundle`.
        """
        if self.on == "gpu":
            return self._on_gpu(manifest, check_contents)
        from tests.support.emulation.bundling import on_demand_on  # a GPU machine has no emulator

        return on_demand_on(self.device, manifest, filters, check_contents)

    def with_vectors(self, manifest: str, filters: str = "") -> Bundle:
        """Open with selftest vectors what `aotbuild MANIFEST --filter FILTERS` writes."""
        if self.on == "gpu":
            return self._on_gpu(manifest, False)
        from tests.support.emulation.bundling import built

        return open_bundle(built(self.factory, manifest, filters).path, self.device)

    @property
    def device(self) -> Device:
        if self.on != "emulator":
            return _real_device(self.on)
        from tests.support.emulation.bundling import strict_device

        return strict_device()

    def _on_gpu(self, manifest: str, check_contents: bool) -> Bundle:
        if (manifest, check_contents) not in self._opened:
            device = self.device
            folder = Path(os.environ.get("AOTBUILD_TEST_BUNDLES", "dist")) / f"{manifest}-{device.arch}"
            if not folder.is_dir():
                command = f"aotbuild --arch {device.arch} {manifest} -o {folder.parent}"
                pytest.skip(f"{folder} is not there: {command}")
            self._opened[manifest, check_contents] = open_bundle(folder, device, check_contents=check_contents)
        return self._opened[manifest, check_contents]


def _real_device(on: str) -> Device:
    try:
        return get_device("hip:0" if on == "rocm" else None)
    except DeviceError as error:
        pytest.skip(f"no GPU: {str(error).splitlines()[0]}")
