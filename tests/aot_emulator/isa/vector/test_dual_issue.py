"""VOPD: pairs of instructions on RDNA."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.emulation.machine import Machine, every_rdna
from tests.support.emulation.values import assert_same, integers

# Of some the second reads what the first writes, or both do.
PAIRS = """
v_dual_mov_b32 v2, v9 :: v_dual_mov_b32 v3, v8
v_dual_mov_b32 v8, v9 :: v_dual_mov_b32 v9, v8
v_dual_mov_b32 v8, v3 :: v_dual_add_f32 v9, v8, v10
v_dual_add_f32 v9, v8, v10 :: v_dual_mov_b32 v8, v3
v_dual_fmac_f32 v8, v9, v10 :: v_dual_fmac_f32 v9, v8, v3
v_dual_fmamk_f32 v2, v8, 0x40490fdb, v9 :: v_dual_fmaak_f32 v3, v10, v9, 0x40490fdb
v_dual_mul_f32 v2, s4, v9 :: v_dual_mul_dx9_zero_f32 v3, v8, v11
v_dual_sub_f32 v2, 0.5, v9 :: v_dual_subrev_f32 v3, v8, v11
v_dual_cndmask_b32 v2, v8, v9 :: v_dual_cndmask_b32 v3, v10, v11
v_dual_max_f32 v2, v8, v9 :: v_dual_min_f32 v3, v10, v11
v_dual_mov_b32 v2, 0x1234 :: v_dual_add_nc_u32 v3, 0x1234, v10
v_dual_mov_b32 v2, 5 :: v_dual_and_b32 v3, v8, v11
v_dual_mov_b32 v2, 5 :: v_dual_lshlrev_b32 v3, v8, v11
v_dual_dot2acc_f32_f16 v2, v8, v9 :: v_dual_dot2acc_f32_f16 v3, v10, v11
""".strip().split("\n")


def alone(machine: Machine, part: str) -> Machine:
    """Execute one instruction of a pair."""
    if "dot2acc" not in part:  # which there is no other encoding of on gfx12
        return machine.execute(part.replace("v_dual_", "v_") + (", vcc_lo" if "cndmask" in part else ""))
    row, a, b = (int(word.strip("v,")) for word in part.split()[1:])
    products = np.prod([machine.get(n, np.float16, count=2).astype(np.float64) for n in (a, b)], axis=0)
    total = (products[:, 0] + machine.get(row, np.float32)).astype(np.float32)
    machine.put(row, (products[:, 1] + total).astype(np.float32))
    return machine


@pytest.mark.parametrize("pair", PAIRS)
@every_rdna
def test_pairs_read_before_they_write(arch: str, pair: str):
    """The pair does what its parts do by themselves from the same state."""

    def filled() -> Machine:
        machine = Machine(arch)
        machine.v[:12] = integers(3, 12, *machine.shape) & 0xBFFFFFFF
        machine.s[4], machine.s[106] = np.float32(1.5).view(np.uint32), 0x0FF0A5A5
        return machine

    if arch == "gfx1201":
        pair = pair.replace("max_f32", "max_num_f32").replace("min_f32", "min_num_f32")
    both, before = filled().execute(pair), filled().v
    changed = set()
    for part in pair.split(" :: "):
        row = int(part.split()[1].strip("v,"))
        want = alone(filled(), part)
        changed.add(row)
        assert_same(both.get(row, np.float32), want.get(row, np.float32), part)
    assert set(np.flatnonzero((both.v != before).any(axis=(1, 2)))) <= changed
