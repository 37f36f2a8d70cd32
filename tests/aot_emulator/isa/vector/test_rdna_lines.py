"""Whole lines of RDNA's vector ALU against CDNA's, with masks of 32 lanes; comparisons."""

from __future__ import annotations

import numpy as np
import pytest
from aot_emulator.isa.archs import ARCHS
from aot_emulator.isa.vector import compare, packed_math

from tests.support.emulation.machine import Machine, edge_floats, integers
from tests.support.emulation.registers import RDNA, SHAPE, assert_same, dtype_of, mnemonics, put, sources_of, spelled

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


CLASSES = tuple(f"v_cmp_class_{kind}" for kind in ("f16", "f32", "f64"))


# Whole lines, with masks of lanes


def division(kind: str) -> tuple[str, ...]:
    n, d, ds, ns, r, q, e, out = (spelled(kind, number) for number in (8, 12, 16, 20, 24, 28, 32, 2))
    return (f"v_div_scale_{kind} {ds}, {{m4}}, {d}, {d}, {n}", f"v_div_scale_{kind} {ns}, {{vcc}}, {n}, {d}, {n}",
            f"v_rcp_{kind} {r}, {ds}", f"v_mul_{kind} {q}, {ns}, {r}", f"v_fma_{kind} {e}, -{ds}, {q}, {ns}",
            f"v_div_fmas_{kind} {q}, {e}, {r}, {q}", f"v_div_fixup_{kind} {out}, {q}, {d}, {n}")  # fmt: skip


def packed_line(name: str) -> str:
    count = 3 if "_dot" in name or "_fma_" in name or "_mad_" in name else 2
    return f"{name} v2, {', '.join(f'v{8 + 4 * i}' for i in range(count))}"


LINES: list[tuple[str, tuple[str, ...]]] = [
    *(("u32", (f"v_{name}_co_u32_e64 v2, {{m22}}, v8, v12",)) for name in ("add", "sub", "subrev")),
    *(("u32", (f"v_{name}_co_u32_e64 v2, {{m22}}, v8, v12, {{m20}}",))
      for name in ("addc", "subb", "subbrev")),
    *(("u32", (f"v_mad_{form} v[2:3], {{m22}}, v8, v9, v[12:13]",)) for form in ("u64_u32", "i64_i32")),
    *((kind, division(kind)) for kind in ("f32", "f64")),
    ("u32", ("v_cndmask_b32_e64 v2, v8, v12, {m20}", "v_cndmask_b32_e64 v3, 1.0, v12, {m20}")),
    *(("f16" if "f16" in name else "u32", (packed_line(name),)) for name in (*packed_math._HALVES, *packed_math._DOTS)
      if name != "v_dot2_f32_bf16"),
    ("f16", ("v_pk_min_f16 v2, v8, v12 neg_lo:[1,0] neg_hi:[1,0]", "v_pk_mul_f16 v3, v8, v12 op_sel:[0,1] op_sel_hi:[1,0]")),
    ("f16", ("v_fma_mix_f32 v2, v8, v12, v16 op_sel:[1,0,1] op_sel_hi:[1,1,1]",)),
    ("f16", ("v_fma_mixhi_f16 v2, v8, v12, v16 op_sel_hi:[1,1,1]", "v_fma_mixlo_f16 v3, v8, v12, v16 op_sel_hi:[1,1,1]")),
]  # fmt: skip


def has(arch: str, lines: tuple[str, ...]) -> bool:
    return all(line.split()[0].removesuffix("_e64") in mnemonics(arch) or "_mix" in line for line in lines)


@pytest.mark.parametrize("arch,kind,lines", [
    (arch, kind, lines) for arch in RDNA for kind, lines in LINES if has(arch, lines) and has("gfx942", lines)
], ids=lambda value: value[0].split(",")[0] if isinstance(value, tuple) else value)  # fmt: skip
def test_lines_that_cdna_has_too(arch: str, kind: str, lines: tuple[str, ...]):
    """The same lanes, masks and results in wavefronts of 32 as in those of 64."""
    dtype, masks = dtype_of(kind), np.random.default_rng(9).integers(0, 1 << 32, (2, 8), np.uint32)
    found = []
    for name in ("gfx942", arch):
        lanes = ARCHS[name].lanes
        machine = Machine(256 // lanes, arch=name)
        for i, number in enumerate((8, 12, 16)):
            if dtype.itemsize == 8:
                put(machine, number, edge_floats(20 + i, SHAPE, dtype).reshape(-1, lanes))
            else:
                words = integers(i, (2, *SHAPE))
                if dtype.kind == "f":
                    words = edge_floats(20 + i, (2, 8, 128 // dtype.itemsize), dtype).view(np.uint32)
                machine.v[number : number + 2] = words.reshape(2, -1, lanes)
        machine.v[2:4] = 0x55555555
        machine.s[20:24] = 0x77777777
        machine.s[20 : 20 + lanes // 32] = masks[0].reshape(-1, lanes // 32).T
        spelling = {f"m{n}": f"s[{n}:{n + 1}]" if lanes == 64 else f"s{n}" for n in (4, 20, 22)}
        spelling["vcc"] = "vcc" if lanes == 64 else "vcc_lo"
        texts = []
        for line in lines:
            first, _, rest = line.format(**spelling).partition(" ")
            plain = first.removesuffix("_e64")
            texts.append(f"{mnemonics(name).get(plain, plain)}{first[len(plain) :]} {rest}")
        machine.execute(*texts)
        assert lanes == 64 or ((machine.s[23] == 0x77777777).all() and not machine.s[124].any()), (
            "masks are one register"
        )
        written = [machine.lanes(n).reshape(SHAPE) for n in (22, 106) if n == 106 or "{m22}" in lines[0]]
        found.append((machine.v[2:4].reshape(2, *SHAPE).copy(), written))
    result = np.dtype(np.float32) if "_f32" in lines[0].split()[0] else dtype
    (want, want_masks), (got, got_masks) = ((np.moveaxis(v, 0, -1).copy().view(result), masks) for v, masks in found)
    assert_same(got, want, lines)
    np.testing.assert_array_equal(got_masks, want_masks)


# Lane masks


@pytest.mark.parametrize("arch", RDNA)
def test_comparisons_write_one_register(arch: str):
    machine = Machine(arch=arch)
    a, b = machine.v[8], machine.v[9] = integers(0, (4, 32)), integers(1, (4, 32))
    machine.s[4:8], machine.s[107] = 0x77777777, 0x77777777
    active = np.array([0xFFFFFFFF, 0xF0F0F0F0, 0, 1], np.uint32)
    machine.set_exec(active)
    lanes = machine.lanes(126)
    machine.execute("v_cmp_lt_u32 vcc_lo, v8, v9", "v_cmp_ge_i32_e64 s4, v8, v9", "v_cmp_lt_u32_e64 null, v8, v9")
    np.testing.assert_array_equal(machine.lanes(106), (a < b) & lanes)
    np.testing.assert_array_equal(machine.lanes(4), (a.view(np.int32) >= b.view(np.int32)) & lanes)
    assert (machine.s[[5, 107]] == 0x77777777).all() and not machine.s[124].any()
    machine.s[106] = 0x77777777
    machine.execute("v_cmpx_lt_u32 v8, v9")
    np.testing.assert_array_equal(machine.lanes(126), (a < b) & lanes)
    assert (machine.s[106] == 0x77777777).all(), "v_cmpx writes EXEC alone"
    machine.set_exec(active)
    machine.execute("v_cmpx_ngt_f32_e64 |v8|, -v9")
    x, y = np.abs(a.view(np.float32)), -b.view(np.float32)
    np.testing.assert_array_equal(machine.lanes(126), ~(x > y) & lanes)


@pytest.mark.parametrize("arch,operation", [
    (arch, name) for arch in RDNA for name in (*(f"v_cmp_{name}" for name in compare.OPS), *CLASSES)
    if name in mnemonics(arch)
])  # fmt: skip
def test_every_comparison(arch: str, operation: str):
    """In both encodings and as v_cmpx, against CDNA's, which is tested against independent values."""
    kind = operation.rpartition("_")[2]
    a, b = sources_of((kind, kind))
    b = np.where(np.arange(256).reshape(SHAPE) % 3 == 0, a, b)
    if operation in CLASSES:
        b = integers(5, SHAPE).astype(np.uint16 if kind == "f16" else np.uint32)
    second = "u32" if operation in CLASSES and kind != "f16" else kind
    masks = []
    for name in ("gfx942", arch):
        machine = Machine(256 // ARCHS[name].lanes, arch=name)
        half = None if name == "gfx942" else 1
        for number, source in ((8, a), (12, b)):
            put(machine, number, source.reshape(machine.v.shape[1:]), half or 0)
        mnemonic = mnemonics(name)[operation]
        operands = f"{spelled(kind, 8, half)}, {spelled(second, 12, half)}"
        vcc, target = ("vcc", "s[4:5], ") if name == "gfx942" else ("vcc_lo", "s4, ")
        machine.execute(f"{mnemonic} {vcc}, {operands}", f"{mnemonic}_e64 {target}{operands}",
                        f"{mnemonic.replace('cmp', 'cmpx')}_e64 {target if name == 'gfx942' else ''}{operands}")  # fmt: skip
        found = [machine.lanes(register).reshape(SHAPE) for register in (106, 4, 126)]
        assert (found[0] == found[1]).all() and (found[0] == found[2]).all()
        masks.append(found[0])
    np.testing.assert_array_equal(*masks)


@pytest.mark.parametrize("arch", RDNA)
def test_selection_by_a_mask_of_32_lanes(arch: str):
    machine = Machine(arch=arch)
    masks = np.array([0, 0xFFFFFFFF, 0xF0F0F0F0, 1], np.uint32)
    machine.s[4], machine.s[5], machine.s[106], machine.s[107] = masks, 0x12345678, ~masks, 0x12345678
    machine.v[8], machine.v[9], machine.v[4] = integers(0, (4, 32)), integers(1, (4, 32)), 0x5555
    machine.execute("v_cndmask_b32_e64 v2, v8, v9, s4", "v_cndmask_b32 v3, v8, v9, vcc_lo",
                    "v_cndmask_b16 v4.h, v8.l, v9.h, s4", "v_cndmask_b32_e64 v5, v8, v9, null")  # fmt: skip
    taken = machine.lanes(4)
    np.testing.assert_array_equal(machine.v[2], np.where(taken, machine.v[9], machine.v[8]))
    np.testing.assert_array_equal(machine.v[3], np.where(~taken, machine.v[9], machine.v[8]))
    chosen = np.where(taken, machine.v[9] >> 16, machine.v[8] & 0xFFFF)
    np.testing.assert_array_equal(machine.v[4], chosen << 16 | 0x5555)
    np.testing.assert_array_equal(machine.v[5], machine.v[8])
