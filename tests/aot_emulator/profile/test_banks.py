"""Bank conflicts against numbers computed by hand, and against a model that goes bank by bank."""

from __future__ import annotations

import numpy as np
import pytest

from aot_emulator.profile.banks import count_passes
from tests.support.emulation.assembled import counted

LANES = np.arange(64)[None]


def passes(addresses: np.ndarray, nbytes: int, action: str = "load", banks: int = 32, lanes=None) -> tuple[int, int]:
    found = count_passes(banks, action, np.asarray(addresses, np.int64), nbytes, lanes)  # type: ignore[arg-type]
    return found.taken, found.least


LEAST = {1: 2, 2: 2, 4: 2, 8: 4, 12: 8, 16: 8}
BY_STRIDE = {
    (4, 4): 2,  # consecutive dwords: 32 lanes a pass
    (4, 0): 2,  # all the same dword: served at once
    (4, 8): 4,  # every other bank: 2-way
    (4, 128): 64,  # one bank: 32-way
    (4, 132): 2,  # a row of 33 dwords: no two lanes in one bank
    (2, 2): 2,  # two lanes in a dword
    (1, 1): 2,
    (8, 8): 4,  # 16 lanes a pass
    (8, 128): 64,
    (12, 12): 8,  # 8 lanes a pass
    (16, 16): 8,
    (16, 64): 32,
}
"""(bytes, stride): passes"""
# Lanes 0 to 3 and 4 to 7 in the same banks, in other rows; likewise all further pairs of fours.
FOURS = (LANES % 4) * 16 + (LANES // 4) * 1024 + np.isin(LANES // 4 % 8, (5, 4, 7, 6)) * 64


def test_passes():
    for (nbytes, stride), wanted in BY_STRIDE.items():
        assert passes(LANES * stride, nbytes, "store") == (wanted, LEAST[nbytes]), (nbytes, stride)
    # Wide loads go by lanes 0 to 3 with 20 to 23.
    assert (passes(FOURS, 16), passes(FOURS, 16, "store")) == ((8, 8), (16, 8))
    # Atomics of one dword take turns.
    assert (passes(LANES * 0, 4, "atomic"), passes(LANES * 4, 4, "atomic")) == ((64, 2), (2, 2))
    # Inactive lanes ask for nothing.
    assert passes(LANES * 8, 4, lanes=LANES % 32 < 16) == (2, 2)  # without the others, whose banks are the same
    assert passes(LANES * 128, 4, lanes=LANES == 7) == (1, 1)
    assert passes(LANES * 128, 4, lanes=LANES < 32) == (32, 1)
    # Unaligned accesses reach one dword more: 33 dwords over 32 banks.
    assert passes(LANES * 4 + 2, 4) == (4, 2)


@pytest.mark.parametrize("nbytes,least", [(4, 1), (8, 2), (16, 4)])
def test_64_banks_or_32_lanes(nbytes: int, least: int):
    assert passes(LANES * nbytes, nbytes, banks=64) == (least, least)
    assert passes(LANES * 256, nbytes, banks=64)[0] == 64
    assert passes(LANES[:, :32] * nbytes, nbytes) == (least, least)
    assert passes(LANES[:, :32] * 128, nbytes) == (32, least)


def by_hand(addresses: np.ndarray, nbytes: int, groups: list[list[int]], atomic: bool, active: np.ndarray) -> int:
    total = 0
    for row, on in zip(addresses, active, strict=True):
        for group in groups:
            dwords = [row[lane] // 4 + word for lane in group if on[lane] for word in range(nbytes // 4)]
            served = dwords if atomic else set(dwords)
            total += max((sum(dword % 32 == bank for dword in served) for bank in range(32)), default=0)
    return total


@pytest.mark.parametrize("action", ("load", "store", "atomic"))
@pytest.mark.parametrize("nbytes,together", ((4, 32), (8, 16), (16, 8)))
def test_against_a_plain_model(nbytes: int, together: int, action: str):
    rng = np.random.default_rng(nbytes)
    addresses, active = rng.integers(0, 64, (5, 64)) * nbytes, rng.random((5, 64)) < 0.7
    groups = [list(range(first, first + together)) for first in range(0, 64, together)]
    if (nbytes, action) == (16, "load"):
        starts = ((0, 20), (4, 16), (8, 28), (12, 24))
        groups = [[half + start + lane for start in pair for lane in range(4)] for half in (0, 32) for pair in starts]
    found, _ = passes(addresses, nbytes, action, lanes=active)
    assert found == by_hand(addresses, nbytes, groups, action == "atomic", active)


# (stride, instruction): conflicts
CONFLICTS = {
    (8, "ds_write_b32 v1, v2"): 2, (128, "ds_read_b32 v4, v1"): 62, (8, "ds_read_b64 v[4:5], v1"): 0,
    (128, "ds_write_b64 v1, v[2:3]"): 60, (16, "ds_read_b128 v[4:7], v1"): 0, (128, "ds_write_b128 v1, v[2:5]"): 56,
    (0, "ds_add_u32 v1, v2"): 62, (4, "ds_read2_b32 v[4:5], v1 offset0:0 offset1:1"): 0,
    (8, "ds_write2_b32 v1, v2, v3 offset0:0 offset1:1"): 4,
}  # fmt: skip


@pytest.mark.parametrize("stride,line", CONFLICTS)
def test_instructions(stride: int, line: str):
    found = counted(f"v_mul_u32_u24 v1, {stride}, v0", line, workgroups=3)
    (access,) = (count for (space, _), count in found.summary.accesses.items() if space == "lds")
    assert access.conflicts == 3 * CONFLICTS[stride, line]
