"""Atomics on memory and LDS, lane after lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aot_emulator.errors import MemoryAccessError
from aot_emulator.isa.memory.atomics import LDS_ATOMICS, MEMORY_ATOMICS
from tests.support.emulation.machine import DEFAULT_MODE, LANE, RDNA, RETURN, Machine, block, every_isa, is_rdna
from tests.support.emulation.values import arch_of, s

IN_LDS_ONLY = {("gfx942", "min_f32"), ("gfx942", "max_f32")}
SPACES = {"global": MEMORY_ATOMICS, "buffer": MEMORY_ATOMICS, "ds": LDS_ATOMICS}
FORMS = [(space, arch, name) for space, table in SPACES.items() for arch in ("gfx942", *RDNA)
         for name in table[arch_of(arch).isa] if not name.startswith("pk_") and (space == "ds" or (arch, name) not in IN_LDS_ONLY)]  # fmt: skip

OPERATIONS: dict[str, Callable[..., int]] = {
    "swap": lambda old, new: new, "wrxchg": lambda old, new: new, "storexchg": lambda old, new: new,
    "cmpswap": lambda old, new, compare: new if old == compare else old,
    "csub": lambda old, x: max(old - x, 0), "sub_clamp": lambda old, x: max(old - x, 0),
    "cond_sub": lambda old, x: old - x if old >= x else old,
    "add": lambda old, x: old + x, "sub": lambda old, x: old - x, "rsub": lambda old, x: x - old,
    "smin": min, "umin": min, "smax": max, "umax": max, "min": min, "max": max,
    "and": lambda old, x: old & x, "or": lambda old, x: old | x, "xor": lambda old, x: old ^ x,
    "inc": lambda old, x: 0 if old >= x else old + 1, "dec": lambda old, x: x if old == 0 or old > x else old - 1,
}  # fmt: skip
OPERATIONS["cmpst"] = OPERATIONS["cmpstore"] = OPERATIONS["cmpswap"]
FLOATS = {"add": np.add, "min": np.fmin, "max": np.fmax}


def operation_of(space: str, arch: str, name: str) -> tuple[str, str]:
    """Return the operation and operand kind of an atomic, from its name."""
    if space == "ds" or is_rdna(arch) or name.endswith(("_f32", "_f64")):
        operation, _, kind = name.rpartition("_")
        return operation, kind.replace("b", "u")
    kind = "i" if name.startswith(("smin", "smax")) else "u"
    return name.removesuffix("_x2"), f"{kind}{64 if name.endswith('_x2') else 32}"


def text_of(space: str, arch: str, name: str, words: int, returns: bool) -> str:
    """Return an atomic's operands: from v8 on, with the result in v20; a buffer's result is in v8."""
    data, target, returning = (
        block(8, words),
        f"{block(20, words)}, " if returns else "",
        RETURN[arch_of(arch).isa] if returns else "",
    )
    if space != "ds":
        data = block(8, 2 * words) if "cmpswap" in name else data
        if space == "global":
            return f"global_atomic_{name} {target}v1, {data}, s[4:5] {returning}"
        return f"buffer_atomic_{name} {data}, v1, s[8:11], {'null' if is_rdna(arch) else '0'} offen {returning}"
    operation, _, kind = name.rpartition("_")
    if operation in ("cmpst", "cmpstore"):  # CDNA has first what to compare with
        data = ", ".join([data, block(8 + words, words)][:: 1 if is_rdna(arch) else -1])
    return f"ds_{operation}_{'rtn_' if returns else ''}{kind} {target}v1, {data}"


def simulate(
    operation: str, kind: str, start: list[Any], places: list[int], operands: list[list[Any]]
) -> tuple[list, list]:
    """Carry the atomic out lane after lane; return memory, and each lane's old value."""
    memory, before, bits = list(start), [], int(kind[1:])
    for place, *values in zip(places, *operands, strict=True):
        old = memory[place]
        before.append(old)
        if kind[0] == "f":
            number = np.dtype(f"f{bits // 8}").type
            memory[place] = FLOATS[operation.removesuffix("_num")](number(old), number(values[0]))
        else:
            result = OPERATIONS[operation](old, *values)
            memory[place] = s(result, bits) if kind[0] == "i" else result & (1 << bits) - 1
    return memory, before


@pytest.mark.parametrize("space,arch,name", FORMS)
def test_atomic(space: str, arch: str, name: str):
    """Two wavefronts of a workgroup change 16 places, with and without returning the old values."""
    operation, kind = operation_of(space, arch, name)
    dtype = np.dtype(f"{kind[0]}{int(kind[1:]) // 8}")
    always = operation in ("wrxchg", "storexchg", "csub")
    for returns in (True,) if always else (False, True):
        rng, least = np.random.default_rng(0), -4 if kind[0] == "i" else 0
        lanes = 2 * arch_of(arch).lanes
        numbers = (
            rng.standard_normal((3, lanes)) * 8 if kind[0] == "f" else rng.integers(least, 20, (3, lanes))
        ).astype(dtype)
        start, *operands = numbers[0, :16], *numbers[1 : 3 if operation.startswith("cmp") else 2]
        machine = Machine(arch, wavefronts=2)
        active, places = machine.activate(rng.random(lanes) < 0.7), rng.integers(0, 16, lanes)
        for i, operand in enumerate(operands):
            machine.put(8 + i * dtype.itemsize // 4, operand.view(f"u{dtype.itemsize}"))
        machine.put(1, (places * dtype.itemsize).astype(np.uint32))
        address, register = machine.allocate(start), 8 if space == "buffer" else 20
        machine.set_pair(4, address)
        machine.describe(address, start.nbytes)
        machine.lds()[: start.nbytes] = start.view(np.uint8)
        old = machine.get(register, dtype)
        machine.execute(text_of(space, arch, name, dtype.itemsize // 4, returns))
        given = [operand[active].tolist() for operand in operands]
        memory, before = simulate(operation, kind, start.tolist(), places[active].tolist(), given)
        now = machine.lds()[: start.nbytes].view(dtype) if space == "ds" else machine.read(address, start)
        np.testing.assert_array_equal(now, np.array(memory, dtype))
        if returns:
            old[active] = np.array(before, dtype)
        np.testing.assert_array_equal(machine.get(register, dtype), old)


@pytest.mark.parametrize("name,dtype", (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)))
@pytest.mark.parametrize("arch", ("gfx942", "gfx1201"))
def test_packed_atomic_add(arch: str, name: str, dtype: Any):
    start, values = np.arange(8).astype(dtype), np.random.default_rng(0).integers(-1, 2, (256, 2)).astype(dtype)
    machine = Machine(arch).fill({8: values, 1: LANE % 4 * 4})
    address = machine.allocate(start)
    machine.set_pair(4, address)
    machine.lds()[:16] = start.view(np.uint8)
    machine.execute(f"global_atomic_pk_add_{name} v1, v8, s[4:5]", f"ds_pk_add_{name} v1, v8")
    for found, count in ((machine.read(address, start), 256), (machine.lds()[:16].view(dtype), 128)):
        want = start.astype(int).reshape(4, 2) + values[:count].astype(int).reshape(-1, 4, 2).sum(0)
        np.testing.assert_array_equal(found.astype(int).reshape(4, 2), want)


@every_isa
def test_buffer_atomic(arch: str):
    """Half of the lanes are out of the buffer's range."""
    machine, inside = Machine(arch).fill({1: LANE % 32 * 4, 8: 3}), LANE % 32 < 16
    address = machine.allocate(np.zeros(1024, np.uint32))
    machine.describe(address, 64)
    machine.portable("buffer_atomic_add v8, v1, s[8:11], 0 offen sc0")
    assert machine.read(address, np.zeros(1024, np.uint32)).tolist() == [24] * 16 + [0] * 1008
    assert sorted(machine.get(8)[inside].tolist()) == sorted(3 * i for i in range(8) for _ in range(16))
    assert not machine.get(8)[~inside].any()


@every_isa
def test_flat_atomics(arch: str):
    """Even lanes change memory, odd ones LDS."""
    machine, odd = Machine(arch).fill({8: 1}), LANE % 2 == 1
    address = machine.allocate(np.full(16, 5, np.uint32))
    machine.execute("s_mov_b64 s[6:7], src_shared_base")
    machine.lds(0)[16:20] = machine.lds(1)[16:20] = 0
    machine.put(2, np.where(odd, int(machine.s[7, 0]) << 32 | 16, address + 16).astype(np.uint64))
    machine.portable("flat_atomic_add v9, v[2:3], v8 sc0")
    assert machine.read(address, np.zeros(16, np.uint32))[4] == 5 + 128
    assert [machine.lds(i).view(np.uint32)[4] for i in (0, 1)] == [64, 64]
    assert sorted(machine.get(9)[:128][odd[:128]].tolist()) == list(range(64))
    assert sorted(machine.get(9)[~odd].tolist()) == list(range(5, 5 + 128))


def test_returning_atomic_of_gfx90a():
    machine = Machine("gfx90a").fill({1: LANE * 4, 2: 7})
    machine.set_pair(4, machine.allocate(np.arange(256, dtype=np.uint32)))
    machine.execute("global_atomic_add v1, v2, s[4:5]", "global_atomic_add v3, v1, v2, s[4:5] glc").expect(
        {3: LANE + 7}
    )


@pytest.mark.parametrize("text", ("global_atomic_add v1, v8, s[4:5]", "ds_add_u32 v1, v8"))
@every_isa
def test_misaligned_atomics_are_errors(arch: str, text: str):
    machine = Machine(arch).fill({1: 2})
    machine.hold()
    with pytest.raises(MemoryAccessError, match="not aligned"):
        machine.portable(text)


def test_minimum_with_nan():
    """gfx11 compares with NaN; gfx12 takes the number."""
    for arch, name, want in (("gfx1100", "min_f32", [np.nan, 3]), ("gfx1201", "min_num_f32", [2, 3])):
        machine = Machine(arch).fill({1: LANE % 2 * 4, 2: np.where(LANE % 2, np.nan, 2).astype(np.float32)})
        machine.lds()[:8] = np.array([np.nan, 3], np.float32).view(np.uint8)
        machine.activate(LANE < 128)
        machine.execute(f"ds_{name} v1, v2")
        np.testing.assert_array_equal(machine.lds()[:8].view(np.float32), want)


def test_sums_of_denormals():
    """Sums in memory always flush denormals; in LDS, MODE decides."""
    denormal = np.float32(2.0**-140)
    for mode, kept in ((DEFAULT_MODE, True), (DEFAULT_MODE & ~0x10, False)):
        machine = Machine(mode=mode).fill({1: LANE * 4, 3: np.full(256, denormal)})
        machine.set_pair(4, machine.allocate(np.full(256, denormal)))
        machine.execute("global_atomic_add_f32 v1, v3, s[4:5]", "global_load_dword v6, v1, s[4:5]", "ds_write_b32 v1, v3",
                        "ds_add_f32 v1, v3", "ds_read_b32 v5, v1")  # fmt: skip
        machine.expect({6: np.zeros(256, np.float32)})
        assert (machine.get(5, np.float32) != 0).all() == kept and machine.get(5).any() == kept
