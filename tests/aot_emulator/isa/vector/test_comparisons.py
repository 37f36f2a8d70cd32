"""Comparisons in each encoding, the lane masks that they write, and selection by a mask."""

from __future__ import annotations

import numpy as np
import pytest

from aot_emulator.isa.vector.compare import OPS
from tests.support.emulation.machine import ACTIVE, LANE, RDNA, WAVE64, Machine, every_isa, every_width, is_rdna
from tests.support.emulation.values import ORDERS, dtype_of, edge_floats, integers, mnemonics, sources_of, spelled

FORMS = [(name, arch) for name in OPS for arch in ("gfx942", *RDNA, WAVE64) if f"v_cmp_{name}" in mnemonics(arch)]


@pytest.mark.parametrize("name,arch", FORMS)
def test_comparison(name: str, arch: str):
    """The mask has 64 lanes or 32. v_cmpx writes EXEC, and on RDNA nothing else. Halves are high ones where there are
    any."""
    order, kind = name.split("_")
    a, b = sources_of((kind, kind))
    b = np.where(LANE % 3 == 0, a, b)
    half = int(is_rdna(arch))
    machine = Machine(arch).fill({(8, half): a, (12, half): b})
    a, b = (source.view(dtype_of(kind)) for source in (a, b))
    machine.activate(ACTIVE)
    machine.s[4:8] = machine.s[107] = 0x77777777
    sources = f"{spelled(kind, 8, half or None)}, {spelled(kind, 12, half or None)}"
    mnemonic = mnemonics(arch)[f"v_cmp_{name}"]
    machine.execute(f"{mnemonic} {machine.mask(106)}, {sources}", f"{mnemonic}_e64 {machine.mask(4)}, {sources}")
    want = ACTIVE & [ORDERS[order](x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    machine.expect({}, {106: want, 4: want})
    assert machine.arch.lanes == 64 or (machine.s[[5, 107]] == 0x77777777).all(), "a mask is one register"
    target = "" if is_rdna(arch) else f"{machine.mask(6)}, "
    machine.execute(f"{mnemonic.replace('cmp', 'cmpx')}_e64 {target}{sources}")
    machine.expect({}, {126: want} if is_rdna(arch) else {126: want, 6: want})
    assert not is_rdna(arch) or (machine.s[6] == 0x77777777).all()


@pytest.mark.parametrize("kind", ("f16", "f32", "f64"))
@every_isa
def test_classes(arch: str, kind: str):
    dtype, half = dtype_of(kind), int(is_rdna(arch))
    info, bits = np.finfo(dtype), np.dtype(f"u{dtype.itemsize}")
    ten = np.array([np.nan, np.nan, -np.inf, -1, -info.tiny / 2, -0.0, 0.0, info.tiny / 2, 1, np.inf], dtype).view(bits)
    ten[0] = ten[1] ^ bits.type(1 << info.nmant - 1) | bits.type(1)  # a signalling NaN
    masks = np.random.default_rng(0).integers(0, 1 << 10, 256).astype(np.uint16 if kind == "f16" else np.uint32)
    machine = Machine(arch).fill({(8, half): ten[LANE % 10], (12, half): masks})
    second = spelled("u16" if kind == "f16" else "u32", 12, half or None)
    machine.execute(f"v_cmp_class_{kind} {machine.mask(106)}, {spelled(kind, 8, half or None)}, {second}")
    machine.expect({}, {106: masks >> LANE % 10 & 1})


@every_width
def test_signs_and_no_target(arch: str):
    x, y = (edge_floats(seed, np.float32) for seed in range(2))
    machine = Machine(arch).fill({8: x, 9: y}).execute("v_cmp_lt_u32_e64 null, v8, v9", "v_cmpx_ngt_f32_e64 |v8|, -v9")
    machine.expect({}, {126: ~(np.abs(x) > -y)})
    assert (machine.s[:106] == 0xFFFFFFFF).all() and (machine.s[106:108] == 0xFFFFFFFF).all()


@every_isa
def test_selection_by_a_mask(arch: str):
    a, b = integers(0), integers(1)
    first, second = (np.random.default_rng(seed).random(256) < 0.5 for seed in range(2))
    machine = Machine(arch).fill({8: a, 9: b})
    machine.s[[5, 107]] = 0x12345678
    machine.set_lanes(4, first)
    machine.set_lanes(106, second)
    machine.execute(
        f"v_cndmask_b32 v2, v8, v9, {machine.mask(106)}", f"v_cndmask_b32_e64 v3, v8, v9, {machine.mask(4)}",
        f"v_cndmask_b32_e64 v4, 0, 1, {machine.mask(106)}", f"v_cndmask_b32_e64 v5, -v8, |v9|, {machine.mask(4)}",
    )  # fmt: skip
    signs = np.where(first, b & 0x7FFFFFFF, a ^ 0x80000000)
    machine.expect({2: np.where(second, b, a), 3: np.where(first, b, a), 4: second, 5: signs})
    if is_rdna(arch):
        machine.v[6] = 0x5555
        machine.execute(f"v_cndmask_b16 v6.h, v8.l, v9.h, {machine.mask(4)}", "v_cndmask_b32_e64 v7, v8, v9, null")
        machine.expect({6: np.where(first, b >> 16, a & 0xFFFF) << 16 | 0x5555, 7: a})
