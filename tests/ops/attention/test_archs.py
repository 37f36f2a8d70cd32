"""Attention from the code objects of the other architectures that the emulator has."""

from __future__ import annotations

import pytest

from tests.ops.attention.calls import check
from tests.ops.attention.cases import Case, make_call

pytestmark = pytest.mark.on("emulator")

CASES = [
    Case(mask, (dim, dim), lengths=lengths, dtype=dtype)
    for dim in (64, 32, 128, 256, 31, 127, 255, 63)
    for mask, lengths in (("b", (130, 50)), ("0", (100, 130))) for dtype in ("float16", "bfloat16")
]  # fmt: skip


@pytest.mark.parametrize(
    "case", (Case("b", lengths=(60, 50)), *(pytest.param(case, marks=pytest.mark.slow) for case in CASES)), ids=str
)
@pytest.mark.parametrize("arch", ("gfx90a", "gfx950", "gfx1100", "gfx1201"))
def test_matches_the_reference(arch: str, case: Case):
    from tests.support.emulation.bundling import on_demand

    bundle = on_demand("attention", "op=flash_attention", arch)
    check(bundle, make_call(case))
    product = "v_mfma" if arch.startswith("gfx9") else "v_wmma"
    assert any(name.startswith(product) for name in bundle.device.driver.last.summary.mnemonics)
