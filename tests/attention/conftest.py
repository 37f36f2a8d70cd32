"""Bundles of the variants that the cases need, for gfx942, on the emulator in strict mode."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import pytest
from attention import latent as latent_cases
from attention import quantised as quantised_cases
from attention.building import ROOT, build_for
from attention.cases import EDGES, SCHEDULES, Call, make_call, pairwise

from aot_runtime import Bundle, open_bundle
from aot_runtime.device import Device
from aot_runtime.drivers.emulator import EmulatorDriver, Options


def built_for(factory: pytest.TempPathFactory, manifest: str, calls: Callable[[], Iterable[Call]], name: str) -> Bundle:
    """A bundle of what calls of the ops of a manifest need; built once for all workers of a session."""
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from filelock import FileLock

    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-gfx942"
    with FileLock(folder / "lock"):
        if not (path / "bundle.json").exists():
            build_for(calls(), ROOT / f"manifests/{manifest}.yaml", "gfx942", folder, 2, folder / "cache", name)
    return open_bundle(path, Device(EmulatorDriver(Options(strict=True)), 0))


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """What the pairwise cases need."""

    def calls() -> Iterable[Call]:
        return (make_call(case) for case in (*pairwise(), *EDGES, *SCHEDULES))

    return built_for(tmp_path_factory, "attention", calls, "attention_cases")


@pytest.fixture(scope="session")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """What the cases of 8-bit tensors need."""

    def calls() -> Iterable[Call]:
        return (quantised_cases.make_call(case, "gfx942") for case in quantised_cases.CASES)

    return built_for(tmp_path_factory, "attention_quantised", calls, "attention_quantised_cases")


@pytest.fixture(scope="session")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """What the cases of latent attention need."""

    def calls() -> Iterable[Call]:
        return (latent_cases.make_call(case) for case in latent_cases.CASES)

    return built_for(tmp_path_factory, "attention", calls, "attention_latent_cases")
