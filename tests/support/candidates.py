"""Candidates of a space for tuning, on the emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.manifest.loading import load_manifest
from aot.manifest.spaces import load_space
from aot.plan.bundles import plan_bundle
from aot.plan.filters import parse_filters
from aot.targets import parse_arch
from aot.tune.candidates import read_groups, with_candidates
from tests.support.emulation.bundling import strict_device
from tests.support.on_demand import BundleOnDemand
from tests.support.session_builds import ROOT, session_cache


def candidates_bundle(
    factory: pytest.TempPathFactory, manifest: str, op: str, space: str, filters: str
) -> BundleOnDemand:
    """Build an op of a shipped manifest for gfx942 with the candidates of a space, given as YAML. filters: as
    `--filter`."""
    path: Path = factory.mktemp("space") / f"{op}.yaml"
    path.write_text(space)
    source = next(item for item in load_manifest(ROOT / f"manifests/{manifest}.yaml").sources if item.name == op)
    found = with_candidates(source, read_groups(load_space(path), source, "gfx942"), "gfx942")
    plan = plan_bundle(found, parse_arch("gfx942"), parse_filters((filters,)), False)
    return BundleOnDemand(plan, strict_device(), session_cache())
