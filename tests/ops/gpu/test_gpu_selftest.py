"""The self-test of the shipped bundles on a real GPU: what a user of a bundle runs."""

from __future__ import annotations

import pytest

from aot_runtime import Bundle

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "name", ("attention", "attention_mods", "attention_quantised", "decode", "gemm", "memory", "rows")
)
def test_selftest(request: pytest.FixtureRequest, name: str):
    bundle: Bundle = request.getfixturevalue(name)
    report = bundle.selftest()
    assert report.passed, [result for result in report.results if not result.passed]
    assert {result.op for result in report.results} == set(bundle.ops)
