"""GLOBAL, FLAT and SCRATCH instructions (ISA chapter "Flat Memory Instructions").

Cache policy bits (sc1, nt, glc, scope, …) have no effect, as no caches are modelled. For atomics, sc0, glc or the
lowest bit of th select that the old value is returned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot_emulator.isa.decoding import Instruction
from aot_emulator.isa.operands import PRIVATE_APERTURE, SHARED_APERTURE, Registers, Step, is_null, vector_register
from aot_emulator.isa.wait_counters import returns_value
from aot_emulator.state.access import Action, Place, load, store
from aot_emulator.state.arrays import Array, join
from aot_emulator.state.wavefronts import Wavefronts

from . import direct_to_lds
from .atomics import MEMORY_ATOMICS, Atomic, perform
from .transfers import (
    MEMORY_LOADS,
    MEMORY_STORES,
    Transfer,
    data_register,
    from_registers,
    named,
    offset_of,
    to_registers,
)

Find = Callable[..., list[Place]]
"""Locates the lanes' accesses. Arguments: wavefronts, action, bytes per access, stored values or None."""

_OFF = 0x7F
"""Value of saddr for `off` on CDNA and RDNA3."""
_NOTHING = frozenset({"global_inv", "global_wb", "global_wbinv"})


def bind(instruction: Instruction, layout: Registers) -> Step | None:
    """Return the step of a memory instruction, or None if it is not one of these encodings or not implemented."""
    if instruction.mnemonic in _NOTHING:
        return lambda waves: None
    segment, _, operation = instruction.mnemonic.partition("_")
    if segment not in _FINDERS:
        return None
    action, _, form = operation.partition("_")
    isa, data = instruction.arch.isa, named(instruction, "data", "vsrc")
    if instruction.field("lds"):
        raise instruction.unsupported("load to LDS")
    direct = form.removeprefix("lds_")
    if segment == "global" and action == "load" and direct != form and direct in MEMORY_LOADS[isa]:
        return _bind_load_to_lds(instruction, layout, MEMORY_LOADS[isa][direct])
    if action == "load" and form in MEMORY_LOADS[isa]:
        return _bind_load(instruction, layout, MEMORY_LOADS[isa][form], _FINDERS[segment](instruction, layout), "vdst")
    if action == "store" and form in MEMORY_STORES[isa]:
        return _bind_store(instruction, layout, MEMORY_STORES[isa][form], _FINDERS[segment](instruction, layout), data)
    if action == "atomic" and form in MEMORY_ATOMICS[isa] and segment != "scratch":
        find = _FINDERS[segment](instruction, layout)
        return bind_atomic(instruction, layout, MEMORY_ATOMICS[isa][form], find, (data, "vdst"))
    return None


def _bind_load(instruction: Instruction, layout: Registers, transfer: Transfer, find: Find, data: str) -> Step:
    """Return the step of a load into the register in field `data`. Lanes without an access get 0."""
    row, nbytes = data_register(instruction, data, layout, transfer.words), transfer.nbytes
    return lambda waves: to_registers(waves, row, transfer, load(find(waves, "load", nbytes), nbytes, waves.shape))


def _bind_load_to_lds(instruction: Instruction, layout: Registers, transfer: Transfer) -> Step:
    find, nbytes = _find_global(instruction, layout), transfer.nbytes
    offset = offset_of(instruction)

    def read(waves: Wavefronts) -> Array:
        return load(find(waves, "load", nbytes), nbytes, waves.shape)

    return direct_to_lds.bind(instruction, transfer, offset, read, buffer=False)


def _bind_store(instruction: Instruction, layout: Registers, transfer: Transfer, find: Find, data: str) -> Step:
    row, nbytes = data_register(instruction, data, layout, transfer.words), transfer.nbytes

    def step(waves: Wavefronts) -> None:
        values = from_registers(waves, row, transfer)
        store(find(waves, "store", nbytes, values), nbytes, values)

    return step


def bind_atomic(
    instruction: Instruction, layout: Registers, atomic: Atomic, find: Find, fields: tuple[str, str]
) -> Step:
    """Return the step of an atomic. fields: names of the operand and result register fields."""
    words = atomic.words
    row = data_register(instruction, fields[0], layout, words * atomic.operands)
    target = data_register(instruction, fields[1], layout, words) if returns_value(instruction) else None

    def step(waves: Wavefronts) -> None:
        operands = [waves.u32[row + i * words : row + (i + 1) * words] for i in range(atomic.operands)]
        old = perform(atomic, find(waves, "atomic", 4 * words), operands, waves.shape)
        if target is not None:
            to_registers(waves, target, Transfer(4 * words), old)

    return step


def _scalar_address(instruction: Instruction) -> int | None:
    """Return the scalar register of an address, or None."""
    number = instruction.fields["saddr"]
    is_off = number == _OFF and instruction.arch.isa != "rdna4"
    return None if is_off or is_null(instruction, number) else number


def _vector_address(instruction: Instruction, layout: Registers, words: int) -> int:
    return vector_register(instruction, instruction.fields[named(instruction, "addr", "vaddr")], False, layout, words)


def _find_global(instruction: Instruction, layout: Registers) -> Find:
    offset = np.uint64(offset_of(instruction) & 0xFFFFFFFFFFFFFFFF)
    scalar = _scalar_address(instruction)
    row = _vector_address(instruction, layout, 2 if scalar is None else 1)

    def find(waves: Wavefronts, action: Action, nbytes: int, values: Array | None = None) -> list[Place]:
        if scalar is None:
            addresses = join(waves.u32[row], waves.u32[row + 1]) + offset
        else:
            addresses = (waves.pair(scalar) + offset)[:, None] + waves.u32[row]
        return waves.memory.in_memory(waves, action, addresses, nbytes, waves.active, values)

    return find


def _find_flat(instruction: Instruction, layout: Registers) -> Find:
    """Return a function that locates flat accesses: the upper half of an address selects LDS, scratch or global."""
    row, offset = _vector_address(instruction, layout, 2), offset_of(instruction)
    wide_offset = np.uint64(offset & 0xFFFFFFFFFFFFFFFF)

    def find(waves: Wavefronts, action: Action, nbytes: int, values: Array | None = None) -> list[Place]:
        low, high = waves.u32[row], waves.u32[row + 1]
        active = np.ones(low.shape, bool) if waves.active is None else waves.active
        shared, private = active & (high == SHARED_APERTURE), active & (high == PRIVATE_APERTURE)
        within = low.astype(np.int64) + offset
        elsewhere = active & ~shared & ~private
        return [
            *waves.memory.in_memory(waves, action, join(low, high) + wide_offset, nbytes, elsewhere, values),
            *waves.memory.in_lds(waves, action, within, nbytes, shared, values),
            *waves.memory.in_scratch(waves, action, within, nbytes, private, values),
        ]

    return find


def _find_scratch(instruction: Instruction, layout: Registers) -> Find:
    offset, scalar = offset_of(instruction), _scalar_address(instruction)
    row = _vector_address(instruction, layout, 1) if instruction.fields["sve"] else None

    def find(waves: Wavefronts, action: Action, nbytes: int, values: Array | None = None) -> list[Place]:
        addresses: Array = np.full(waves.shape, offset, np.int64)
        if row is not None:
            addresses += waves.i32[row]
        if scalar is not None:
            addresses += waves.scalars[scalar].view(np.int32)[:, None]
        return waves.memory.in_scratch(waves, action, addresses, nbytes, waves.active, values)

    return find


_FINDERS: dict[str, Callable[[Instruction, Registers], Find]] = {
    "global": _find_global,
    "flat": _find_flat,
    "scratch": _find_scratch,
}
