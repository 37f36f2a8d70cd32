"""The shipped kernels use their tensors according to their roles, as `aotbuild` also checks."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("triton", reason="compiling kernels needs the extra `build`")

from aot.plan.bundles import PlannedBundle
from aot.write.roles import check_roles
from tests.support.building.front_end import kernels
from tests.support.plans import planned
from tests.support.session_builds import ROOT

pytestmark = pytest.mark.on("emulator")

MANIFESTS = sorted(path.stem for path in (ROOT / "manifests").glob("*.yaml"))


def sampled(bundle: PlannedBundle) -> PlannedBundle:
    """Return the variants of each op at the first and at the last of its points."""
    by_point: dict[str, dict[object, list]] = {}
    for variant in bundle.variants:
        points = by_point.setdefault(variant.spec.op, {})
        points.setdefault((variant.spec.point, variant.spec.aligned), []).append(variant)
    kept = [variant for points in by_point.values() for at in (0, -1) for variant in list(points.values())[at]]
    return dataclasses.replace(bundle, variants=tuple(kept))


@pytest.mark.sampled(2)  # a build holds every variant to it
@pytest.mark.parametrize("manifest", MANIFESTS)
def test_kernels_use_tensors_as_their_manifest_says(manifest: str):
    bundle = sampled(planned("gfx942", manifest))
    found = kernels(bundle)
    check_roles(bundle, found)
    unclear = {bundle.jobs[key].function for key, kernel in found.items() if "?" in "".join(kernel.accesses.values())}
    assert not unclear, "every pointer of these kernels can be followed"


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx1201", "sm_90"])
@pytest.mark.parametrize("manifest", MANIFESTS)
def test_every_variant_uses_tensors_as_its_manifest_says(manifest: str, arch: str):
    bundle = planned(arch, manifest)
    check_roles(bundle, kernels(bundle))
