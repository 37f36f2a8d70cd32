"""Comparisons, lane masks, moves between lanes, DPP, SDWA, packed and mixed arithmetic, 8-bit floats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from aot_emulator.isa.vector.compare import OPS

from aot_runtime.errors import UnsupportedInstructionError
from tests.support.emulation.machine import Machine, edge_floats, integers
from tests.support.emulation.registers import put

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LANE = np.arange(64)


# Comparisons

ORDERS: dict[str, Callable] = {
    "f": lambda a, b: False, "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ne": lambda a, b: a != b, "ge": lambda a, b: a >= b, "t": lambda a, b: True,
    "lg": lambda a, b: a < b or a > b, "o": lambda a, b: a == a and b == b, "u": lambda a, b: a != a or b != b,
    "nge": lambda a, b: not a >= b, "nlg": lambda a, b: not (a < b or a > b), "ngt": lambda a, b: not a > b,
    "nle": lambda a, b: not a <= b, "neq": lambda a, b: a != b, "nlt": lambda a, b: not a < b,
    "tru": lambda a, b: True,
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_comparison(name: str):
    order, kind = name.split("_")
    dtype = np.dtype(f"{kind[0]}{int(kind[1:]) // 8}")
    if kind[0] == "f":
        a, b = (edge_floats(i, (4, 64), dtype) for i in range(2))
    else:
        a, b = (integers(i, (4, 64)).astype(dtype) * dtype.type(3) for i in range(2))
    b = np.where(np.random.default_rng(2).random((4, 64)) < 0.3, a, b)
    machine = Machine()
    put(machine, 8, a)
    put(machine, 12, b)
    machine.set_exec(exec_ := np.array([0xFFFFFFFFFFFFFFFF, 0xF0F0F0F0F0F0F0F0, 0, 1], np.uint64))
    first, second = ("v[8:9]", "v[12:13]") if dtype.itemsize == 8 else ("v8", "v12")
    machine.execute(f"v_cmp_{name} vcc, {first}, {second}", f"v_cmp_{name} s[4:5], {first}, {second}")
    active = (exec_[:, None] >> LANE.astype(np.uint64) & np.uint64(1)).astype(bool)
    want = np.array([ORDERS[order](x, y) for x, y in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)])
    want = want.reshape(4, 64) & active
    np.testing.assert_array_equal(machine.lanes(106), want)
    np.testing.assert_array_equal(machine.lanes(4), want)
    machine.execute(f"v_cmpx_{name} s[6:7], {first}, {second}")
    np.testing.assert_array_equal(machine.lanes(126), want)
    np.testing.assert_array_equal(machine.lanes(6), want)


@pytest.mark.parametrize("kind", ("f16", "f32", "f64"))
def test_classes(kind: str):
    dtype = np.dtype(f"f{int(kind[1:]) // 8}")
    info, bits = np.finfo(dtype), np.dtype(f"u{dtype.itemsize}")
    quiet = np.array(np.nan, dtype).view(bits)
    signalling = (quiet ^ bits.type(1 << info.nmant - 1) | bits.type(1)).view(dtype)
    ten = np.array([signalling, np.nan, -np.inf, -1, -info.tiny / 2, -0.0, 0.0, info.tiny / 2, 1, np.inf], dtype)
    ten.view(bits)[0] = signalling.view(bits)
    values = np.empty((4, 64), dtype)
    values.view(bits)[...] = ten.view(bits)[np.arange(256).reshape(4, 64) % 10]
    masks = np.random.default_rng(0).integers(0, 1 << 10, (4, 64), np.uint32)
    machine = Machine()
    put(machine, 8, values)
    machine.v[12] = masks
    machine.execute(f"v_cmp_class_{kind} vcc, {'v[8:9]' if kind == 'f64' else 'v8'}, v12")
    want = masks >> (np.arange(256).reshape(4, 64) % 10).astype(np.uint32) & 1
    np.testing.assert_array_equal(machine.lanes(106), want.astype(bool))


def test_select_by_mask():
    machine = Machine()
    machine.v[8:10] = integers(0, (2, 4, 64))
    machine.set_pair(106, np.uint64(0x123456789ABCDEF0))
    machine.set_pair(4, np.uint64(0xFEDCBA9876543210))
    machine.execute(
        "v_cndmask_b32 v2, v8, v9, vcc", "v_cndmask_b32 v3, v8, v9, s[4:5]", "v_cndmask_b32_e64 v4, 0, 1, vcc"
    )
    np.testing.assert_array_equal(machine.v[2], np.where(machine.lanes(106), machine.v[9], machine.v[8]))
    np.testing.assert_array_equal(machine.v[3], np.where(machine.lanes(4), machine.v[9], machine.v[8]))
    np.testing.assert_array_equal(machine.v[4], machine.lanes(106))


# Lanes and registers


def test_lanes_are_read_and_written():
    machine = Machine()
    machine.v[1] = integers(0, (4, 64))
    machine.v[2] = before = integers(1, (4, 64))
    machine.s[5] = [3, 63, 64, 100]  # modulo 64
    machine.set_exec(np.array([0xFFFFFFFFFFFFFFFF, 0x10, 0, 1 << 63], np.uint64))
    machine.execute("v_readlane_b32 s6, v1, s5", "v_readlane_b32 s7, v1, 17", "v_readfirstlane_b32 s8, v1",
                    "v_writelane_b32 v2, 17, s5", "v_writelane_b32 v2, s7, 20")  # fmt: skip
    picked = [3, 63, 0, 36]
    assert machine.s[6].tolist() == [machine.v[1, wave, lane] for wave, lane in enumerate(picked)]
    np.testing.assert_array_equal(machine.s[7], machine.v[1, :, 17])
    assert machine.s[8].tolist() == [machine.v[1, wave, lane] for wave, lane in enumerate((0, 4, 0, 63))]
    before[range(4), picked] = 17
    before[:, 20] = machine.s[7]
    np.testing.assert_array_equal(machine.v[2], before, "v_writelane ignores EXEC")


def test_only_active_lanes_are_written():
    machine = Machine()
    machine.v[2] = 7
    machine.set_exec(np.uint64(0x00FF00FF00FF00FF))
    machine.execute("v_mov_b32 v2, 9", "v_mov_b64 v[4:5], 1.0")
    np.testing.assert_array_equal(machine.v[2], np.where(machine.lanes(126), 9, 7))
    np.testing.assert_array_equal(machine.v[5], np.where(machine.lanes(126), 0x3FF00000, 0xFFFFFFFF))


def test_swap_and_accumulation_registers():
    machine = Machine()
    machine.v[1:3] = integers(0, (2, 4, 64))
    first, second = machine.v[1].copy(), machine.v[2].copy()
    machine.execute(
        "v_swap_b32 v1, v2",
        "v_accvgpr_write_b32 a5, v1",
        "v_accvgpr_mov_b32 a6, a5",
        "v_accvgpr_read_b32 v9, a6",
        "v_accvgpr_write_b32 a7, -3",
    )
    np.testing.assert_array_equal(machine.v[1], second)
    np.testing.assert_array_equal(machine.v[2], first)
    np.testing.assert_array_equal(machine.v[9], second)
    assert (machine.v[64 + 7].view(np.int32) == -3).all(), "accumulation registers come after the ordinary ones"


# DPP

DPP = {
    "quad_perm:[3,0,2,1]": lambda i: (i & ~3) + (3, 0, 2, 1)[i & 3],
    "row_shl:3": lambda i: i + 3 if i % 16 < 13 else None,
    "row_shr:1": lambda i: i - 1 if i % 16 else None,
    "row_shr:15": lambda i: i - 15 if i % 16 == 15 else None,
    "row_ror:5": lambda i: i // 16 * 16 + (i - 5) % 16,
    "wave_shl:1": lambda i: i + 1 if i < 63 else None,
    "wave_shr:1": lambda i: i - 1 if i else None,
    "wave_rol:1": lambda i: (i + 1) % 64,
    "wave_ror:1": lambda i: (i - 1) % 64,
    "row_mirror": lambda i: i // 16 * 16 + 15 - i % 16,
    "row_half_mirror": lambda i: i // 8 * 8 + 7 - i % 8,
    "row_bcast:15": lambda i: i // 16 * 16 - 1 if i > 15 else None,
    "row_bcast:31": lambda i: 31 if i > 31 else None,
    "row_newbcast:6": lambda i: i // 16 * 16 + 6,
}


@pytest.mark.parametrize("bound", (False, True), ids=("kept", "zero"))
@pytest.mark.parametrize("masks", ("0xf 0xf", "0xa 0xf", "0xf 0x5", "0x3 0xc"))
@pytest.mark.parametrize("control", DPP)
def test_dpp(control: str, masks: str, bound: bool):
    """v2 is its own source, with inactive lanes; in the add, the other source stays in place."""
    rows, banks = (int(mask, 16) for mask in masks.split())
    machine = Machine()
    machine.v[2] = source = integers(0, (4, 64))
    machine.v[3] = other = integers(1, (4, 64))
    machine.v[4] = old = integers(2, (4, 64))
    machine.set_exec(np.array([0xFFFFFFFFFFFFFFFF, 0x7FFFFFFF0FFFFFFF, 0x5555555555555555, 0], np.uint64))
    text = f"{control} row_mask:{rows:#x} bank_mask:{banks:#x}{' bound_ctrl:1' if bound else ''}"
    machine.execute(f"v_add_u32_dpp v4, v2, v3 {text}", f"v_mov_b32_dpp v2, v2 {text}")
    active = machine.lanes(126)
    moved, added = source.copy(), old.copy()
    for wave in range(4):
        for lane in range(64):
            enabled = active[wave, lane] and rows >> lane // 16 & 1 and banks >> lane // 4 % 4 & 1
            origin = DPP[control](lane)
            valid = origin is not None and active[wave, origin]
            if enabled and (valid or bound):
                value = int(source[wave, origin]) if valid else 0
                moved[wave, lane] = value
                added[wave, lane] = (value + int(other[wave, lane])) & 0xFFFFFFFF
    np.testing.assert_array_equal(machine.v[2], moved)
    np.testing.assert_array_equal(machine.v[4], added)


def test_dpp_signs():
    machine = Machine()
    a = edge_floats(0, (4, 64), np.float32)
    machine.v[2] = a.view(np.uint32)
    machine.execute("v_add_f32_dpp v3, -v2, |v2| row_ror:4 row_mask:0xf bank_mask:0xf")
    rotated = a.reshape(4, 4, 16)[:, :, (np.arange(16) - 4) % 16].reshape(4, 64)
    np.testing.assert_array_equal(machine.v[3].view(np.float32), -rotated + np.abs(a))


# SDWA

SELECT = {
    **{f"BYTE_{i}": (8 * i, 8) for i in range(4)}, "WORD_0": (0, 16), "WORD_1": (16, 16), "DWORD": (0, 32),
}  # fmt: skip


def pick(value: int, select: str, extend: bool) -> int:
    shift, width = SELECT[select]
    found = value >> shift & (1 << width) - 1
    return (found - (found >> width - 1 << width)) & 0xFFFFFFFF if extend else found


@pytest.mark.parametrize("unused", ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"))
@pytest.mark.parametrize("target", SELECT)
@pytest.mark.parametrize(
    "first,second", [("BYTE_3", "WORD_1"), ("WORD_0", "DWORD"), ("BYTE_0", "BYTE_2"), ("WORD_1", "BYTE_1")]
)
def test_sdwa(first: str, second: str, target: str, unused: str):
    machine = Machine()
    machine.v[2:4] = sources = integers(0, (2, 4, 64))
    machine.v[4] = old = integers(1, (4, 64))
    machine.execute(
        f"v_add_u32_sdwa v4, sext(v2), v3 dst_sel:{target} dst_unused:{unused} src0_sel:{first} src1_sel:{second}"
    )
    shift, width = SELECT[target]
    for a, b, before, got in zip(*(x.ravel().tolist() for x in (*sources, old, machine.v[4])), strict=True):
        total = (pick(a, first, True) + pick(b, second, False)) & (1 << width) - 1
        if unused == "UNUSED_SEXT":
            want = (total - (total >> width - 1 << width)) << shift & 0xFFFFFFFF
        else:
            want = total << shift
        if unused == "UNUSED_PRESERVE":
            want |= before & ~((1 << width) - 1 << shift)
        assert got == want & 0xFFFFFFFF


def test_sdwa_with_scalars_floats_and_comparisons():
    machine = Machine()
    halves = edge_floats(0, (4, 128), np.float16)
    machine.v[2] = halves.view(np.uint32)
    machine.v[3] = integers(1, (4, 64))
    machine.s[6] = 0x00AB00CD
    machine.execute(
        "v_cvt_f32_f16_sdwa v4, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1",
        "v_and_b32_sdwa v5, s6, v3 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:BYTE_1",
        "v_cmp_lt_u32_sdwa s[8:9], v3, s6 src0_sel:BYTE_0 src1_sel:WORD_0",
        "v_cmp_lt_u32_sdwa vcc, v3, s6 src0_sel:BYTE_0 src1_sel:WORD_1",
        "v_mul_f16_sdwa v6, -v2, |v2| dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:WORD_0 src1_sel:WORD_1",
    )
    low, high = halves[:, ::2], halves[:, 1::2]
    np.testing.assert_array_equal(machine.v[4].view(np.float32), high.astype(np.float32))
    np.testing.assert_array_equal(machine.v[5], machine.v[3] >> 8 & 0xAB)
    np.testing.assert_array_equal(machine.lanes(8), machine.v[3] & 0xFF < 0xCD)
    np.testing.assert_array_equal(machine.lanes(106), machine.v[3] & 0xFF < 0xAB)
    product = (machine.v[6] >> 16).astype(np.uint16).view(np.float16)
    np.testing.assert_array_equal(product, -low * np.abs(high))
    assert not (machine.v[6] & 0xFFFF).any()


def test_unhandled_modifiers_are_refused():
    for text, why in (
        ("v_add_u32_sdwa v4, v2, v3 clamp dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD", None),
        ("v_mul_u32_u24_e64 v4, v2, v3 clamp", "clamp"),
        ("v_pk_mul_f32 v[4:5], v[2:3], 1.0", "high dword"),
    ):
        if why is None:
            Machine().execute(text)  # it saturates
            continue
        with pytest.raises(UnsupportedInstructionError, match=why) as raised:
            Machine().execute(text)
        assert raised.value.mnemonic == text.split()[0].removesuffix("_e64") and raised.value.pc == 0
        assert raised.value.kernel == "test" and raised.value.mnemonic in str(raised.value)
