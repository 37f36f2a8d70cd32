"""Moves between lanes, and to and from single lanes; DPP; registers and halves accessed by an instruction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aot_emulator.errors import UnsupportedInstructionError
from tests.support.emulation.machine import ACTIVE, LANE, OLD, RDNA, WAVE64, Machine, every_isa, every_width, is_rdna
from tests.support.emulation.values import assert_same, edge_floats, integers, mnemonics


@every_isa
def test_only_active_lanes_are_written(arch: str):
    machine, half = Machine(arch).fill({8: 3.5}), ".l" if is_rdna(arch) else ""
    machine.activate(ACTIVE)
    machine.execute("v_mov_b32 v2, 9", "v_mul_f64 v[4:5], v[8:9], v[8:9]", f"v_cvt_f16_f32 v6{half}, 1.0")
    machine.expect({2: np.where(ACTIVE, 9, OLD)})
    assert (machine.get(4, np.float64)[ACTIVE] == 12.25).all() and (machine.get(6, np.float16)[ACTIVE] == 1).all()
    assert (machine.get(5)[~ACTIVE] == OLD).all() and (machine.get(6)[~ACTIVE] == OLD).all()


@every_isa
def test_single_lanes(arch: str):
    """The lane's number counts modulo the number of lanes. v_writelane ignores EXEC; with no active lane, the first is
    read."""
    machine = Machine(arch).fill({1: integers(0), 2: integers(1)})
    (waves, lanes), a, before = machine.shape, machine.v[1], machine.v[2].copy()
    machine.s[5] = picked = np.arange(waves) * 37 + lanes - 2
    machine.s[125 if is_rdna(arch) else 124] = 19
    machine.activate(ACTIVE)
    machine.execute("v_readlane_b32 s6, v1, s5", "v_readlane_b32 s7, v1, 17", "v_readfirstlane_b32 s8, v1",
                    "v_writelane_b32 v2, 17, s5", "v_writelane_b32 v2, s7, m0")  # fmt: skip
    wave, first = np.arange(waves), ACTIVE.reshape(machine.shape).argmax(1)
    np.testing.assert_array_equal(machine.s[6:9], [a[wave, picked % lanes], a[:, 17], a[wave, first]])
    before[wave, picked % lanes] = 17
    before[:, 19] = machine.s[7]
    np.testing.assert_array_equal(machine.v[2], before)


@every_isa
def test_swaps(arch: str):
    a, b = integers(0), integers(1)
    machine = Machine(arch).fill({1: a, 2: b, 8: 0x11112222, 9: 0x33334444})
    machine.activate(ACTIVE)
    machine.execute("v_swap_b32 v1, v2")
    machine.expect({1: np.where(ACTIVE, b, a), 2: np.where(ACTIVE, a, b)})
    if is_rdna(arch):
        machine.execute("v_swap_b16 v8.h, v9.l")
        machine.expect({8: np.where(ACTIVE, 0x44442222, 0x11112222), 9: np.where(ACTIVE, 0x33331111, 0x33334444)})


def test_accumulation_registers_come_after_the_ordinary_ones():
    machine = Machine().fill({1: integers(0)})
    machine.execute("v_accvgpr_write_b32 a5, v1", "v_accvgpr_mov_b32 a6, a5", "v_accvgpr_read_b32 v9, a6",
                    "v_accvgpr_write_b32 a7, -3")  # fmt: skip
    machine.expect({9: integers(0), 64 + 7: np.full(256, -3)})


@pytest.mark.parametrize("width", (16, 32))
@pytest.mark.parametrize("form", ("", "_e64"))
def test_swap_of_rows(width: int, form: str):
    """Odd rows of the first register and even rows of the second change places."""
    (first, second), odd = integers(width, 2, 256), LANE // width % 2 == 1
    machine = Machine("gfx950").fill({2: first, 3: second}).execute(f"v_permlane{width}_swap_b32{form} v2, v3")
    after = np.where(odd, second[LANE - width], first), np.where(odd, second, first[(LANE + width) % 256])
    machine.expect(dict(zip((2, 3), after, strict=True)))


@every_width
def test_registers_whose_numbers_are_relative(arch: str):
    a, b = integers(0), integers(1)
    machine = Machine(arch).fill({10: a, 11: b})
    by_wave = np.arange(machine.shape[0]) % 2
    machine.s[125] = by_wave
    machine.activate(ACTIVE)
    machine.execute("v_movrels_b32 v2, v10", "v_movreld_b32 v4, v10", "v_movreld_b32 v6, 7")
    odd = np.repeat(by_wave, machine.shape[1]) == 1
    wanted = {2: np.where(odd, b, a), 4: np.where(odd, OLD, a), 5: np.where(odd, a, OLD), 6: np.where(odd, OLD, 7)}
    machine.expect({number: np.where(ACTIVE, want, OLD) for number, want in wanted.items()})
    machine.s[125] = 100
    with pytest.raises(UnsupportedInstructionError, match="register v110: the kernel has 64 of them"):
        machine.execute("v_movrels_b32 v2, v10")


@every_width
def test_exchange_of_the_halves_of_a_wavefront(arch: str):
    """With 64 lanes, inactive lanes are read; with 32, nothing is done."""
    a = integers(0)
    machine = Machine(arch).fill({8: a})
    machine.activate(ACTIVE)
    machine.execute("v_permlane64_b32 v2, v8", "v_permlane64_b32 v8, v8")
    written = ACTIVE & (machine.arch.lanes == 64)
    machine.expect({2: np.where(written, a[LANE ^ 32], OLD), 8: np.where(written, a[LANE ^ 32], a)})


@pytest.mark.parametrize("name,other", [("v_permlane16_b32", 0), ("v_permlanex16_b32", 16)])
@every_width
def test_permutations_of_rows(arch: str, name: str, other: int):
    """op_sel's first bit lets inactive lanes be read; its second makes them give 0."""
    a = integers(0)
    machine = Machine(arch).fill({8: a})
    machine.s[4:6] = low, high = integers(1, 2, len(machine.v[0])).astype(np.uint64)
    machine.s[6], machine.s[7] = 0x89ABCDEF, 0x01234567
    machine.execute(f"{name} v2, v8, s4, s5")
    place = (
        (low | high << np.uint64(32))[LANE // machine.arch.lanes] >> (LANE % 16 * 4).astype(np.uint64) & np.uint64(15)
    ).astype(int)
    machine.expect({2: a[(LANE & ~15 ^ other) + place]})
    machine.activate(ACTIVE)
    machine.execute(
        f"{name} v4, v8, s6, s7", f"{name} v5, v8, s6, s7 op_sel:[1,0]", f"{name} v6, v8, s6, s7 op_sel:[0,1]"
    )
    source = (LANE & ~15 ^ other) + 15 - LANE % 16
    for number, unread in ((4, OLD), (5, a[source]), (6, 0)):
        machine.expect({number: np.where(ACTIVE, np.where(ACTIVE[source], a[source], unread), OLD)})


Source = Callable[[int], int | None]
DPP: dict[str, Source] = {
    "quad_perm:[3,0,2,1]": lambda i: (i & ~3) + (3, 0, 2, 1)[i & 3], "row_mirror": lambda i: i // 16 * 16 + 15 - i % 16,
    "row_shl:3": lambda i: i + 3 if i % 16 < 13 else None, "row_shr:1": lambda i: i - 1 if i % 16 else None,
    "row_shr:15": lambda i: i - 15 if i % 16 == 15 else None, "row_ror:5": lambda i: i // 16 * 16 + (i - 5) % 16,
    "row_half_mirror": lambda i: i // 8 * 8 + 7 - i % 8,
}  # fmt: skip
"""For each lane of a wavefront, the one that it reads."""
DPP_OF_CDNA: dict[str, Source] = {
    "wave_shl:1": lambda i: i + 1 if i < 63 else None, "wave_shr:1": lambda i: i - 1 if i else None,
    "wave_rol:1": lambda i: (i + 1) % 64, "wave_ror:1": lambda i: (i - 1) % 64,
    "row_bcast:15": lambda i: i // 16 * 16 - 1 if i > 15 else None, "row_bcast:31": lambda i: 31 if i > 31 else None,
    "row_newbcast:6": lambda i: i // 16 * 16 + 6,
}  # fmt: skip
DPP_OF_RDNA: dict[str, Source] = {"row_share:6": lambda i: i // 16 * 16 + 6, "row_xmask:9": lambda i: i ^ 9}
DPP_FORMS = [(arch, control, source) for arch in ("gfx942", *RDNA, WAVE64)
             for control, source in {**DPP, **(DPP_OF_RDNA if is_rdna(arch) else DPP_OF_CDNA)}.items()]  # fmt: skip


@pytest.mark.parametrize("bound", (False, True), ids=("kept", "zero"))
@pytest.mark.parametrize("arch,control,source", DPP_FORMS)
def test_dpp(arch: str, control: str, source: Source, bound: bool):
    """Some lanes are inactive, and v2 is its own source; the subtraction's other source is not permuted."""
    a, b = integers(0), integers(1)
    for rows, banks in ((0xF, 0xF), (0xA, 0xF), (0xF, 0x5), (0x3, 0xC)):
        machine = Machine(arch).fill({2: a, 3: b})
        machine.activate(ACTIVE)
        text = f"row_mask:{rows:#x} bank_mask:{banks:#x}{' bound_ctrl:1' if bound else ''}"
        machine.execute(f"{mnemonics(arch)['v_sub_u32']}_dpp v4, v2, v3 {control} {text}",
                        *([f"v_mov_b32_dpp v5, v2 {control} {text} fi:1"] if is_rdna(arch) else []),
                        f"v_mov_b32_dpp v2, v2 {control} {text}")  # fmt: skip
        lanes = machine.arch.lanes
        origins = [source(lane) for lane in range(lanes)] * (256 // lanes)
        there = np.array([x is not None for x in origins])
        origin = np.array([x or 0 for x in origins]) + LANE // lanes * lanes
        enabled = ACTIVE & (rows >> LANE % lanes // 16 & banks >> LANE // 4 % 4 & 1 == 1)
        for valid, registers in ((there & ACTIVE[origin], (2, 4)), (there, (5,))):  # with fi inactive lanes are read
            moved = np.where(valid, a[origin], 0)
            wanted = {2: (moved, a), 4: (moved - b, OLD), 5: (moved, OLD)}
            for number in registers if is_rdna(arch) or 5 not in registers else ():
                machine.expect({number: np.where(enabled & (valid | bound), *wanted[number])})


@every_width
def test_dpp8(arch: str):
    a, source = integers(0), LANE & ~7 | np.array([7, 0, 0, 3, 2, 5, 5, 1])[LANE & 7]
    machine, text = Machine(arch).fill({8: a}), "dpp8:[7,0,0,3,2,5,5,1]"
    machine.activate(ACTIVE)
    machine.execute(f"v_mov_b32_dpp v2, v8 {text}", f"v_mov_b32_dpp v3, v8 {text} fi:1")
    seen = np.where(ACTIVE[source], a[source], 0)
    machine.expect({2: np.where(ACTIVE, seen, OLD), 3: np.where(ACTIVE, a[source], OLD)})


def test_dpp_signs():
    a = edge_floats(0, np.float32)
    machine = Machine().fill({2: a}).execute("v_add_f32_dpp v3, -v2, |v2| row_ror:4 row_mask:0xf bank_mask:0xf")
    machine.expect({3: -a[LANE & ~15 | LANE - 4 & 15] + np.abs(a)})


@every_width
def test_dpp_in_long_encodings(arch: str):
    a, b = (np.random.default_rng(seed).standard_normal(256).astype(np.float32) for seed in range(2))
    machine, tail = Machine(arch).fill({8: a, 9: b}), "row_xmask:1 row_mask:0xf bank_mask:0xf"
    machine.execute(f"v_fma_f32_e64_dpp v2, -v8, |v9|, v9 {tail}", f"v_cmp_gt_f32_e64_dpp {machine.mask(4)}, v8, v9 {tail}",
                    f"v_cmp_gt_f32_dpp {machine.mask(106)}, v8, v9 {tail}", f"v_add_f16_dpp v3.h, v8.l, v9.h {tail}")  # fmt: skip
    moved = a[LANE ^ 1]
    machine.expect({2: (-moved.astype(np.float64) * np.abs(b) + b).astype(np.float32)}, {4: moved > b, 106: moved > b})
    assert_same(machine.get(3, np.float16, 1), moved.view(np.float16)[::2] + b.view(np.float16)[1::2])
