"""Global, flat and scratch memory: GLOBAL, FLAT and SCRATCH (chapter "Flat Memory Instructions").

Cache policy bits mean nothing here: memory is one. But sc0 (glc) of an atomic says that the old value is returned.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import direct_to_lds
from .atomics import MEMORY_ATOMICS, Atomic, perform
from .decode import Instruction, signed
from .monitor import Action
from .operands import PRIVATE_APERTURE, SHARED_APERTURE, Registers, vector_register
from .scalar import Step
from .transfers import (
    MEMORY_LOADS,
    MEMORY_STORES,
    Place,
    Transfer,
    data_register,
    from_registers,
    load,
    store,
    to_registers,
)
from .wait_counters import returns_value
from .wavefronts import Array, Wavefronts, join

Find = Callable[..., list[Place]]
"""Where the lanes' accesses go: of (wavefronts, action, bytes of an access, values that are stored or None)."""

_OFF = 0x7F


def bind(instruction: Instruction, layout: Registers) -> Step | None:
    """What executes a memory instruction of these encodings; None if it is none, or not implemented."""
    segment, _, operation = instruction.mnemonic.partition("_")
    if segment not in _FINDERS:
        return None
    action, _, form = operation.partition("_")
    if instruction.field("lds"):
        raise instruction.unsupported("a load direct to LDS")
    direct = form.removeprefix("lds_")
    if segment == "global" and action == "load" and direct != form and direct in MEMORY_LOADS:
        return _bind_load_to_lds(instruction, layout, MEMORY_LOADS[direct])
    if action == "load" and form in MEMORY_LOADS:
        return _bind_load(instruction, layout, MEMORY_LOADS[form], _FINDERS[segment](instruction, layout), "vdst")
    if action == "store" and form in MEMORY_STORES:
        return _bind_store(instruction, layout, MEMORY_STORES[form], _FINDERS[segment](instruction, layout), "data")
    if action == "atomic" and form in MEMORY_ATOMICS and segment != "scratch":
        find, returns = _FINDERS[segment](instruction, layout), returns_value(instruction)
        return bind_atomic(instruction, layout, MEMORY_ATOMICS[form], find, ("data", "vdst"), returns)
    return None


def _bind_load(instruction: Instruction, layout: Registers, transfer: Transfer, find: Find, data: str) -> Step:
    """A load into the register that field `data` names; lanes without a place get 0."""
    row, nbytes = data_register(instruction, data, layout, transfer.words), transfer.nbytes
    return lambda waves: to_registers(waves, row, transfer, load(find(waves, "load", nbytes), nbytes, waves.shape))


def _bind_load_to_lds(instruction: Instruction, layout: Registers, transfer: Transfer) -> Step:
    find, nbytes = _find_global(instruction, layout), transfer.nbytes
    offset = signed(instruction.fields["offset"], 13)

    def read(waves: Wavefronts) -> Array:
        return load(find(waves, "load", nbytes), nbytes, waves.shape)

    return direct_to_lds.bind(instruction, transfer, offset, read, buffer=False)


def _bind_store(instruction: Instruction, layout: Registers, transfer: Transfer, find: Find, data: str) -> Step:
    """A store from the register that field `data` names."""
    row, nbytes = data_register(instruction, data, layout, transfer.words), transfer.nbytes

    def step(waves: Wavefronts) -> None:
        values = from_registers(waves, row, transfer)
        store(find(waves, "store", nbytes, values), nbytes, values)

    return step


def bind_atomic(
    instruction: Instruction, layout: Registers, atomic: Atomic, find: Find, fields: tuple[str, str], returns: bool
) -> Step:
    """An atomic with its operands and its result in the registers that the two fields name."""
    words = atomic.words
    row = data_register(instruction, fields[0], layout, words * atomic.operands)
    target = data_register(instruction, fields[1], layout, words) if returns else None

    def step(waves: Wavefronts) -> None:
        operands = [waves.u32[row + i * words : row + (i + 1) * words] for i in range(atomic.operands)]
        old = perform(atomic, find(waves, "atomic", 4 * words), operands, waves.shape)
        if target is not None:
            to_registers(waves, target, Transfer(4 * words), old)

    return step


def _find_global(instruction: Instruction, layout: Registers) -> Find:
    offset = np.uint64(signed(instruction.fields["offset"], 13) & 0xFFFFFFFFFFFFFFFF)
    scalar = instruction.fields["saddr"]
    row = vector_register(instruction, instruction.fields["addr"], False, layout, 2 if scalar == _OFF else 1)

    def find(waves: Wavefronts, action: Action, nbytes: int, values: Array | None = None) -> list[Place]:
        if scalar == _OFF:
            addresses = join(waves.u32[row], waves.u32[row + 1]) + offset
        else:
            addresses = (waves.pair(scalar) + offset)[:, None] + waves.u32[row]
        return waves.memory.in_memory(waves, action, addresses, nbytes, waves.active, values)

    return find


def _find_flat(instruction: Instruction, layout: Registers) -> Find:
    """The upper half of an address says whether it is in LDS, in scratch, or else in global memory."""
    row = vector_register(instruction, instruction.fields["addr"], False, layout, 2)
    offset = instruction.fields["offset"]

    def find(waves: Wavefronts, action: Action, nbytes: int, values: Array | None = None) -> list[Place]:
        low, high = waves.u32[row], waves.u32[row + 1]
        active = np.ones(low.shape, bool) if waves.active is None else waves.active
        shared, private = active & (high == SHARED_APERTURE), active & (high == PRIVATE_APERTURE)
        within = low.astype(np.int64) + offset
        elsewhere = active & ~shared & ~private
        return [
            *waves.memory.in_memory(waves, action, join(low, high) + np.uint64(offset), nbytes, elsewhere, values),
            *waves.memory.in_lds(waves, action, within, nbytes, shared, values),
            *waves.memory.in_scratch(waves, action, within, nbytes, private, values),
        ]

    return find


def _find_scratch(instruction: Instruction, layout: Registers) -> Find:
    offset, scalar = signed(instruction.fields["offset"], 13), instruction.fields["saddr"]
    row = None
    if instruction.fields["sve"]:
        row = vector_register(instruction, instruction.fields["addr"], False, layout, 1)

    def find(waves: Wavefronts, action: Action, nbytes: int, values: Array | None = None) -> list[Place]:
        addresses: Array = np.full(waves.shape, offset, np.int64)
        if row is not None:
            addresses += waves.i32[row]
        if scalar != _OFF:
            addresses += waves.scalars[scalar].view(np.int32)[:, None]
        return waves.memory.in_scratch(waves, action, addresses, nbytes, waves.active, values)

    return find


_FINDERS: dict[str, Callable[[Instruction, Registers], Find]] = {
    "global": _find_global,
    "flat": _find_flat,
    "scratch": _find_scratch,
}
