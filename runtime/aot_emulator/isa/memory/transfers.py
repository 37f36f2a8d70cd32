"""What loads and stores move between registers and bytes, and where those bytes are.

Every vector access of memory, LDS or scratch is a `Place` list made by `Access`: there the bounds are checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from aot_emulator.isa.decoding import Instruction, signed
from aot_emulator.isa.operands import Registers, vector_register
from aot_emulator.isa.wait_counters import Isa
from aot_emulator.state.device_memory import POISON, Allocation, Array, Memory, gather, scatter
from aot_emulator.state.monitor import Action, Monitor, report
from aot_emulator.state.wavefronts import Wavefronts
from aot_runtime.errors import MemoryAccessError


@dataclass(frozen=True)
class Transfer:
    """How a load or a store lays its bytes in registers.

    Attributes:
        nbytes: bytes a lane.
        signed: a byte or short is sign-extended.
        half: the half of the register that a d16 load writes and a d16 store reads; None: whole registers.
    """

    nbytes: int
    signed: bool = False
    half: int | None = None

    @property
    def words(self) -> int:
        return max(1, self.nbytes // 4)

    def extend(self, values: Array) -> Array:
        """Bytes or shorts (unsigned) as uint32, sign-extended where the transfer is."""
        if self.signed:
            values = values.view(f"i{self.nbytes}").astype(np.int32).view(np.uint32)
        return values.astype(np.uint32)


_DWORDS = {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}
_BITS = {"b32": 4, "b64": 8, "b96": 12, "b128": 16}


def _whole(names: Mapping[str, int]) -> dict[str, Transfer]:
    return {name: Transfer(nbytes) for name, nbytes in names.items()}


def _short_loads(byte: tuple[str, str], short: tuple[str, str], d16_short: str) -> dict[str, Transfer]:
    """Loads of bytes and shorts; the names of the (unsigned, signed) ones, and of a short into a half."""
    found = {}
    for nbytes, names in ((1, byte), (2, short)):
        for is_signed, name in enumerate(names):
            found[name] = Transfer(nbytes, bool(is_signed))
            if nbytes == 1:
                found[f"{name}_d16"] = Transfer(1, bool(is_signed), 0)
                found[f"{name}_d16_hi"] = Transfer(1, bool(is_signed), 1)
    return {**found, d16_short: Transfer(2, half=0), f"{d16_short}_hi": Transfer(2, half=1)}


def _stores(byte: str, short: str) -> dict[str, Transfer]:
    return {
        byte: Transfer(1),
        short: Transfer(2),
        f"{byte}_d16_hi": Transfer(1, half=1),
        f"{short}_d16_hi": Transfer(2, half=1),
    }


def _d16_first(transfers: Mapping[str, Transfer]) -> dict[str, Transfer]:
    """With the names of RDNA's memory instructions: `d16_hi_u8` for `u8_d16_hi`."""
    return {re.sub(r"(\w+?)_(d16(_hi)?)", r"\2_\1", name): transfer for name, transfer in transfers.items()}


LDS_LOADS = {**_whole(_BITS), **_short_loads(("u8", "i8"), ("u16", "i16"), "u16_d16")}
"""By the part of the mnemonic after `ds_read_` or `ds_load_`."""
LDS_STORES = {**_whole(_BITS), **_stores("b8", "b16")}
_CDNA_LOADS = {**_whole(_DWORDS), **_short_loads(("ubyte", "sbyte"), ("ushort", "sshort"), "short_d16")}
_CDNA_STORES = {**_whole(_DWORDS), **_stores("byte", "short")}
_RDNA_LOADS = {**_whole(_BITS), **_d16_first(_short_loads(("u8", "i8"), ("u16", "i16"), "b16_d16"))}
_RDNA_STORES = _d16_first(LDS_STORES)

MEMORY_LOADS: Mapping[Isa, Mapping[str, Transfer]] = {"cdna": _CDNA_LOADS, "rdna3": _RDNA_LOADS, "rdna4": _RDNA_LOADS}
"""By ISA, and by the part of the mnemonic after `global_load_`, `buffer_load_`, …"""
MEMORY_STORES: Mapping[Isa, Mapping[str, Transfer]] = {
    "cdna": _CDNA_STORES, "rdna3": _RDNA_STORES, "rdna4": _RDNA_STORES
}  # fmt: skip


def named(instruction: Instruction, *names: str) -> str:
    """The name, of several that archs have for it, by which an instruction's encoding has a field."""
    return next(name for name in names if name in instruction.fields)


def offset_of(instruction: Instruction) -> int:
    """The signed offset of a global, flat or scratch instruction, in bytes."""
    if instruction.arch.isa == "rdna4":
        return signed(instruction.fields["ioffset"], 24)
    return signed(instruction.fields["offset"], 13)


def data_register(instruction: Instruction, name: str, layout: Registers, words: int) -> int:
    """Row of a load's or store's data register, an accumulation register if the `acc` bit says so."""
    return vector_register(instruction, instruction.fields[name], bool(instruction.field("acc")), layout, words)


def to_registers(waves: Wavefronts, row: int, transfer: Transfer, values: Array) -> None:
    """Write what `gather` read."""
    if transfer.nbytes >= 4:
        for word in range(transfer.words):
            waves.write(row + word, values[word])
        return
    extended = transfer.extend(values)
    if transfer.half is None:
        waves.write(row, extended)
    else:
        waves.write_half(row, transfer.half, extended.astype(np.uint16))


def from_registers(waves: Wavefronts, row: int, transfer: Transfer) -> Array:
    """What `scatter` takes."""
    if transfer.nbytes >= 4:
        return waves.u32[row : row + transfer.words]
    values = waves.u16[row][:, (transfer.half or 0) :: 2]
    return values if transfer.nbytes == 2 else values.astype(np.uint8)


@dataclass(frozen=True)
class Place:
    """Bytes that some lanes reach.

    Attributes:
        data: uint8, all of an allocation, of a batch's LDS or of its scratch.
        offsets: int64 [lanes that access] or [wavefronts, lanes], into data.
        lanes: which lanes these are, bool [wavefronts, lanes]; None: all of them, and offsets has two dims.
    """

    data: Array
    offsets: Array
    lanes: Array | None


class Access:
    """What a batch's wavefronts can reach: global memory, the LDS of their workgroups, scratch of their lanes.

    Args:
        memory: global memory.
        lds_bytes, workgroups: LDS of each workgroup, and how many there are.
        scratch_bytes, shape: scratch of each lane, and (wavefronts, lanes).
        monitors: what is told of every access.
    """

    def __init__(
        self,
        memory: Memory,
        lds_bytes: int,
        workgroups: int,
        scratch_bytes: int,
        shape: tuple[int, int],
        monitors: tuple[Monitor, ...] = (),
    ):
        self.memory, self.lds_bytes, self.scratch_bytes, self.monitors = memory, lds_bytes, scratch_bytes, monitors
        self.lds_stride = -(-lds_bytes // 16) * 16
        self.scratch_stride = -(-scratch_bytes // 16) * 16
        self.lds = np.full(self.lds_stride * workgroups, POISON, np.uint8)
        self.scratch = np.full(self.scratch_stride * math.prod(shape), POISON, np.uint8)

    def in_memory(
        self,
        waves: Wavefronts,
        action: Action,
        addresses: Array,
        nbytes: int,
        lanes: Array | None,
        values: Array | None = None,
    ) -> list[Place]:
        """Where accesses of global memory go. addresses: uint64 [wavefronts, lanes]. Raises `MemoryAccessError`."""
        report(self.monitors, waves, "global", action, addresses, nbytes, lanes, values)
        every = addresses
        if lanes is not None:
            addresses = addresses[lanes]
            if not addresses.size:
                return []
        places = []
        for allocation, mine in self._spans(addresses, nbytes, every, lanes):
            reached, own = addresses, lanes
            if mine is not None:
                reached = addresses[mine]
                own = mine if lanes is None else _within(lanes, mine)
            places.append(Place(allocation.data, (reached - np.uint64(allocation.base)).view(np.int64), own))
        return places

    def scalar_loads(
        self, waves: Wavefronts, addresses: Array, nbytes: int, loading: Array | None = None
    ) -> list[tuple[Allocation, Array | None]]:
        """The allocations that scalar loads fall into, as `Memory.spans` has it.

        addresses: uint64 [wavefronts]. loading: the wavefronts that load, some at least, bool [wavefronts]; None: all.
        The masks are over those.
        """
        report(self.monitors, waves, "scalar", "load", addresses, nbytes, loading)
        return self._spans(addresses if loading is None else addresses[loading], nbytes, addresses, loading)

    def _spans(
        self, addresses: Array, nbytes: int, every: Array, lanes: Array | None
    ) -> list[tuple[Allocation, Array | None]]:
        """`Memory.spans`. every: the addresses of all lanes, to name the one at fault."""
        try:
            return self.memory.spans(addresses, nbytes)
        except MemoryAccessError as error:
            _blame(error, every == np.uint64(error.address), lanes)
            raise

    def in_lds(
        self,
        waves: Wavefronts,
        action: Action,
        addresses: Array,
        nbytes: int,
        lanes: Array | None,
        values: Array | None = None,
    ) -> list[Place]:
        """Where accesses of LDS go. addresses: int64 [wavefronts, lanes]. Raises `MemoryAccessError`."""
        report(self.monitors, waves, "lds", action, addresses, nbytes, lanes, values)
        base = (waves.workgroup * self.lds_stride)[:, None]
        return self._in_array(self.lds, base, addresses, nbytes, lanes, self.lds_bytes, "of LDS of a workgroup")

    def in_scratch(
        self,
        waves: Wavefronts,
        action: Action,
        addresses: Array,
        nbytes: int,
        lanes: Array | None,
        values: Array | None = None,
    ) -> list[Place]:
        """Where accesses of scratch go. addresses: int64 [wavefronts, lanes]. Raises `MemoryAccessError`."""
        report(self.monitors, waves, "scratch", action, addresses, nbytes, lanes, values)
        base = (waves.slot[:, None] * waves.lanes + np.arange(waves.lanes)) * self.scratch_stride
        return self._in_array(self.scratch, base, addresses, nbytes, lanes, self.scratch_bytes, "of scratch of a lane")

    def _in_array(
        self, data: Array, base: Array, addresses: Array, nbytes: int, lanes: Array | None, size: int, what: str
    ) -> list[Place]:
        offsets, every = addresses + base, addresses
        if lanes is not None:
            addresses, offsets = addresses[lanes], offsets[lanes]
            if not addresses.size:
                return []
        low, high = int(addresses.min()), int(addresses.max())
        if low < 0 or high + nbytes > size:
            wrong = low if low < 0 else high
            text = f"{nbytes} bytes at {wrong:#x} are outside the {size} bytes {what}"
            error = MemoryAccessError(text, wrong, nbytes)
            _blame(error, every == wrong, lanes)
            raise error
        return [Place(data, offsets, lanes)]


def _blame(error: MemoryAccessError, wrong: Array, lanes: Array | None) -> None:
    """Name the first lane that is wrong (bool, of all lanes' shape)."""
    found = np.argwhere(wrong if lanes is None else wrong & lanes)[0]
    error.member = int(found[0]), int(found[1]) if len(found) > 1 else None


def _within(lanes: Array, mine: Array) -> Array:
    """The mask over all lanes, from one over those that `lanes` has."""
    result = np.zeros(lanes.shape, bool)
    result[lanes] = mine
    return result


def load(places: list[Place], nbytes: int, shape: tuple[int, ...]) -> Array:
    """Read a value a lane, in `gather`'s form; lanes that no place has are 0."""
    if len(places) == 1 and places[0].lanes is None:
        return gather(places[0].data, places[0].offsets, nbytes)
    dtype: Any = {1: np.uint8, 2: np.uint16}.get(nbytes, np.uint32)
    result = np.zeros(shape if nbytes < 4 else (nbytes // 4, *shape), dtype)
    for place in places:
        result[..., place.lanes] = gather(place.data, place.offsets, nbytes)
    return result


def store(places: list[Place], nbytes: int, values: Array) -> None:
    """Write a value a lane, given in `gather`'s form."""
    for place in places:
        scatter(place.data, place.offsets, nbytes, values if place.lanes is None else values[..., place.lanes])
