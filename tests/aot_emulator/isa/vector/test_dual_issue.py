"""VOPD: pairs of instructions on RDNA."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.emulation.machine import Machine, integers
from tests.support.emulation.registers import RDNA, assert_same

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize("arch", RDNA)
@pytest.mark.parametrize(
    "first,second",
    [
        ("v_dual_mov_b32 v2, v9", "v_dual_mov_b32 v3, v8"),
        ("v_dual_mov_b32 v8, v9", "v_dual_mov_b32 v9, v8"),  # exchanged
        ("v_dual_mov_b32 v8, v3", "v_dual_add_f32 v9, v8, v10"),  # the second reads what the first writes
        ("v_dual_add_f32 v9, v8, v10", "v_dual_mov_b32 v8, v3"),
        ("v_dual_fmac_f32 v8, v9, v10", "v_dual_fmac_f32 v9, v8, v3"),
        ("v_dual_fmamk_f32 v2, v8, 0x40490fdb, v9", "v_dual_fmaak_f32 v3, v10, v9, 0x40490fdb"),
        ("v_dual_mul_f32 v2, s4, v9", "v_dual_mul_dx9_zero_f32 v3, v8, v11"),
        ("v_dual_sub_f32 v2, 0.5, v9", "v_dual_subrev_f32 v3, v8, v11"),
        ("v_dual_cndmask_b32 v2, v8, v9", "v_dual_cndmask_b32 v3, v10, v11"),
        ("v_dual_max_f32 v2, v8, v9", "v_dual_min_f32 v3, v10, v11"),
        ("v_dual_mov_b32 v2, 0x1234", "v_dual_add_nc_u32 v3, 0x1234, v10"),
        ("v_dual_mov_b32 v2, 5", "v_dual_and_b32 v3, v8, v11"),
        ("v_dual_mov_b32 v2, 5", "v_dual_lshlrev_b32 v3, v8, v11"),
        ("v_dual_dot2acc_f32_f16 v2, v8, v9", "v_dual_dot2acc_f32_f16 v3, v10, v11"),
    ],
)
def test_pairs_read_before_they_write(first: str, second: str, arch: str):
    """The pair does what its parts do by themselves from the same state."""
    machines = []
    for _ in range(3):
        machine = Machine(arch=arch)
        machine.v[:12] = integers(3, (12, 4, 32)) & 0xBFFFFFFF
        machine.s[4], machine.s[106] = np.float32(1.5).view(np.uint32), 0x0FF0A5A5
        machines.append(machine)
    pair, *parts = machines
    lines = [first, second]
    if arch == "gfx1201":
        lines = [line.replace("max_f32", "max_num_f32").replace("min_f32", "min_num_f32") for line in lines]
    names = [line.split()[0].replace("v_dual_", "v_") for line in lines]
    assert pair.execute(" :: ".join(lines)) is pair
    before = parts[0].v.copy()
    for part, line in zip(parts, lines, strict=True):
        if "dot2acc" in line:  # which there is no other encoding of on gfx12
            row, a, b = (int(word.strip("v,")) for word in line.split()[1:])
            halves = [part.v[n].view(np.float16).astype(np.float64) for n in (a, b)]
            with np.errstate(all="ignore"):
                low_products, high_products = (halves[0][:, i::2] * halves[1][:, i::2] for i in (0, 1))
                total = (low_products + part.v[row].view(np.float32)).astype(np.float32)
                total = (high_products + total).astype(np.float32)
            part.v[row] = total.view(np.uint32)
        else:
            text = line.replace("v_dual_", "v_")
            part.execute(text + (", vcc_lo" if "cndmask" in text else ""))
    for part, line in zip(parts, lines, strict=True):
        row = int(line.split()[1].strip("v,"))
        assert (part.v != before).any(axis=(1, 2)).tolist().count(True) <= 1
        assert_same(pair.v[row].view(np.float32), part.v[row].view(np.float32), names)
