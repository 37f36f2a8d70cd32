"""Buffer instructions: MUBUF, and VBUFFER on RDNA4 (ISA chapter "Vector Memory Buffer Instructions").

A resource descriptor in four SGPRs gives base and size. Out-of-range loads return 0; out-of-range stores and atomics
have no effect. The check applies to each dword. On RDNA, OOB_SELECT in the descriptor selects the comparison. For byte
addressing, on CDNA and RDNA, soffset is part of the checked offset.

gfx90a accesses scratch through a buffer resource provided by the launch. There the dwords of the lanes are interleaved,
and soffset, which the hardware adds last, is an offset for the whole wavefront.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aot_emulator.isa.decoding import Instruction, signed
from aot_emulator.isa.operands import Registers, Step, scalar_source, vector_register
from aot_emulator.state.access import Action, Place, load, store
from aot_emulator.state.arrays import Array, join
from aot_emulator.state.wavefronts import Wavefronts

from . import direct_to_lds
from .atomics import MEMORY_ATOMICS
from .flat import Find, bind_atomic
from .transfers import MEMORY_LOADS, MEMORY_STORES, Transfer, data_register, from_registers, named, to_registers

_NOTHING = frozenset(
    {
        "buffer_inv",
        "buffer_wbl2",
        "buffer_invl2",
        "buffer_wbinvl1",
        "buffer_wbinvl1_vol",
        "buffer_gl0_inv",
        "buffer_gl1_inv",
    }
)
_STRUCTURED, _INDEX_ONLY, _EMPTY_ONLY, _RAW = range(4)
"""Values of OOB_SELECT."""
_CDNA_SWIZZLE, _RDNA_SWIZZLE, _ADD_TID = np.uint32(1 << 31), np.uint32(3 << 30), np.uint32(1 << 23)
"""Bits of the second and fourth word of a resource. On CDNA, bit 30 of the second is a cache bit."""
_INDEX_STRIDE_64, _ELEMENTS_OF_4 = 3 << 21, 1 << 19
"""Further bits of the fourth word."""
_NO_LIMIT = 1 << 40
"""Room of an unchecked access, larger than any access."""


def bind(instruction: Instruction, layout: Registers) -> Step | None:
    """Return the step of a buffer instruction, or None if it is not one or not implemented."""
    name = instruction.mnemonic
    if name in _NOTHING:
        return lambda waves: None
    if not name.startswith("buffer_"):
        return None
    _, action, form = name.split("_", 2)
    if instruction.field("tfe"):
        raise instruction.unsupported("status return (tfe)")
    locate, isa = _locate(instruction, layout), instruction.arch.isa
    if instruction.field("lds"):
        if action != "load" or form not in MEMORY_LOADS[isa]:
            raise instruction.unsupported("lds modifier on an instruction that is not a load")
        return _bind_load_to_lds(instruction, MEMORY_LOADS[isa][form], locate)
    if action == "load" and form in MEMORY_LOADS[isa]:
        return _bind_load(instruction, layout, MEMORY_LOADS[isa][form], locate)
    if action == "store" and form in MEMORY_STORES[isa]:
        return _bind_store(instruction, layout, MEMORY_STORES[isa][form], locate)
    if action == "atomic" and form in MEMORY_ATOMICS[isa]:
        return bind_atomic(instruction, layout, MEMORY_ATOMICS[isa][form], _inside(locate), ("vdata", "vdata"))
    return None


class Reach:
    """Addresses of an instruction's lanes, [wavefronts, lanes], and the bytes from each to the end of its buffer."""

    def __init__(self, addresses: Array, room: Array):
        self.addresses, self.room = addresses, room

    def places(
        self, waves: Wavefronts, action: Action, nbytes: int, skip: int = 0, values: Array | None = None
    ) -> list[Place]:
        """Return the places of the accesses, offset by `skip` bytes, of active lanes within their buffers."""
        inside = self.room >= skip + nbytes
        if waves.active is not None:
            lanes: Array | None = inside & waves.active
        else:
            lanes = None if inside.all() else inside
        addresses = self.addresses + np.uint64(skip) if skip else self.addresses
        return waves.memory.in_memory(waves, action, addresses, nbytes, lanes, values)

    def ends_within(self, waves: Wavefronts, nbytes: int) -> bool:
        """Return True if the buffer ends between two dwords of an active lane's access."""
        if nbytes <= 4:
            return False
        partly = (self.room < nbytes) & (self.room >= 4)
        return bool((partly if waves.active is None else partly & waves.active).any())


class ScratchReach(Reach):
    """Offsets in the lanes' scratch, [wavefronts, lanes]. Out-of-range accesses are errors."""

    def __init__(self, offsets: Array):
        super().__init__(offsets, offsets)

    def places(
        self, waves: Wavefronts, action: Action, nbytes: int, skip: int = 0, values: Array | None = None
    ) -> list[Place]:
        return waves.memory.in_scratch(waves, action, self.addresses + skip, nbytes, waves.active, values)

    def ends_within(self, waves: Wavefronts, nbytes: int) -> bool:
        return False


def scratch_resource(nbytes: int, lanes: int) -> tuple[int, int, int, int]:
    """Return the swizzled resource of a wavefront's scratch, with the lane as index. nbytes: bytes per lane."""
    return 0, int(_CDNA_SWIZZLE), nbytes * lanes, int(_ADD_TID) | _INDEX_STRIDE_64 | _ELEMENTS_OF_4


def _is_of_scratch(instruction: Instruction, waves: Wavefronts, register: int) -> bool:
    if not instruction.arch.scratch_resource:
        return False
    word0, word1, _, word3 = (waves.scalars[register + i] for i in range(4))
    return not (word0 | word1 ^ _CDNA_SWIZZLE).any() and bool((word3 & _ADD_TID).all())


class Resource:
    """Buffer resource descriptors, one per wavefront.

    Attributes:
        base: uint64 [wavefronts].
        records: int64 [wavefronts], size in bytes, or in structures if the buffer is accessed by index.
    """

    def __init__(self, instruction: Instruction, waves: Wavefronts, register: int):
        word0, self._word1, records, self._word3 = (waves.scalars[register + i] for i in range(4))
        swizzle = _CDNA_SWIZZLE if instruction.arch.isa == "cdna" else _RDNA_SWIZZLE
        if (self._word1 & swizzle | self._word3 & _ADD_TID).any():
            raise instruction.unsupported("resource with swizzle or add_tid")
        self.base: Array = join(word0, self._word1 & np.uint32(0xFFFF))
        self.records: Array = records.astype(np.int64)

    @property
    def stride(self) -> Array:
        """Bytes per structure, int64 [wavefronts]."""
        return (self._word1 >> np.uint32(16) & np.uint32(0x3FFF)).astype(np.int64)

    @property
    def out_of_bounds_select(self) -> Array:
        """RDNA's OOB_SELECT, uint32 [wavefronts]."""
        select: Array = self._word3 >> np.uint32(28) & np.uint32(3)
        return select


Locate = Callable[[Wavefronts], Reach]
Room = Callable[[Instruction, Resource, Array, Array, "Array | None"], Array]
"""Computes the bytes from each lane's address to the end of its buffer. Arguments: instruction, resource, soffset
[wavefronts], other offsets [wavefronts, lanes or 1], indices [wavefronts, lanes] or None."""


def _locate(instruction: Instruction, layout: Registers) -> Locate:
    fields, isa = instruction.fields, instruction.arch.isa
    register = fields[named(instruction, "srsrc", "rsrc")]
    immediate = signed(fields["ioffset"], 24) if isa == "rdna4" else fields["offset"]
    soffset = scalar_source(instruction, fields["soffset"], "u32")
    indexed, offset_enabled = fields["idxen"], fields["offen"]
    words = indexed + offset_enabled
    row = vector_register(instruction, fields["vaddr"], False, layout, words) if words else 0
    room_of: Room = _cdna_room if isa == "cdna" else _rdna_room

    def private(waves: Wavefronts) -> Array | int:
        return waves.u32[row].astype(np.int64) if offset_enabled else 0

    def shared(start: Array, waves: Wavefronts) -> Array:
        if (start % (4 * waves.lanes)).any():
            raise instruction.unsupported("soffset into scratch that is not a multiple of a dword per lane")
        return (start // waves.lanes).astype(np.int64)[..., None]

    def locate(waves: Wavefronts) -> Reach:
        start = soffset(waves)
        offset: Array = np.full((waves.count, 1), immediate, np.int64)
        if not indexed and _is_of_scratch(instruction, waves, register):
            return ScratchReach(np.broadcast_to(offset + shared(start, waves) + private(waves), waves.shape))
        resource = Resource(instruction, waves, register)
        if offset_enabled:
            offset = offset + waves.u32[row + indexed] & 0xFFFFFFFF  # the hardware adds them in 32 bits
        index = waves.u32[row] if indexed else None
        room = room_of(instruction, resource, start, offset, index)
        if index is not None:
            offset = offset + resource.stride[:, None] * index
        addresses = (resource.base + start)[:, None] + offset.astype(np.uint64)
        return Reach(np.broadcast_to(addresses, waves.shape), np.broadcast_to(room, waves.shape))

    return locate


def _cdna_room(
    instruction: Instruction, resource: Resource, soffset: Array, offset: Array, index: Array | None
) -> Array:
    room: Array = (resource.records - soffset)[:, None] - offset
    if index is not None:
        size = resource.records * np.maximum(resource.stride, 1)
        room = (size - soffset)[:, None] - offset - resource.stride[:, None] * index
    return room


def _rdna_room(
    instruction: Instruction, resource: Resource, soffset: Array, offset: Array, index: Array | None
) -> Array:
    selects = resource.out_of_bounds_select
    check = int(selects[0])
    if (selects != check).any():
        raise instruction.unsupported("resources with different OOB_SELECT")
    room: Array
    if check == _RAW:
        if index is not None:
            raise instruction.unsupported("index into a raw buffer")
        room = (resource.records - soffset)[:, None] - offset
    elif check == _EMPTY_ONLY:
        room = np.where(resource.records == 0, 0, _NO_LIMIT)[:, None]
    else:
        exists = (0 if index is None else index) < resource.records[:, None]
        room = np.where(exists, resource.stride[:, None] - offset if check == _STRUCTURED else _NO_LIMIT, 0)
    return room


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
