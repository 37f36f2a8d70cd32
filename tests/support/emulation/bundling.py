"""Bundles of the shipped manifests, built for the emulator, and device arrays with poison around them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from aot_emulator import EmulatorDriver, Options
from aot_emulator.isa.archs import ARCHS
from aot_runtime import Bundle, open_bundle
from aot_runtime.device.device import Device
from tests.support.plans import planned
from tests.support.session_builds import ROOT, build_once, session_cache

PLAIN_ATTENTION = "op=flash_attention,HEAD_DIM=64,T=float16,PLAIN=true,PERSISTENT=false"
"""The variants of attention that the plainest calls need."""


def on_demand(manifest: str, filters: str = "", arch: str = "gfx942", check_contents: bool = False) -> Bundle:
    """Open a bundle on the emulator, in strict mode, whose variants are compiled when calls need them."""
    return on_demand_on(strict_device(arch), manifest, filters, check_contents)


def on_demand_on(device: Device, manifest: str, filters: str = "", check_contents: bool = False) -> Bundle:
    """Do as `on_demand`, on any device."""
    return _opened(device, manifest, filters, check_contents)


@cache
def _opened(device: Device, manifest: str, filters: str, check_contents: bool) -> Bundle:
    plan = planned(device.arch, manifest, filters)
    from tests.support.on_demand import BundleOnDemand

    return BundleOnDemand(plan, device, session_cache(), check_contents)


@cache
def strict_device(arch: str = "gfx942") -> Device:
    return Device(EmulatorDriver(Options(strict=True)), list(ARCHS).index(arch))


def built(factory: pytest.TempPathFactory, manifest: str | Path, filters: str = "", arch: str = "gfx942") -> Bundle:
    """Build a bundle once for all workers of a session and open it on the emulator, in strict mode.

    manifest: a path, or the name of one in `manifests`.
    """
    path = manifest if isinstance(manifest, Path) else ROOT / f"manifests/{manifest}.yaml"
    folder = build_once(factory, path, filters, arch)
    return open_bundle(folder / f"{path.stem}-{arch}", device=strict_device(arch))
