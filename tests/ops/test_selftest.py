"""The selftest of the shipped bundles; on a GPU, of all that have cases."""

from __future__ import annotations

import pytest

from tests.support.op_bundles import OpBundles
from tests.support.session_builds import ROOT

OF_OTHERS = ("llama", "mixtures")
"""Bundles of ops that other manifests have."""
EMULATED = {"memory": ""}
"""Bundles, and filters of the part that does not take the emulator long; the release check runs all."""


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "manifests").glob("*.yaml")))
def test_selftest(op_bundles: OpBundles, name: str):
    if name in OF_OTHERS or (op_bundles.on != "gpu" and name not in EMULATED):
        pytest.skip("it has no cases of its own" if name in OF_OTHERS else "the release check runs it")
    bundle = op_bundles.with_vectors(name, EMULATED.get(name, ""))
    report = bundle.selftest()
    assert report.passed, [result for result in report.results if not result.passed]
    assert {result.op for result in report.results} == set(bundle.ops)
