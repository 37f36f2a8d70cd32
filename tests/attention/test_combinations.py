"""Every two features of the attention ops together, from gfx942 code objects on the emulator in strict mode."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attention.building import ROOT, build_for
from attention.cases import Case, make_call, pairwise
from attention.checking import check

from aot_runtime import Bundle, open_bundle
from aot_runtime.device import Device
from aot_runtime.drivers.emulator import EmulatorDriver, Options

CASES = pairwise()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The variants that the cases need; built once for all workers of a session."""
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from filelock import FileLock

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "attention_cases"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / "lock"):
        path = folder / "attention_cases-gfx942"
        if not (path / "bundle.json").exists():
            calls = [make_call(case) for case in CASES]
            build_for(calls, ROOT / "manifests/attention.yaml", "gfx942", folder, 2, folder / "cache")
    return open_bundle(Path(path), Device(EmulatorDriver(Options(strict=True)), 0))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_the_reference(bundle: Bundle, case: Case):
    check(bundle, make_call(case))
