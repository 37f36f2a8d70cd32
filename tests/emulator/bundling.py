"""Bundles of the shipped manifests, built for the emulator, and device arrays with poison around them."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

import pytest

from aot_runtime import Bundle, open_bundle
from aot_runtime.device import Device
from aot_runtime.drivers.emulator import EmulatorDriver, Options
from aot_runtime.drivers.emulator.archs import ARCHS

ROOT = Path(__file__).parents[2]
PLAIN_ATTENTION = "op=flash_attention,HEAD_DIM=64|128,PLAIN=true,BOUND_LEFT=false"
"""The variants of attention that most calls need."""


@cache
def strict_device(arch: str = "gfx942") -> Device:
    return Device(EmulatorDriver(Options(strict=True)), list(ARCHS).index(arch))


def built(factory: pytest.TempPathFactory, manifest: str | Path, filters: str = "", arch: str = "gfx942") -> Bundle:
    """A bundle on the emulator, in strict mode; it is built once for all workers of a session.

    manifest: a path, or the name of one in `manifests`.
    """
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from click.testing import CliRunner
    from filelock import FileLock

    from aot.cli import main

    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "emulated_bundles"
    path = manifest if isinstance(manifest, Path) else ROOT / f"manifests/{manifest}.yaml"
    folder = shared / hashlib.sha256(f"{path} {filters} {arch}".encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--filter", filters] if filters else []
    command = ["--arch", arch, *options, str(path), "-o", str(folder), "--cache-dir", str(shared / "cache")]
    bundle = folder / f"{path.stem}-{arch}"
    with FileLock(folder / "lock"):
        if not (bundle / "bundle.json").exists():
            result = CliRunner().invoke(main, command)
            assert result.exit_code == 0, result.output
    return open_bundle(bundle, device=strict_device(arch))
