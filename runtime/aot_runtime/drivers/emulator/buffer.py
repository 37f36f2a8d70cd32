"""Buffer memory: MUBUF (chapter "Vector Memory Buffer Instructions").

A resource descriptor in four SGPRs gives the base and the size. What lies outside the size is no error: loads give 0,
stores and atomics do nothing. The check is made on each dword by itself, and sees soffset as part of the offset.
"""

from __future__ import annotations

import numpy as np

from .atomics import MEMORY_ATOMICS
from .decode import Instruction
from .global_ import Find, bind_atomic, bind_load, bind_store
from .operands import Registers, scalar_source, vector_register
from .scalar import Step
from .transfers import MEMORY_LOADS, MEMORY_STORES, Place, Transfer, data_register, load, store, to_registers
from .wavefronts import LANES, Array, Wavefronts, join

_NOTHING = frozenset({"buffer_inv", "buffer_wbl2", "buffer_wbinvl1", "buffer_wbinvl1_vol"})


def bind(instruction: Instruction, layout: Registers) -> Step | None:
    """What executes a buffer instruction; None if it is none, or not implemented."""
    name = instruction.mnemonic
    if name in _NOTHING:
        return lambda waves: None
    if not name.startswith("buffer_"):
        return None
    _, action, form = name.split("_", 2)
    if instruction.field("lds"):
        raise instruction.unsupported("a load direct to LDS")
    find = _find(instruction, layout)
    if action == "load" and form in MEMORY_LOADS:
        return _bind_wide_load(instruction, layout, MEMORY_LOADS[form], find)
    if action == "store" and form in MEMORY_STORES:
        return _bind_wide_store(instruction, layout, MEMORY_STORES[form], find)
    if action == "atomic" and form in MEMORY_ATOMICS:
        returns = bool(instruction.fields["sc0"])
        plain = _in_range(find)
        return bind_atomic(instruction, layout, MEMORY_ATOMICS[form], plain, ("vdata", "vdata"), returns)
    return None


class _Reach:
    """Addresses [wavefronts, lanes] of an instruction's lanes, and the bytes from each to the end of its buffer."""

    def __init__(self, addresses: Array, room: Array):
        self.addresses, self.room = addresses, room

    def lanes(self, waves: Wavefronts, nbytes: int) -> Array | None:
        """Active lanes with so much room; None: all lanes."""
        inside = self.room >= nbytes
        if waves.active is not None:
            return inside & waves.active
        return None if inside.all() else inside


def _find(instruction: Instruction, layout: Registers):  # type: ignore[no-untyped-def]
    fields = instruction.fields
    resource, immediate = fields["srsrc"], fields["offset"]
    soffset = scalar_source(instruction, fields["soffset"], "u32")
    indexed, offset_enabled = fields["idxen"], fields["offen"]
    words = indexed + offset_enabled
    row = vector_register(instruction, fields["vaddr"], False, layout, words) if words else 0

    def reach(waves: Wavefronts) -> _Reach:
        word0, word1, records, word3 = (waves.scalars[resource + i] for i in range(4))
        if (word1 >> 31).any() or (word3 >> 23 & 1).any():
            raise instruction.unsupported("a resource with swizzle or add_tid")
        base = join(word0, word1 & np.uint32(0xFFFF))
        start = soffset(waves)
        offset: Array = np.full((waves.count, 1), immediate, np.int64)
        size = records.astype(np.int64)
        if indexed:
            stride = (word1 >> np.uint32(16) & np.uint32(0x3FFF)).astype(np.int64)[:, None]
            offset = offset + stride * waves.u32[row]
            size = np.where(stride[:, 0] > 0, size * stride[:, 0], size)
        if offset_enabled:
            offset = offset + waves.u32[row + indexed]
        room = np.broadcast_to((size - start)[:, None] - offset, (waves.count, LANES))
        addresses = (base + start)[:, None] + offset.astype(np.uint64)
        return _Reach(np.broadcast_to(addresses, (waves.count, LANES)), room)

    return reach


def _in_range(reach) -> Find:  # type: ignore[no-untyped-def]
    def find(waves: Wavefronts, nbytes: int) -> list[Place]:
        found = reach(waves)
        return waves.memory.in_memory(found.addresses, nbytes, found.lanes(waves, nbytes))

    return find


def _partly_outside(waves: Wavefronts, reach: _Reach, nbytes: int) -> bool:
    """Whether some active lane has a dword inside and another outside."""
    if nbytes <= 4:
        return False
    partly = (reach.room < nbytes) & (reach.room >= 4)
    return bool((partly if waves.active is None else partly & waves.active).any())


def _bind_wide_load(instruction: Instruction, layout: Registers, transfer: Transfer, reach) -> Step:  # type: ignore[no-untyped-def]
    row, nbytes = data_register(instruction, "vdata", layout, transfer.words), transfer.nbytes

    def step(waves: Wavefronts) -> None:
        found, shape = reach(waves), (waves.count, LANES)
        if not _partly_outside(waves, found, nbytes):
            places = waves.memory.in_memory(found.addresses, nbytes, found.lanes(waves, nbytes))
            to_registers(waves, row, transfer, load(places, nbytes, shape))
            return
        for word in range(transfer.words):
            lanes = found.lanes(waves, 4 * word + 4)
            places = waves.memory.in_memory(found.addresses + np.uint64(4 * word), 4, lanes)
            to_registers(waves, row + word, Transfer(4), load(places, 4, shape))

    return step


def _bind_wide_store(instruction: Instruction, layout: Registers, transfer: Transfer, reach) -> Step:  # type: ignore[no-untyped-def]
    whole = bind_store(instruction, layout, transfer, _in_range(reach), "vdata")
    row, nbytes = data_register(instruction, "vdata", layout, transfer.words), transfer.nbytes

    def step(waves: Wavefronts) -> None:
        found = reach(waves)
        if not _partly_outside(waves, found, nbytes):
            whole(waves)
            return
        for word in range(transfer.words):
            lanes = found.lanes(waves, 4 * word + 4)
            places = waves.memory.in_memory(found.addresses + np.uint64(4 * word), 4, lanes)
            store(places, 4, waves.u32[row + word : row + word + 1])

    return step


__all__ = ["bind", "bind_load"]
