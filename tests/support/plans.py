"""Plans of the shipped manifests, each made once in a process: nothing is compiled."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.session_builds import ROOT

if TYPE_CHECKING:
    from aot.plan.bundles import PlannedBundle


@cache
def planned(arch: str, manifest: str, filters: str = "") -> PlannedBundle:
    """Plan the variants of a shipped manifest. filters: as for `--filter`."""
    return plan_of(ROOT / f"manifests/{manifest}.yaml", arch, filters)


def plan_of(manifest: Path, arch: str, filters: str = "") -> PlannedBundle:
    """Plan the variants of a manifest."""
    pytest.importorskip("triton", reason="planning bundles needs the extra `build`")
    from aot.manifest.loading import load_manifest
    from aot.plan.bundles import plan_bundle
    from aot.plan.filters import parse_filters
    from aot.targets import parse_arch

    wanted = parse_filters((filters,) if filters else ())
    return plan_bundle(load_manifest(manifest), parse_arch(arch), wanted, False)
