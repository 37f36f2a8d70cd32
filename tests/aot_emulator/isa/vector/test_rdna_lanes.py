"""Moves between lanes on RDNA: DPP, permutations of rows, single lanes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.emulation.machine import Machine, integers
from tests.support.emulation.registers import RDNA, assert_same, get

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


# Moves between lanes

LANE = np.arange(32)


@pytest.mark.parametrize("arch", RDNA)
@pytest.mark.parametrize(
    "control,source",
    [
        ("quad_perm:[3,1,0,2]", LANE & ~3 | np.array([3, 1, 0, 2])[LANE & 3]),
        ("row_shl:1", np.where(LANE % 16 < 15, LANE + 1, -1)),
        ("row_shr:3", np.where(LANE % 16 >= 3, LANE - 3, -1)),
        ("row_ror:5", LANE & 16 | LANE - 5 & 15),
        ("row_mirror", LANE & 16 | 15 - LANE & 15),
        ("row_half_mirror", LANE & 24 | 7 - LANE & 7),
        ("row_share:6", LANE & 16 | 6),
        ("row_xmask:9", LANE ^ 9),
    ],
)
def test_dpp16(control: str, source: np.ndarray, arch: str):
    machine = Machine(arch=arch)
    a, b = machine.v[8], machine.v[9] = integers(0, (4, 32)), integers(1, (4, 32))
    machine.v[2:6] = 7
    masks = "row_mask:0xf bank_mask:0xf"
    inactive = np.isin(LANE, (4, 21))
    machine.set_exec(int((~inactive * (1 << LANE)).sum()))
    machine.execute(f"v_mov_b32_dpp v2, v8 {control} {masks}", f"v_mov_b32_dpp v3, v8 {control} {masks} bound_ctrl:1",
                    f"v_mov_b32_dpp v4, v8 {control} {masks} fi:1", f"v_sub_nc_u32_dpp v5, v8, v9 {control} row_mask:0x2 bank_mask:0x5")  # fmt: skip
    there = source >= 0
    readable = there & ~inactive[source]
    moved = a[:, source]
    np.testing.assert_array_equal(machine.v[2], np.where(readable & ~inactive, moved, 7))
    np.testing.assert_array_equal(machine.v[3], np.where(inactive, 7, np.where(readable, moved, 0)))
    np.testing.assert_array_equal(machine.v[4], np.where(there & ~inactive, moved, 7))
    enabled = (LANE >= 16) & (LANE // 4 % 2 == 0) & readable & ~inactive
    np.testing.assert_array_equal(machine.v[5], np.where(enabled, moved - b, 7))


@pytest.mark.parametrize("arch", RDNA)
def test_dpp_in_long_encodings(arch: str):
    machine = Machine(arch=arch)
    a, b = (np.random.default_rng(i).standard_normal((4, 32)).astype(np.float32) for i in range(2))
    machine.v[8], machine.v[9] = a.view(np.uint32), b.view(np.uint32)
    masks = "row_mask:0xf bank_mask:0xf"
    machine.execute(f"v_fma_f32_e64_dpp v2, -v8, |v9|, v9 row_xmask:1 {masks}",
                    f"v_cmp_gt_f32_e64_dpp s4, v8, v9 row_xmask:1 {masks}",
                    f"v_cmp_gt_f32_dpp vcc_lo, v8, v9 row_xmask:1 {masks}",
                    f"v_add_f16_dpp v3.h, v8.l, v9.h row_xmask:1 {masks}")  # fmt: skip
    moved = a[:, LANE ^ 1]
    exact = -moved.astype(np.float64) * np.abs(b) + b
    np.testing.assert_allclose(machine.v[2].view(np.float32), exact, rtol=1e-7, atol=1e-7)
    for register in (4, 106):
        np.testing.assert_array_equal(machine.lanes(register), moved > b)
    with np.errstate(all="ignore"):
        want = np.ascontiguousarray(moved).view(np.float16)[:, ::2] + b.view(np.float16)[:, 1::2]
    assert_same(get(machine, 3, np.dtype(np.float16), 1), want)


@pytest.mark.parametrize("arch", RDNA)
def test_dpp8(arch: str):
    machine = Machine(arch=arch)
    a = machine.v[8] = integers(0, (4, 32))
    chosen = np.array([7, 0, 0, 3, 2, 5, 5, 1])
    source = LANE & 24 | chosen[LANE & 7]
    inactive = np.isin(LANE, (3, 17))
    machine.set_exec(int((~inactive * (1 << LANE)).sum()))
    machine.v[2:4] = 7
    text = "dpp8:[" + ",".join(map(str, chosen)) + "]"
    machine.execute(f"v_mov_b32_dpp v2, v8 {text}", f"v_mov_b32_dpp v3, v8 {text} fi:1")
    np.testing.assert_array_equal(machine.v[2], np.where(inactive, 7, np.where(inactive[source], 0, a[:, source])))
    np.testing.assert_array_equal(machine.v[3], np.where(inactive, 7, a[:, source]))


@pytest.mark.parametrize("arch", RDNA)
@pytest.mark.parametrize("name,other", [("v_permlane16_b32", 0), ("v_permlanex16_b32", 16)])
def test_permutations_of_rows(name: str, other: int, arch: str):
    machine = Machine(arch=arch)
    a = machine.v[8] = integers(0, (4, 32))
    low, high = machine.s[4], machine.s[5] = integers(1, (4,)), integers(2, (4,))
    machine.s[6], machine.s[7], machine.s[8], machine.s[9] = 0x76543210, 0xFEDCBA98, 0x89ABCDEF, 0x01234567
    machine.v[2:7] = 7
    machine.execute(f"{name} v2, v8, s4, s5", f"{name} v3, v8, s6, s7")
    for wave in range(4):
        place = [(int(low[wave]) | int(high[wave]) << 32) >> 4 * (lane % 16) & 15 for lane in range(32)]
        np.testing.assert_array_equal(machine.v[2, wave], a[wave, (LANE & 16 ^ other) + place])
    np.testing.assert_array_equal(machine.v[3], a[:, LANE ^ other])
    inactive = np.isin(LANE, (4, 21))
    machine.set_exec(int((~inactive * (1 << LANE)).sum()))
    reversed_ = (LANE & 16 ^ other) + 15 - LANE % 16
    selector = "s8, s9"
    machine.execute(f"{name} v4, v8, {selector}", f"{name} v5, v8, {selector} op_sel:[1,0]",
                    f"{name} v6, v8, {selector} op_sel:[0,1]")  # fmt: skip
    moved, unread = a[:, reversed_], inactive[reversed_]
    np.testing.assert_array_equal(machine.v[4], np.where(unread | inactive, 7, moved))
    np.testing.assert_array_equal(machine.v[5], np.where(inactive, 7, moved))
    np.testing.assert_array_equal(machine.v[6], np.where(inactive, 7, np.where(unread, 0, moved)))


@pytest.mark.parametrize("arch", RDNA)
def test_single_lanes(arch: str):
    machine = Machine(arch=arch)
    a = machine.v[8] = integers(0, (4, 32))
    machine.v[2] = 7
    machine.s[4], machine.s[125] = np.arange(4) + 30, 33  # beyond 31 the number wraps
    machine.set_exec(0xFFFFFF00)
    machine.execute("v_readlane_b32 s6, v8, s4", "v_readfirstlane_b32 s7, v8", "v_writelane_b32 v2, s4, m0",
                    "v_mbcnt_lo_u32_b32 v3, -1, 5", "v_mbcnt_hi_u32_b32 v4, -1, v3", "v_permlane64_b32 v5, v8")  # fmt: skip
    np.testing.assert_array_equal(machine.s[6], a[np.arange(4), (np.arange(4) + 30) % 32])
    np.testing.assert_array_equal(machine.s[7], a[:, 8])
    np.testing.assert_array_equal(machine.v[2, :, 1], machine.s[4])
    assert (machine.v[2, :, 2:] == 7).all()
    np.testing.assert_array_equal(machine.v[3, :, 8:], np.broadcast_to(LANE + 5, (4, 32))[:, 8:])
    np.testing.assert_array_equal(machine.v[4, :, 8:], machine.v[3, :, 8:])
