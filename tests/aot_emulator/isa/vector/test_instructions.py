"""Vector instructions that map values to one value, on every instruction set that has them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from aot_emulator.isa.vector.vector_alu import OPS
from aot_emulator.state.float_mode import Rounding
from tests.support.emulation.exact import NEAREST, flushed
from tests.support.emulation.float_oracles import PLAIN, ROUNDED, function_of
from tests.support.emulation.integer_oracles import INTEGERS
from tests.support.emulation.machine import DEFAULT_MODE, OLD, RDNA, Machine, is_rdna
from tests.support.emulation.values import assert_same, bits_of, dtype_of, edge_floats, mnemonics, sources_of, spelled

APPROXIMATE: dict[str, Any] = {
    "rcp": lambda x: 1 / x, "rsq": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt, "exp": np.exp2, "log": np.log2,
    "sin": lambda x: np.sin(2 * np.pi * np.fmod(x, 1)), "cos": lambda x: np.cos(2 * np.pi * np.fmod(x, 1)),
}  # fmt: skip
ELSEWHERE = {
    "v_dot2c_f32_f16", "v_dot2c_f32_bf16", "v_trig_preop_f64", "v_cvt_sr_f16_f32", "v_cvt_sr_bf16_f32",
    *(f"v_div_fixup_f{bits}" for bits in (16, 32, 64)),
}  # fmt: skip
SAME = {"v_rcp_iflag_f32", "v_exp_legacy_f32", "v_log_legacy_f32", "v_cvt_pkaccum_u8_f32"}
"""Names of instructions that are tested under other ones."""
LITERALS = {16: "0x4248", 32: "0x40490fdb"}
GFX90A = {f"v_{name}_f32" for name in ("mad", "mac", "madmk", "madak")}
GFX950 = {"v_prng_b32", "v_ashr_pk_i8_i32", "v_ashr_pk_u8_i32", "v_cvt_pk_f16_f32", "v_cvt_pk_bf16_f32", "v_minimum3_f32",
          "v_maximum3_f32"}  # fmt: skip
KEEP_THE_OTHER_HALF = {
    *(f"v_{name}_{kind}" for name in ("mad", "min3", "max3", "med3") for kind in ("i16", "u16", "f16")),
    "v_mad_i16", "v_add_i16", "v_sub_i16", "v_fma_f16", "v_ashr_pk_i8_i32", "v_ashr_pk_u8_i32",
}  # fmt: skip
"""On CDNA, where other results of 16 bits clear it. These can choose halves by op_sel."""


def test_every_instruction_has_a_case():
    approximate = {f"v_{name}_f{bits}" for name in APPROXIMATE for bits in (16, 32, 64)}
    assert {*INTEGERS, *PLAIN, *ROUNDED} <= {*OPS} <= {*INTEGERS, *PLAIN, *ROUNDED, *approximate, *ELSEWHERE, *SAME}
    assert {name for name in OPS if not archs_of(name)} == {"v_subrev_i16", "v_subrev_i32"}, "made for regularity"


def archs_of(name: str) -> list[str]:
    if name in GFX90A:  # the tables are of gfx942
        return ["gfx90a"]
    return [arch for arch in ("gfx950" if name in GFX950 else "gfx942", *RDNA) if name in mnemonics(arch)]


def place_of_literal(operation: str) -> int | None:
    """Return the position of the literal among the sources of v_fmamk, v_fmaak and the like."""
    return {"mk": 1, "ak": 2}.get(operation.rpartition("_")[0][-2:])


def run(
    operation: str, kinds: tuple[str, ...], sources: list[np.ndarray], arch: str, half: int = 0, mode: int = DEFAULT_MODE
) -> Machine:  # fmt: skip
    """Execute with sources in v8, v12, … and the result in v2.

    half: where operands of 16 bits are; CDNA's encodings have op_sel for that, which are those of VOP3.
    """
    machine, texts, modifiers = Machine(arch, mode=mode), [], ""
    for i, (kind, source) in enumerate(zip(kinds[1:], sources, strict=True)):
        number = 2 if kind.startswith("=") else 8 + 4 * i
        if i == place_of_literal(operation):
            texts.append(LITERALS[bits_of(kind)])
            continue
        machine.put(number, source, half)
        if number != 2:
            texts.append(spelled(kind, number, half if is_rdna(arch) else None))
    if half and not is_rdna(arch):
        modifiers = f" op_sel:[{','.join(str(int(bits_of(kind) == 16)) for kind in (*kinds[1:], kinds[0]))}]"
    result = spelled(kinds[0], 2, half if is_rdna(arch) else None)
    return machine.execute(f"{mnemonics(arch).get(operation, operation)} {result}, {', '.join(texts)}{modifiers}")


@cache
def expected(name: str, rounding: Rounding, flushes: bool) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the sources and the results."""
    result, *kinds = OPS[name].kinds
    sources, function = sources_of(tuple(kinds)), INTEGERS.get(name) or function_of(name, result, rounding)
    place = place_of_literal(name)
    if place is not None:
        bits = bits_of(result)
        sources[place] = np.full(256, int(LITERALS[bits], 16), f"u{bits // 8}").view(dtype_of(result))
    given = [flushed(source) if flushes else source for source in sources]
    values = [source if source.dtype.kind == "f" else source.tolist() for source in given]
    want = [function(*one) for one in zip(*values, strict=True)]
    dtype = dtype_of(result)
    if dtype.kind != "f":
        return sources, np.array([value & (1 << bits_of(result)) - 1 for value in want], f"u{dtype.itemsize}")
    return sources, flushed(np.array(want).astype(dtype)) if flushes else np.array(want).astype(dtype)


FORMS = [(name, arch) for name in (*INTEGERS, *PLAIN, *ROUNDED) for arch in archs_of(name)]


@pytest.mark.parametrize("name,arch", FORMS)
def test_instruction(name: str, arch: str):
    """Operands are in each possible half; floats are rounded, upward too, and denormals also flushed."""
    kinds = OPS[name].kinds
    modes = {DEFAULT_MODE: (NEAREST, False)}
    if name not in INTEGERS:
        modes[DEFAULT_MODE & ~0xF0] = NEAREST, True
    if name in ROUNDED:
        modes[DEFAULT_MODE | 0b0101] = Rounding.UP, False
    has_halves = any(bits_of(kind) == 16 for kind in kinds) and (is_rdna(arch) or name in KEEP_THE_OTHER_HALF)
    for mode, (rounding, flushes) in modes.items():
        sources, want = expected(name, rounding, flushes)
        for half in (0, 1)[: 1 + has_halves]:
            machine = run(name, kinds, sources, arch, half, mode)
            assert_same(machine.get(2, want.dtype, half), want, (hex(mode), half))
            if want.itemsize == 2 and not kinds[-1].startswith("="):
                other = machine.get(2, np.uint16, 1 - half)
                assert (other == (OLD >> 16 * (1 - half) & 0xFFFF if has_halves else 0)).all()


@pytest.mark.parametrize("name,kind,arch", [
    (name, kind, arch) for name in APPROXIMATE for kind in ("f16", "f32", "f64") if f"v_{name}_{kind}" in OPS
    for arch in archs_of(f"v_{name}_{kind}")
])  # fmt: skip
def test_approximation(name: str, kind: str, arch: str):
    """Results are within a unit of the last place, as hardware states."""
    dtype, info, half = dtype_of(kind), np.finfo(dtype_of(kind)), int(is_rdna(arch))
    source = edge_floats(4, dtype)
    if name in ("sin", "cos"):
        source = np.where(np.isfinite(source) & (np.abs(source) <= 256), source, dtype.type(0.25))
    got = run(f"v_{name}_{kind}", (kind, kind), [source], arch, half).get(2, dtype, half)
    given = source.astype(np.longdouble)
    want = APPROXIMATE[name](flushed(source).astype(np.longdouble) if kind == "f32" else given).astype(dtype)
    want = flushed(want) if kind == "f32" else want  # these do not know denormals
    special = ~np.isfinite(want) | (want == 0)
    if name not in ("sin", "cos"):
        np.testing.assert_array_equal(got[special], want[special])
    error = np.abs(got[~special].astype(np.longdouble) - want[~special])
    absolute = 2 * info.eps if name in ("sin", "cos") else 0
    assert (error <= np.spacing(np.abs(want[~special])) + absolute).all()
