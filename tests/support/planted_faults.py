"""Kernels with a fault in their source: what a suite has to notice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aot_runtime import Bundle
from aot_runtime.errors import EmulationError
from tests.support.session_builds import ROOT, session_cache

Plant = Callable[..., Bundle]


@pytest.fixture
def planted(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Plant:
    """A function (manifest, filters, file, right, wrong) to a bundle of a shipped manifest, on the emulator.

    file: a kernel's source, in which `right`, which occurs once, is replaced by `wrong`.
    """
    pytest.importorskip("triton", reason="building bundles needs the extra `build`")
    from aot.cli import parse_filters
    from tests.support.emulation.bundling import strict_device
    from tests.support.on_demand import BundleOnDemand

    def plant(manifest: str, filters: str, file: str, right: str, wrong: str) -> Bundle:
        for folder in ("kernels", "manifests"):
            shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
        source = tmp_path / "kernels" / file
        text = source.read_text()
        assert text.count(right) == 1, f"the kernel changed: {right!r} occurs {text.count(right)} times"
        source.write_text(text.replace(right, wrong))
        path = tmp_path / "manifests" / f"{manifest}.yaml"
        return BundleOnDemand(path, strict_device(), session_cache(tmp_path_factory), parse_filters((filters,)))

    return plant


def assert_noticed(check: Callable[[], None]) -> None:
    """A check fails, or the emulator's strict mode does."""
    with pytest.raises((AssertionError, EmulationError)):
        check()
