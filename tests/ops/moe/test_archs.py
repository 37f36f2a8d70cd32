"""Mixtures of experts on the other architectures that the emulator has: a little of each kind of weights."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tinygrad", reason="the emulator needs the extra `emulator`")
pytest.importorskip("triton", reason="building bundles needs the extra `build`")

from tests.ops.moe.checking import check_moe, made, made_codes, made_scaled
from tests.support.dtypes import FP16, eight_bits
from tests.support.emulation.bundling import on_demand

pytestmark = [pytest.mark.on("emulator"), pytest.mark.slow]

DIMS = 5, 4, 2, 64, 48
"""Tokens, experts, topk, hidden, intermediate."""


@pytest.mark.parametrize("op", ("moe", "moe_scaled", "moe_block_scaled", "moe_int4", "moe_int8"))
@pytest.mark.parametrize("arch", ("gfx1201", "gfx950", "gfx90a", "gfx1100"))
def test_other_archs(arch: str, op: str):
    moe = on_demand("moe", "op=moe|moe_scaled|moe_block_scaled|moe_int4|moe_int8", arch)
    rng, float8 = np.random.default_rng(0), arch in ("gfx950", "gfx1201")
    if op == "moe_block_scaled" and not float8:
        pytest.skip(f"{arch} has no float8")
    if op == "moe":
        given = made(rng, *DIMS, FP16)
    elif op.endswith("scaled"):
        block = (128, 128) if "block" in op else None
        given = made_scaled(rng, eight_bits(moe, "e4m3" if float8 else "int8"), DIMS, FP16, block)
    else:
        given = made_codes(rng, 4 if op == "moe_int4" else 8, DIMS, FP16, (2, 1), with_zeros=op == "moe_int4")
    check_moe(moe, "silu", op, **given)
