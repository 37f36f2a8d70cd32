"""Multi-head latent attention on a real GPU."""

from __future__ import annotations

import pytest

from aot_runtime import Bundle
from tests.ops.attention.latent import CASES, Latent, check, make_call

pytestmark = pytest.mark.gpu

LONG = [
    Latent(dims, lengths, 4, causal, dtype)
    for dims in ((128, 128, 64, 512), (64, 64, 32, 256), (100, 80, 48, 400), (33, 100, 17, 300))
    for lengths in ((700, 1000), (1000, 300))
    for causal in (False, True) for dtype in ("float16", "bfloat16")
]  # fmt: skip


@pytest.mark.parametrize("case", [*CASES, *LONG], ids=str)
def test_matches_both_formulas(attention: Bundle, case: Latent):
    check(attention, make_call(case))
