"""The selftest of the shipped bundles: what a user of a bundle runs. On a GPU the whole of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.op_bundles import OpBundles
from tests.support.session_builds import ROOT

WITHOUT_CASES = ("llama",)
EMULATED = {"decode": "op=paged_attention|append_kv,T=float16,C=float16,HEAD_DIM=64,GROUPS=4", "memory": ""}
"""Bundles, and filters of the part that does not take the emulator long."""


@pytest.mark.parametrize("path", sorted((ROOT / "manifests").glob("*.yaml")), ids=lambda path: path.stem)
def test_selftest(op_bundles: OpBundles, path: Path):
    if path.stem in WITHOUT_CASES:
        pytest.skip("its cases are those of the manifests that it includes")
    if op_bundles.on != "gpu" and path.stem not in EMULATED:
        pytest.skip("the release check runs it, as a whole")
    bundle = op_bundles.with_vectors(path.stem, EMULATED.get(path.stem, ""))
    report = bundle.selftest()
    assert report.passed, [result for result in report.results if not result.passed]
    assert {result.op for result in report.results} == set(bundle.ops)
