"""Packed and mixed arithmetic, and dot products."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot_emulator import Numerics
from tests.support.emulation.float_oracles import function_of
from tests.support.emulation.integer_oracles import INTEGERS, dot
from tests.support.emulation.machine import RDNA, Machine, every_isa
from tests.support.emulation.values import edge_floats, integers

# By what they do to one half: `v_pk_add_u16` to `v_add_u16`
PACKED = [*(f"{name}_{kind}16" for name in ("add", "sub", "max", "min", "mad") for kind in "iu"), "mul_lo_u16", "lshlrev_b16",
          "lshrrev_b16", "ashrrev_i16", *(f"{name}_f16" for name in ("add", "mul", "fma", "min", "max"))]  # fmt: skip
NEW = {"gfx1201": ("minimum_f16", "maximum_f16"), "gfx950": ("minimum3_f16", "maximum3_f16")}
FORMS = [(arch, name) for arch in ("gfx942", *RDNA) for name in PACKED]
FORMS += [(arch, name) for arch, names in NEW.items() for name in names]


def halves(seed: int) -> np.ndarray:
    return integers(seed).view(np.uint16).reshape(256, 2)


def floats(seed: int, *shape: int, dtype: Any = np.float16) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape or 256).astype(dtype)


@pytest.mark.parametrize("arch,name", FORMS)
def test_packed_halves(arch: str, name: str):
    """Halves are used in order, and chosen crosswise."""
    function = INTEGERS.get(f"v_{name}") or function_of(f"v_{name}", "f16")
    machine, is_float = Machine(arch), name.endswith("f16")
    count = 3 if name.startswith(("mad", "fma", "minimum3", "maximum3")) else 2
    sources = [edge_floats(i, np.float16, 256, 2) if is_float else halves(i) for i in range(count)]
    machine.fill({8 + i: source for i, source in enumerate(sources)})
    operands = ", ".join(f"v{8 + i}" for i in range(count))
    text = f"v_pk_{name.replace('_f16', '_num_f16') if arch == 'gfx1201' and name in ('min_f16', 'max_f16') else name}"
    low, high = (",".join(pattern[i % 2] for i in range(count)) for pattern in ("10", "01"))
    machine.execute(f"{text} v2, {operands}", f"{text} v3, {operands} op_sel:[{low}] op_sel_hi:[{high}]")
    for target, swapped in ((2, False), (3, True)):
        for half in (0, 1):
            chosen = [source[:, half ^ (swapped and i % 2 == 0)] for i, source in enumerate(sources)]
            lanes = zip(*(list(x) if is_float else x.tolist() for x in chosen), strict=True)
            want = np.array([function(*values) for values in lanes])
            machine.expect({(target, half): want.astype(np.float16) if is_float else (want & 0xFFFF).astype(np.uint16)})


@every_isa
def test_packed_signs_and_clamp(arch: str):
    (a, b), (x, y) = (floats(i, 256, 2) for i in range(2)), (halves(i) for i in range(2))
    machine = Machine(arch).fill({8: a, 9: b, 10: x, 11: y})
    machine.execute("v_pk_add_f16 v2, v8, v9 neg_lo:[1,0] neg_hi:[0,1] clamp", "v_pk_add_u16 v3, v10, v11 clamp",
                    "v_pk_add_u16 v4, v10, -1 op_sel_hi:[1,0]")  # fmt: skip
    sums = np.clip(np.stack([-a[:, 0] + b[:, 0], a[:, 1] - b[:, 1]], 1), 0, 1)
    machine.expect({2: sums, 3: np.minimum(x.astype(int) + y, 0xFFFF).astype(np.uint16), 4: x - np.uint16(1)})


@pytest.mark.parametrize("name", ("add", "mul", "fma"))
def test_packed_floats(name: str):
    """The destination is a source, with dwords chosen crosswise."""
    a, b, c = (floats(i, 256, 2, dtype=np.float32) for i in range(3))
    machine, count = Machine().fill({2: a, 4: b, 6: c}), 3 if name == "fma" else 2
    operands, rest = ", ".join(f"v[{n}:{n + 1}]" for n in (2, 4, 6)[:count]), ",0" * (count - 2)
    selects = f"op_sel:[1,0{rest}] op_sel_hi:[0,1{rest and ',1'}] neg_lo:[0,1{rest}]"
    machine.execute(f"v_pk_{name}_f32 v[2:3], {operands} {selects}")
    first, second, third = a[:, ::-1].astype(np.float64), b * np.array([-1.0, 1.0]), c.astype(np.float64)
    want = {"add": first + second, "mul": first * second, "fma": first * second + third}[name]
    machine.expect({2: want.astype(np.float32)})


def test_packed_sources_that_are_scalars():
    machine = Machine()
    machine.v[2:4] = np.float32(3).view(np.uint32)
    machine.s[4], machine.s[5] = np.float32(2).view(np.uint32), np.float32(5).view(np.uint32)
    machine.execute("v_pk_mul_f32 v[4:5], v[2:3], s[4:5]", "v_pk_mul_f32 v[6:7], v[2:3], s[4:5] op_sel_hi:[1,0]",
                    "v_pk_mov_b32 v[8:9], v[4:5], s[4:5] op_sel:[1,0]")  # fmt: skip
    assert machine.get(4, np.float32, count=6)[0].tolist() == [6, 15, 6, 6, 15, 2]


@every_isa
def test_mixed_precision(arch: str):
    a, b, c = floats(0, 256, 2), floats(1, 256, 2), floats(2, dtype=np.float32)
    machine = Machine(arch).fill({8: a, 9: b, 10: c, 3: 0x12345678, 4: 0x12345678})
    machine.execute("v_fma_mix_f32 v2, v8, -v9, |v10| op_sel:[1,0,0] op_sel_hi:[1,1,0]",
                    "v_fma_mixlo_f16 v3, v8, v10, v9 op_sel:[0,0,1] op_sel_hi:[1,0,1]",
                    "v_fma_mixhi_f16 v4, v10, v10, 1.0 op_sel_hi:[0,0,1]")  # fmt: skip
    (a0, a1), (b0, b1), wide = a.T.astype(np.float64), b.T.astype(np.float64), c.astype(np.float64)
    low, high = (x.astype(np.float16).view(np.uint16).astype(int) for x in (a0 * wide + b1, wide * wide + 1))
    machine.expect({2: (a1 * -b0 + np.abs(wide)).astype(np.float32), 3: 0x12340000 | low, 4: 0x5678 | high << 16})


DOTS = [("gfx942", f"v_dot{32 // bits}_{kind}32_{kind}{bits}") for bits in (16, 8, 4) for kind in "iu"]
DOTS += [(arch, f"v_dot{name}") for arch in RDNA for name in ("4_u32_u8", "8_u32_u4", "4_i32_iu8", "8_i32_iu4")]


@pytest.mark.parametrize("arch,name", DOTS)
def test_integer_dot_products(arch: str, name: str):
    """Both operands have one sign, or neg_lo says which elements are signed."""
    bits, chosen, sources = int(name.rpartition("_")[2].lstrip("iu")), "_iu" in name, [integers(i) for i in range(3)]
    machine = Machine(arch).fill({8 + i: source for i, source in enumerate(sources)})
    for first, second in ((0, 0), (1, 0), (0, 1), (1, 1)) if chosen else [(int("_i32" in name),) * 2]:
        text = f"{name} v2, v8, v9, v10 {f'neg_lo:[{first},{second},0]' if chosen else ''}"
        least, most = (-(1 << 31), (1 << 31) - 1) if first or second else (0, (1 << 32) - 1)
        lanes = zip(*(source.tolist() for source in sources), strict=True)
        totals = np.array([dot(*values, bits, (bool(first), bool(second))) for values in lanes])
        machine.execute(text).expect({2: totals})
        if not chosen or first or second:
            machine.execute(f"{text} clamp").expect({2: np.clip(totals, least, most)})


@pytest.mark.parametrize("arch,name,dtype", [
    ("gfx942", "v_dot2c_f32_f16", np.float16), ("gfx950", "v_dot2c_f32_bf16", ml_dtypes.bfloat16),
    *((arch, "v_dot2_f32_f16", np.float16) for arch in ("gfx942", *RDNA)),
    *((arch, "v_dot2_f32_bf16", ml_dtypes.bfloat16) for arch in RDNA),
])  # fmt: skip
def test_float_dot_products(arch: str, name: str, dtype: Any):
    a, b = ((np.random.default_rng(i).integers(-9, 9, (256, 2)) / 4).astype(dtype) for i in range(2))
    machine = Machine(arch).fill({8: a, 9: b, 2: np.full(256, 0.25, np.float32)})
    machine.execute(f"{name} v2, v8, v9{'' if 'dot2c' in name else ', v2'}")
    machine.expect({2: np.float32(0.25) + (a.astype(np.float32) * b.astype(np.float32)).sum(1)})


@pytest.mark.parametrize("text", ("v_dot2_f32_f16 v3, v1, v2, v3", "v_dot2c_f32_f16 v3, v1, v2"))
def test_dot_products_of_cdna_flush_denormals(text: str):
    """2**-24 and 2**-15 are denormals of fp16: zeros, unless the launch chooses otherwise."""
    for keeps in (False, True):
        for a, c, want in ((0x0200_0001, 0, 2.0**-24 + 2.0**-15), (0, 2.0**-140, 2.0**-140)):
            machine = Machine().fill({1: a, 2: 0x3C00_3C00, 3: np.full(256, c, np.float32)})
            machine.batch.numerics = Numerics(dot_keeps_denormals=keeps)
            machine.execute(text).expect({3: np.full(256, want if keeps else 0, np.float32)})
