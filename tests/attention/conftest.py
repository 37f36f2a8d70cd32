"""The bundle of all combinations, on the emulator."""

from __future__ import annotations

import os

import pytest
from attention.building import ROOT, build_for
from attention.cases import EDGES, make_call, pairwise

from aot_runtime import Bundle, open_bundle
from aot_runtime.device import Device
from aot_runtime.drivers.emulator import EmulatorDriver, Options


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The gfx942 variants that the cases need, in strict mode; built once for all workers of a session."""
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from filelock import FileLock

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "attention_cases"
    folder.mkdir(exist_ok=True)
    path = folder / "attention_cases-gfx942"
    with FileLock(folder / "lock"):
        if not (path / "bundle.json").exists():
            calls = [make_call(case) for case in (*pairwise(), *EDGES)]
            build_for(calls, ROOT / "manifests/attention.yaml", "gfx942", folder, 2, folder / "cache")
    return open_bundle(path, Device(EmulatorDriver(Options(strict=True)), 0))
