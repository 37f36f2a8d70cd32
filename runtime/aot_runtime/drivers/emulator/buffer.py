"""Buffer memory: MUBUF (chapter "Vector Memory Buffer Instructions").

A resource descriptor in four SGPRs gives the base and the size. What lies outside the size is no error: loads give 0,
stores and atomics do nothing. The check is made on each dword by itself, and sees soffset as part of the offset.

gfx90a reaches its scratch in this way, through a resource that the launch provides: lanes' dwords lie side by side
there, so that soffset, which the hardware adds last, counts for all lanes of a wavefront together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from . import direct_to_lds
from .atomics import MEMORY_ATOMICS
from .decode import Instruction
from .global_ import Find, bind_atomic
from .monitor import Action
from .operands import Registers, scalar_source, vector_register
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

_NOTHING = frozenset({"buffer_inv", "buffer_wbl2", "buffer_invl2", "buffer_wbinvl1", "buffer_wbinvl1_vol"})


def bind(instruction: Instruction, layout: Registers) -> Step | None:
    """What executes a buffer instruction; None if it is none, or not implemented."""
    name = instruction.mnemonic
    if name in _NOTHING:
        return lambda waves: None
    if not name.startswith("buffer_"):
        return None
    _, action, form = name.split("_", 2)
    locate = _locate(instruction, layout)
    if instruction.field("lds"):
        if action != "load" or form not in MEMORY_LOADS:
            raise instruction.unsupported("direct to LDS, and no load")
        return _bind_load_to_lds(instruction, MEMORY_LOADS[form], locate)
    if action == "load" and form in MEMORY_LOADS:
        return _bind_load(instruction, layout, MEMORY_LOADS[form], locate)
    if action == "store" and form in MEMORY_STORES:
        return _bind_store(instruction, layout, MEMORY_STORES[form], locate)
    if action == "atomic" and form in MEMORY_ATOMICS:
        inside, returns = _inside(locate), returns_value(instruction)
        return bind_atomic(instruction, layout, MEMORY_ATOMICS[form], inside, ("vdata", "vdata"), returns)
    return None


class Reach:
    """Addresses [wavefronts, lanes] of an instruction's lanes, and the bytes from each to the end of its buffer."""

    def __init__(self, addresses: Array, room: Array):
        self.addresses, self.room = addresses, room

    def places(
        self, waves: Wavefronts, action: Action, nbytes: int, skip: int = 0, values: Array | None = None
    ) -> list[Place]:
        """Where accesses of so many bytes go, `skip` bytes on, of the active lanes whose buffer has them."""
        inside = self.room >= skip + nbytes
        if waves.active is not None:
            lanes: Array | None = inside & waves.active
        else:
            lanes = None if inside.all() else inside
        addresses = self.addresses + np.uint64(skip) if skip else self.addresses
        return waves.memory.in_memory(waves, action, addresses, nbytes, lanes, values)

    def ends_within(self, waves: Wavefronts, nbytes: int) -> bool:
        """Whether the buffer ends between two dwords of some active lane."""
        if nbytes <= 4:
            return False
        partly = (self.room < nbytes) & (self.room >= 4)
        return bool((partly if waves.active is None else partly & waves.active).any())


class ScratchReach(Reach):
    """Places [wavefronts, lanes] in the scratch of the lanes. It has no end that would be no error to pass."""

    def __init__(self, offsets: Array):
        super().__init__(offsets, offsets)

    def places(
        self, waves: Wavefronts, action: Action, nbytes: int, skip: int = 0, values: Array | None = None
    ) -> list[Place]:
        return waves.memory.in_scratch(waves, action, self.addresses + skip, nbytes, waves.active, values)

    def ends_within(self, waves: Wavefronts, nbytes: int) -> bool:
        return False


def scratch_resource(nbytes: int, lanes: int) -> tuple[int, int, int, int]:
    """The resource of a wavefront's scratch, `nbytes` for each lane: swizzled, with the lane as index."""
    return 0, _SWIZZLED, nbytes * lanes, _ADD_LANE | _INDEX_STRIDE_64 | _ELEMENTS_OF_4


_SWIZZLED = 1 << 31  # of word 1
_ADD_LANE, _INDEX_STRIDE_64, _ELEMENTS_OF_4 = 1 << 23, 3 << 21, 1 << 19  # of word 3

Locate = Callable[[Wavefronts], Reach]


def _locate(instruction: Instruction, layout: Registers) -> Locate:
    fields = instruction.fields
    resource, immediate = fields["srsrc"], fields["offset"]
    soffset = scalar_source(instruction, fields["soffset"], "u32")
    indexed, offset_enabled = fields["idxen"], fields["offen"]
    words = indexed + offset_enabled
    row = vector_register(instruction, fields["vaddr"], False, layout, words) if words else 0

    def private(waves: Wavefronts) -> Array | int:
        return waves.u32[row].astype(np.int64) if offset_enabled else 0

    def shared(start: Array, waves: Wavefronts) -> Array:
        """soffset, of all lanes, as part of it in each lane."""
        if (start % (4 * waves.lanes)).any():
            raise instruction.unsupported("an soffset into scratch that is not a dword of every lane")
        return (start // waves.lanes).astype(np.int64)[..., None]

    def locate(waves: Wavefronts) -> Reach:
        word0, word1, records, word3 = (waves.scalars[resource + i] for i in range(4))
        start = soffset(waves)
        offset: Array = np.full((waves.count, 1), immediate, np.int64)
        if (word1 & _SWIZZLED).any() or (word3 & _ADD_LANE).any():
            if (word0 | word1 ^ _SWIZZLED).any() or indexed or not instruction.arch.scratch_resource:
                raise instruction.unsupported("a resource with swizzle or add_tid, which is not that of scratch")
            return ScratchReach(np.broadcast_to(offset + shared(start, waves) + private(waves), waves.shape))
        base = join(word0, word1 & np.uint32(0xFFFF))
        size = records.astype(np.int64)
        if indexed:
            stride = (word1 >> np.uint32(16) & np.uint32(0x3FFF)).astype(np.int64)[:, None]
            offset = offset + stride * waves.u32[row]
            size = np.where(stride[:, 0] > 0, size * stride[:, 0], size)
        if offset_enabled:
            offset = offset + waves.u32[row + indexed]
        room = np.broadcast_to((size - start)[:, None] - offset, waves.shape)
        addresses = (base + start)[:, None] + offset.astype(np.uint64)
        return Reach(np.broadcast_to(addresses, waves.shape), room)

    return locate


def _inside(locate: Locate) -> Find:
    return lambda waves, action, nbytes, values=None: locate(waves).places(waves, action, nbytes, 0, values)


def _bind_load(instruction: Instruction, layout: Registers, transfer: Transfer, locate: Locate) -> Step:
    row, nbytes = data_register(instruction, "vdata", layout, transfer.words), transfer.nbytes

    def step(waves: Wavefronts) -> None:
        reach, shape = locate(waves), waves.shape
        if not reach.ends_within(waves, nbytes):
            to_registers(waves, row, transfer, load(reach.places(waves, "load", nbytes), nbytes, shape))
            return
        for word in range(transfer.words):
            to_registers(waves, row + word, Transfer(4), load(reach.places(waves, "load", 4, 4 * word), 4, shape))

    return step


def _bind_load_to_lds(instruction: Instruction, transfer: Transfer, locate: Locate) -> Step:
    nbytes = transfer.nbytes

    def read(waves: Wavefronts) -> Array:
        reach, shape = locate(waves), waves.shape
        if not reach.ends_within(waves, nbytes):
            return load(reach.places(waves, "load", nbytes), nbytes, shape)
        words = [load(reach.places(waves, "load", 4, 4 * word), 4, shape) for word in range(transfer.words)]
        return np.concatenate(words)

    return direct_to_lds.bind(instruction, transfer, instruction.fields["offset"], read, buffer=True)


def _bind_store(instruction: Instruction, layout: Registers, transfer: Transfer, locate: Locate) -> Step:
    row, nbytes = data_register(instruction, "vdata", layout, transfer.words), transfer.nbytes

    def step(waves: Wavefronts) -> None:
        reach = locate(waves)
        if not reach.ends_within(waves, nbytes):
            values = from_registers(waves, row, transfer)
            store(reach.places(waves, "store", nbytes, 0, values), nbytes, values)
            return
        for word in range(transfer.words):
            values = waves.u32[row + word : row + word + 1]
            store(reach.places(waves, "store", 4, 4 * word, values), 4, values)

    return step
