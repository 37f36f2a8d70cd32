"""Atomics on memory and LDS, lane after lane."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from aot_emulator.isa.archs import ARCHS
from aot_emulator.isa.memory.atomics import LDS_ATOMICS, MEMORY_ATOMICS

from aot_runtime.errors import MemoryAccessError
from tests.support.emulation.machine import Machine
from tests.support.emulation.memory_machine import OLD, is_rdna, lds_bytes, resource, with_memory
from tests.support.emulation.memory_text import block, every_arch, named, no_soffset


def return_old(arch: str) -> str:
    """What has an atomic of memory return the old value."""
    return {"cdna": "sc0", "rdna3": "glc", "rdna4": "th:TH_ATOMIC_RETURN"}[ARCHS[arch].isa]


@every_arch
def test_flat_atomics(arch: str):
    """By even lanes on memory, by odd ones on LDS."""
    machine, content, address = with_memory(arch=arch)
    lane, before = np.arange(machine.arch.lanes), int(content.view(np.uint32)[4])
    machine.execute("s_mov_b64 s[6:7], src_shared_base")
    lds_bytes(machine, 0)[16:20] = lds_bytes(machine, 1)[16:20] = 0
    machine.v[2] = np.where(lane % 2, 16, address + 16 & 0xFFFFFFFF)
    machine.v[3] = np.where(lane % 2, machine.s[7, 0], address >> 32)
    machine.v[8] = 1
    machine.execute(f"flat_atomic_add{'_u32' if is_rdna(arch) else ''} v9, v[2:3], v8 {return_old(arch)}")
    half = lane.size // 2
    assert int(machine.read(address, content).view(np.uint32)[4]) == (before + 4 * half) % 2**32
    assert [int(lds_bytes(machine, i).view(np.uint32)[4]) for i in (0, 1)] == [2 * half] * 2
    assert sorted(machine.v[9, :2, 1::2].ravel().tolist()) == list(range(2 * half))
    assert sorted(((machine.v[9, :, ::2].astype(np.int64) - before) % 2**32).ravel().tolist()) == list(range(4 * half))


# Atomics


def wrap(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (value >> bits - 1 << bits) if signed else value


OPERATIONS: dict[str, Callable[..., int]] = {
    "swap": lambda old, new: new, "wrxchg": lambda old, new: new,
    "cmpswap": lambda old, new, compare: new if old == compare else old,
    "cmpst": lambda old, new, compare: new if old == compare else old,
    "cmpstore": lambda old, new, compare: new if old == compare else old, "storexchg": lambda old, new: new,
    "csub": lambda old, x: max(old - x, 0), "sub_clamp": lambda old, x: max(old - x, 0),
    "cond_sub": lambda old, x: old - x if old >= x else old,
    "add": lambda old, x: old + x, "sub": lambda old, x: old - x, "rsub": lambda old, x: x - old,
    "smin": min, "umin": min, "smax": max, "umax": max, "min": min, "max": max,
    "and": lambda old, x: old & x, "or": lambda old, x: old | x, "xor": lambda old, x: old ^ x,
    "inc": lambda old, x: 0 if old >= x else old + 1,
    "dec": lambda old, x: x if old == 0 or old > x else old - 1,
}  # fmt: skip


def simulate(
    operation: str, kind: str, start: list, places: np.ndarray, operands: list[np.ndarray]
) -> tuple[list, list]:
    """Lane after lane: memory, and each lane's old value."""
    memory, before = list(start), []
    for place, *values in zip(places.tolist(), *(o.tolist() for o in operands), strict=True):
        old = memory[place]
        before.append(old)
        if kind[0] == "f":
            number = np.dtype(f"f{int(kind[1:]) // 8}").type
            function = {"add": np.add, "min": np.fmin, "max": np.fmax}[operation.removesuffix("_num")]
            memory[place] = function(number(old), number(values[0]))
        else:
            memory[place] = wrap(OPERATIONS[operation](old, *values), int(kind[1:]), kind[0] == "i")
    return memory, before


def run_atomic(arch: str, text: Callable[[str, int], str], operation: str, kind: str, returns: bool, in_lds: bool):
    dtype = np.dtype(f"{kind[0]}{int(kind[1:]) // 8}")
    words, rng = dtype.itemsize // 4, np.random.default_rng(0)
    start = (rng.standard_normal(16) * 8).astype(dtype) if kind[0] == "f" else rng.integers(0, 20, 16).astype(dtype)
    machine = Machine(wavefronts=2, arch=arch)  # one workgroup
    shape = machine.waves.shape
    machine.set_exec(np.array([0xFFFFFFFFFFFFFFFF, 0x0F0F0F0F0F0F0F0F], np.uint64))
    active = machine.lanes(126)
    places = rng.integers(0, 16, shape)
    operands = [
        (rng.standard_normal(shape) * 8).astype(dtype) if kind[0] == "f" else rng.integers(0, 20, shape).astype(dtype)
        for _ in range(2 if operation.startswith("cmp") else 1)
    ]
    for i, operand in enumerate(operands):
        raw = np.ascontiguousarray(operand).view(np.uint32).reshape(*shape, words)
        machine.v[8 + i * words : 8 + (i + 1) * words] = np.moveaxis(raw, -1, 0)
    machine.v[1] = places * dtype.itemsize
    if in_lds:
        lds_bytes(machine, 0)[: start.nbytes] = start.view(np.uint8)
    else:
        address = machine.allocate(start)
        machine.set_pair(4, address)
    machine.v[20:22] = OLD
    machine.execute(text(block(words, 20), words))
    memory, before = simulate(operation, kind, start.tolist(), places[active], [o[active] for o in operands])
    now = lds_bytes(machine, 0)[: start.nbytes].view(dtype) if in_lds else machine.read(address, start)
    np.testing.assert_array_equal(now, np.array(memory, dtype))
    if returns:
        got = np.ascontiguousarray(np.moveaxis(machine.v[20 : 20 + words], 0, -1)).view(dtype)[..., 0]
        np.testing.assert_array_equal(got[active], np.array(before, dtype))
        assert (machine.v[20][~active] == OLD).all()


def operation_of(name: str, arch: str) -> tuple[str, str]:
    """What an atomic of memory does, and to what kind, by its name."""
    if is_rdna(arch) or name.endswith(("_f32", "_f64")):
        operation, _, kind = name.rpartition("_")
        return operation, kind.replace("b", "u")
    signed = name.startswith(("smin", "smax"))
    return name.removesuffix("_x2"), f"{'i' if signed else 'u'}{64 if name.endswith('_x2') else 32}"


@pytest.mark.parametrize("returns", (False, True), ids=("", "returning"))
@named(MEMORY_ATOMICS)
def test_global_atomic(arch: str, name: str, returns: bool):
    operation, kind = operation_of(name, arch)
    returns |= name == "csub_u32"  # there is no other

    def text(target: str, words: int) -> str:
        data = block(words * (2 if operation == "cmpswap" else 1))
        if returns:
            return f"global_atomic_{name} {target}, v1, {data}, s[4:5] {return_old(arch)}"
        return f"global_atomic_{name} v1, {data}, s[4:5]"

    run_atomic(arch, text, operation, kind, returns, in_lds=False)


@pytest.mark.parametrize("returns", (False, True), ids=("", "returning"))
@named(LDS_ATOMICS)
def test_lds_atomic(arch: str, name: str, returns: bool):
    operation, _, form = name.rpartition("_")
    returns |= operation in ("wrxchg", "storexchg")  # there is no other

    def text(target: str, words: int) -> str:
        data = block(words)
        if operation == "cmpst":  # first what to compare with
            data = f"{block(words, 8 + words)}, {data}"
        elif operation == "cmpstore":
            data = f"{data}, {block(words, 8 + words)}"
        return f"ds_{operation}_rtn_{form} {target}, v1, {data}" if returns else f"ds_{operation}_{form} v1, {data}"

    run_atomic(arch, text, operation, form.replace("b", "u"), returns, in_lds=True)


@pytest.mark.parametrize("name,dtype", (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)))
@pytest.mark.parametrize("arch", ("gfx942", "gfx1201"))
def test_packed_atomic_add(arch: str, name: str, dtype: type):
    machine = Machine(wavefronts=1, arch=arch)
    lanes = machine.arch.lanes
    start = np.arange(8).astype(dtype)
    address = machine.allocate(start)
    machine.set_pair(4, address)
    values = np.random.default_rng(0).integers(-4, 5, (1, lanes, 2)).astype(dtype)
    machine.v[8] = values.view(np.uint32)[..., 0]
    machine.v[1] = np.arange(lanes) % 4 * 4
    lds_bytes(machine, 0)[: start.nbytes] = start.view(np.uint8)
    machine.execute(f"global_atomic_pk_add_{name} v1, v8, s[4:5]", f"ds_pk_add_{name} v1, v8")
    want = start.astype(np.float32).reshape(4, 2) + values[0].astype(np.float32).reshape(-1, 4, 2).sum(0)
    for found in (machine.read(address, start), lds_bytes(machine, 0)[: start.nbytes].view(dtype)):
        np.testing.assert_array_equal(found.astype(np.float32).reshape(4, 2), want)


@every_arch
def test_buffer_atomic(arch: str):
    machine, _, address = with_memory(arch=arch)
    machine.memory.bytes_at(address, 4096)[:] = 0
    resource(machine, address, 64)
    lane = np.arange(machine.arch.lanes)
    machine.v[1] = lane % 32 * 4  # half of it outside
    machine.v[8] = 3
    form = "add_u32" if is_rdna(arch) else "add"
    machine.execute(f"buffer_atomic_{form} v8, v1, s[8:11], {no_soffset(arch)} offen {return_old(arch)}")
    counts, turns = machine.read(address, np.zeros(1024, np.uint32)), 4 * lane.size // 32
    assert counts[:16].tolist() == [3 * turns] * 16 and not counts[16:].any()
    inside = lane % 32 < 16
    assert sorted(machine.v[8][:, inside].ravel().tolist()) == sorted(3 * i for i in range(turns) for _ in range(16))
    assert not machine.v[8][:, ~inside].any()


def test_misaligned_atomic_is_an_error():
    machine, _, _ = with_memory()
    machine.v[1] = 2
    with pytest.raises(MemoryAccessError, match="not aligned"):
        machine.execute("global_atomic_add v1, v8, s[4:5]")
